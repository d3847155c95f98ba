"""Fuzz every kind of input with thousands of examples and a new seed.

    python -m torture.fuzz NAME FOLDER SEED

tries one kind. The properties are in tests/fuzz, whose tests try a few examples. Here every attempt
is a process of its own, so that a crash or a hang differs from a rejected input.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.properties import PROPERTIES, check_property
from torture.attack import Attack
from torture.memory import run_module

__all__ = ["ATTACKS"]

_TIMEOUT = 300  # seconds for all inputs of an attempt


def _fuzz(name: str) -> Callable[[Path, int], int]:
    def attempt(folder: Path, number: int) -> int:
        tried: int = run_module(
            "torture.fuzz", name, folder, number, timeout=_TIMEOUT, OMP_NUM_THREADS="1"
        )
        return tried

    return attempt


# The short form is tests/fuzz.
ATTACKS = [Attack(f"fuzzed {p.name}", _fuzz(p.name), times=1, short_times=0) for p in PROPERTIES]

if __name__ == "__main__":
    (chosen,) = (p for p in PROPERTIES if p.name == sys.argv[1])
    print(check_property(chosen, Path(sys.argv[2]), chosen.many, int(sys.argv[3])))
