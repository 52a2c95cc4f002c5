"""Dispatching: how many tasks each worker gets, and the leases it holds."""
