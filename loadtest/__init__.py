"""The load test: what the service does per second, and how fairly (README.md here)."""
