"""Connections: admission, limits of one connection, and its end."""
