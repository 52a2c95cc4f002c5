"""Statistics of waiting times and shares."""
