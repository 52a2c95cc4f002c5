"""What tenants of a queue would get under other weights, limits and slots: a model of the fair pick. No I/O."""
