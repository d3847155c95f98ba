"""Secure aggregation: the server gets sums of models and never a single model."""
