"""The server: run.py starts it, listener.py accepts connections. engine/ gives tasks to workers, web/ speaks HTTP."""
