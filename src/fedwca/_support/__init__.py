"""Helpers for every package: errors, files, interrupts, machine, parsing, settings, text."""
