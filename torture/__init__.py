"""Fault injection: kills, full disks, wrong replies, fuzzed inputs. Run `python -m torture`."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent  # `torture` and `tests` are packages below it


def module_command(name: str, *arguments: object) -> list[str]:
    """Return the command that runs one of our modules in a process of its own."""
    return [sys.executable, "-m", name, *map(str, arguments)]


def module_environment(**variables: str) -> dict[str, str]:
    """Return an environment in which such a process finds our packages."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, **variables}
