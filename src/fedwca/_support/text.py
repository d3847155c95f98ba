"""Text that is safe to show, and progress of long work in the log."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["escape_unprintable", "format_count", "log_progress", "to_single_line"]

T = TypeVar("T")

SECONDS_BETWEEN = 10.0
_JOINERS = "\u200c\u200d"  # used by Persian and Indic scripts and by emoji


def to_single_line(text: str, limit: int = 500) -> str:
    """Return foreign text for a screen or a table: one line, no control codes, not endless.

    Characters that change the writing direction become spaces too: they would turn what follows.
    """
    return "".join(letter if letter.isprintable() else " " for letter in text[:limit])


def escape_unprintable(name: str) -> str:
    """Return a name with line breaks, control codes and undecodable bytes as `\\uXXXX`.

    Two names stay two, except for a name that spells such an escape out.
    """
    return "".join(
        letter if letter.isprintable() or letter in _JOINERS else f"\\u{ord(letter):04x}"
        for letter in name
    )


def format_count(number: int, noun: str) -> str:
    """Return "1 round", "2 rounds"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def log_progress(
    items: Iterable[T], describe: Callable[[int], str], logger: logging.Logger
) -> Iterator[T]:
    """Yield the items; every ten seconds, log `describe(number of items done)`."""
    last = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last > SECONDS_BETWEEN:
            logger.info(describe(done))
            last = time.monotonic()
        yield item
