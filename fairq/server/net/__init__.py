"""Connections: who is let in, what one connection may do, and its end."""
