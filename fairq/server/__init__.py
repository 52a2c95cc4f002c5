"""The server: run.py starts it, app.py joins its parts. net/ talks, verbs/ act, dispatch/ gives tasks to workers."""
