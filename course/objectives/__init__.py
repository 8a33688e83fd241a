"""Objectives: pure functions from scores and log-probabilities to a scalar to minimise. No model, no sampling, no optimiser."""
