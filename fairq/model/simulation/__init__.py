"""Predicts the service of a queue's tenants under other weights, limits and slots: a model of the fair pick. No I/O."""
