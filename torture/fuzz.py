"""Fuzz every kind of input with thousands of examples and a new seed.

The properties are in tests/fuzz, whose tests try a few examples. Here every attempt is a process of
its own, so that a crash or a hang differs from a rejected input.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.properties import PROPERTIES
from torture import module_environment
from torture.attack import Attack, check

__all__ = ["ATTACKS"]

_TIMEOUT = 300  # seconds for all inputs of an attempt
_RUN = """
import sys
from pathlib import Path
from tests.fuzz.properties import PROPERTIES, check_property
(chosen,) = (p for p in PROPERTIES if p.name == sys.argv[1])
print("tried", check_property(chosen, Path(sys.argv[2]), chosen.many, int(sys.argv[3])))
"""


def _fuzz(kind: str) -> Callable[[Path, int], int]:
    def attempt(folder: Path, number: int) -> int:
        done = subprocess.run(
            [sys.executable, "-c", _RUN, kind, str(folder), str(number)],
            env=module_environment(OMP_NUM_THREADS="1"),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
        )
        check(done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}")
        return int(done.stdout.split()[-1])

    return attempt


# The short form is tests/fuzz.
ATTACKS = [Attack(f"fuzzed {p.name}", _fuzz(p.name), times=1, short_times=0) for p in PROPERTIES]
