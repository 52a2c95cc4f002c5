"""The exact model of a queue: its rules in plain Python. No I/O; clock and random values are arguments."""
