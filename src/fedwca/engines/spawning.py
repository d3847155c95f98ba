"""Worker processes start undisturbed: by Ctrl-C, and by the script that the user has written."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any

__all__ = ["signals_wait", "undisturbed", "without_script"]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait, and processes started meanwhile never feel Ctrl-C.

    One that is interrupted while it is being made would print a traceback.
    """
    with signals_wait(), _without_interrupts():
        yield


@contextmanager
def signals_wait() -> Iterator[None]:
    """What Python would do at a signal is done at the end.

    To block it in the main thread is not enough: the other threads still take it in its place.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    came: list[tuple[int, FrameType | None]] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in ours:
        signal.signal(number, lambda *signalled: came.append(signalled))
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for first, frame in came[:1]:
            ours[signal.Signals(first)](first, frame)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # The first process would start it, which lets interrupts through again (before Python 3.13).
    resource_tracker.ensure_running()
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
