"""The demonstration: the same real work first-in-first-out and fair, and a proof that each task ran exactly once."""
