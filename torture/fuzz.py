"""Inputs that nobody would make by hand, thousands of each kind, each with a new seed.

What holds of each is in tests/fuzzing; the tests try a few of them. Here every attempt is a process
of its own, so that one that dies or hangs is told from one that is refused.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from attack import Attack, held
from fuzzing.properties import PROPERTIES

__all__ = ["ATTACKS"]

_TESTS = Path(__file__).parent.parent / "tests"
_PATIENCE = 300  # seconds for all inputs of an attempt
_RUN = """
import sys
from pathlib import Path
from fuzzing.properties import PROPERTIES, hold
(told,) = (p for p in PROPERTIES if p.name == sys.argv[1])
print("tried", hold(told, Path(sys.argv[2]), told.many, int(sys.argv[3])))
"""


def _fuzz(kind: str) -> Callable[[Path, int], int]:
    def attempt(folder: Path, number: int) -> int:
        ended = subprocess.run(
            [sys.executable, "-c", _RUN, kind, str(folder), str(number)],
            env={**os.environ, "PYTHONPATH": str(_TESTS), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
        )
        held(ended.returncode == 0, f"it ended with {ended.returncode}: {ended.stderr[-2000:]}")
        return int(ended.stdout.split()[-1])

    return attempt


# The short form is tests/fuzz.
ATTACKS = [Attack(f"fuzzed: {p.name}", _fuzz(p.name), times=1, short=0) for p in PROPERTIES]
