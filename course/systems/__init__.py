"""Many workers: engines, stale and late samples, balanced batches, reward services, the data-parallel learner, a simulated cluster."""
