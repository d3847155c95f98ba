"""Helpers for every package: errors, files, interrupts, machine, settings, text."""
