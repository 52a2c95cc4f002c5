"""Timed work: ticks, schedules, opening hours, and forgetting."""
