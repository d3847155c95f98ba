"""The command line."""

from fedwca.cli.entry import main

__all__ = ["main"]
