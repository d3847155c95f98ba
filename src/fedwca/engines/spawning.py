"""Worker processes start undisturbed: by Ctrl-C, and by the script that the user has written."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["undisturbed", "without_script"]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C waits, and processes started meanwhile never feel it.

    One that is interrupted while it is being made would print a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def without_script() -> Iterator[None]:
    """Processes started meanwhile do not run the main script once more.

    Python's spawn runs it in every new process, under another name; a script that calls
    `fedwca.run` at its top would then start a run in each.
    """
    main = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {
        name: main.pop(name) for name in ("__file__", "__spec__") if name in main
    }
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(hidden)
