"""Ctrl-C and SIGTERM stop a long command cleanly."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["StoppedError", "stop_on_signal"]

_GRACE = 2.0  # seconds that stopping may take


class StoppedError(Exception):
    """The user stopped the command.

    Attributes:
        code: exit code, 128 plus the signal's number as in a shell.
        at_once: stopped by a signal, so the process must end without delay.
    """

    def __init__(self, message: str, number: int, at_once: bool) -> None:
        super().__init__(message)
        self.code, self.at_once = 128 + number, at_once


@contextmanager
def stop_on_signal(message: str, grace: float = _GRACE) -> Iterator[None]:
    """Turn both signals into KeyboardInterrupt inside the block and `StoppedError` outside.

    A second signal within `grace` seconds is ignored: the block is stopping already.
    """
    received: list[tuple[int, float]] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not received or time.monotonic() - received[-1][1] > grace:
            received.append((number, time.monotonic()))
            raise KeyboardInterrupt

    is_main_thread = threading.current_thread() is threading.main_thread()
    numbers = [signal.SIGINT, signal.SIGTERM] if is_main_thread else []  # others get no signals
    # A shell's background job must keep ignoring Ctrl-C.
    previous = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    for number in previous:
        signal.signal(number, interrupt)
    try:
        yield
    except BaseException as error:
        # A library may have replaced the interrupt by its own exception.
        if received or isinstance(error, KeyboardInterrupt):
            first = received[0][0] if received else signal.SIGINT
            raise StoppedError(message, first, bool(received)) from None
        raise
    finally:
        for number, handler in previous.items():
            # After a stop the process is about to exit, and nothing may interrupt that.
            signal.signal(number, signal.SIG_IGN if received else handler)
