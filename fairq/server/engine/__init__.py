"""The engine: app.py joins its parts. net/ talks, verbs/ act, dispatch/ gives tasks to workers, timers/ do the rest."""
