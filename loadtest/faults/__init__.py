"""Faults: a workload, seeded faults under it, and a proof from what independent observers saw."""
