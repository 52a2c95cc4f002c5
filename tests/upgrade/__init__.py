"""Backups of each version of the data, which today's code restores."""
