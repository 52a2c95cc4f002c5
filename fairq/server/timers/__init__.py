"""Timed work: ticks, schedules, opening hours."""
