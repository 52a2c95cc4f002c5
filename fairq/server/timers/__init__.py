"""What happens at its time: ticks, schedules, opening hours."""
