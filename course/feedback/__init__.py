"""Feedback: reward models, annotators and judges, which questions to ask, and how far a score may be believed."""
