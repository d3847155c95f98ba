"""Ctrl-C and SIGTERM stop a long command in good order."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["GOES_ON", "StoppedError", "stoppable", "watched"]

GOES_ON = "stopped; the same command goes on from where it was"
_DEAF = 2.0  # seconds that stopping may take
_SIGPIPE = 13  # which Windows does not have


class StoppedError(Exception):
    """The user has stopped the command; the code is what a shell would tell of the signal.

    `at_once`: by a signal, so that the process is to end without delay.
    """

    def __init__(self, sentence: str, number: int, at_once: bool) -> None:
        super().__init__(sentence)
        self.code, self.at_once = 128 + number, at_once


@contextmanager
def stoppable(sentence: str, deaf: float = _DEAF) -> Iterator[None]:
    """Both signals raise KeyboardInterrupt here, which leaves as a `StoppedError`.

    Whoever presses again within `deaf` seconds only hastens: what is being ended goes on.
    """
    asked: list[tuple[int, float]] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not asked or time.monotonic() - asked[-1][1] > deaf:
            asked.append((number, time.monotonic()))
            raise KeyboardInterrupt

    here = threading.current_thread() is threading.main_thread()  # where alone they are heard
    heard = [signal.SIGINT, signal.SIGTERM] if here else []
    # A background job of a shell is to ignore Ctrl-C.
    before = {n: signal.getsignal(n) for n in heard if signal.getsignal(n) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    except BaseException as error:
        # A library may have made something else of the interrupt.
        if asked or isinstance(error, KeyboardInterrupt):
            first = asked[0][0] if asked else signal.SIGINT
            raise StoppedError(sentence, first, bool(asked)) from None
        raise
    finally:
        for number, handler in before.items():
            # Stopped, the process is about to end, and Python's way out is not to be cut short.
            signal.signal(number, signal.SIG_IGN if asked else handler)


@contextmanager
def watched(sentence: str) -> Iterator[None]:
    """Work that tells how it goes: whoever stops reading, as in `… | head -1`, stops it."""
    try:
        yield
    except BrokenPipeError:
        told = f"nobody reads the output any more: {sentence}"
        raise StoppedError(told, _SIGPIPE, at_once=False) from None
