"""Dispatching: which worker is given how many tasks, and what each holds."""
