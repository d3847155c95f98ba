"""A word to the user now and then, from work that takes long."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["Note", "printable", "silent", "told"]

Note = Callable[[str], None]
T = TypeVar("T")

SECONDS_BETWEEN = 10.0


def silent(text: str) -> None:
    """A note that nobody reads."""


def printable(text: str, limit: int = 500) -> str:
    """Words of others for a screen or a table: no codes for the terminal, no new lines, no essays.

    Marks that turn the direction of writing go too: they would turn what follows as well.
    """
    return "".join(letter if letter.isprintable() else " " for letter in text[:limit])


def told(items: Iterable[T], say: Callable[[int], str], note: Note) -> Iterator[T]:
    """The same items; every ten seconds, what `say` makes of how many are done goes to `note`."""
    last = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last > SECONDS_BETWEEN:
            note(say(done))
            last = time.monotonic()
        yield item
