"""The same work done by what else a user might pick: each peer in an environment of its own, at its usual best."""
