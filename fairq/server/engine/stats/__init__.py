"""Statistics of waiting times, and the history."""
