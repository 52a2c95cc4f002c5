"""The operators' dashboard."""
