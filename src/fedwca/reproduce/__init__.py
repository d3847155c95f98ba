"""Reproduce the tables of the paper from runs."""
