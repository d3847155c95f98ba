"""Readers of the files that people have."""
