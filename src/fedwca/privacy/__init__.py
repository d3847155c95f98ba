"""Differential privacy of what clients send: the mechanism and its accounting."""
