"""How fairq waits, sends and reads: see README.md."""
