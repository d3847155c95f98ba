"""Count the source files whose functions run for a command: how far a reader has to walk.

    python tools/count_files.py fedwca run --set training.rounds=1 --set run.workers=1
    python tools/count_files.py --within exchange pytest -p no:cacheprovider tests/engines -k NAME

Modules that are only imported do not count. One process is watched, with all its threads. With
`--within NAME` only what runs while a function of that name runs counts.
"""

import runpy
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import fedwca

SOURCE = str(Path(fedwca.__file__).parent)
CO_OPTIMIZED = 0x1  # set for functions, not for module and class bodies


class Watch:
    """Collects the files of the functions that are called."""

    def __init__(self, within: str) -> None:
        self.files: set[str] = set()
        self._within, self._depth = within, 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(SOURCE):
            return
        if code.co_name == self._within:
            self._depth += {"call": 1, "return": -1}.get(event, 0)
        # A comprehension in a module's body is a frame of its own, but no function of a command.
        function = code.co_flags & CO_OPTIMIZED and not code.co_name.startswith("<")
        if event == "call" and function and (self._depth or not self._within):
            self.files.add(code.co_filename)


def main() -> int:
    """Run the command given as arguments and list the files it ran, with totals by package."""
    words = sys.argv[1:]
    within = words[1] if words[0] == "--within" else ""
    sys.argv = words[2:] if within else words
    watch = Watch(within)
    threading.setprofile(watch)
    sys.setprofile(watch)
    with suppress(SystemExit):
        if sys.argv[0] == "fedwca":
            from fedwca.cli import main as command

            command()
        else:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    sys.setprofile(None)
    threading.setprofile(None)
    names = sorted(str(Path(name).relative_to(SOURCE)) for name in watch.files)
    packages = Counter(Path(name).parts[0] if "/" in name else "(top)" for name in names)
    print("\n".join(names), file=sys.stderr)
    print(f"{len(names)} files: " + ", ".join(f"{p} {n}" for p, n in sorted(packages.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
