"""A word to the user now and then, from work that takes long."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["Note", "printable", "silent", "told", "written_out"]

Note = Callable[[str], None]
T = TypeVar("T")

SECONDS_BETWEEN = 10.0
_JOINERS = "\u200c\u200d"  # of Persian and Indic scripts, and of emoji


def silent(text: str) -> None:
    """A note that nobody reads."""


def printable(text: str, limit: int = 500) -> str:
    """Words of others for a screen or a table: no codes for the terminal, no new lines, no essays.

    Marks that turn the direction of writing go too: they would turn what follows as well.
    """
    return "".join(letter if letter.isprintable() else " " for letter in text[:limit])


def written_out(name: str) -> str:
    """A name without line breaks, codes for the terminal or bytes that are no text.

    Such a letter is shown by its number, so two names stay two, but for one that spells it out.
    """
    return "".join(
        letter if letter.isprintable() or letter in _JOINERS else f"\\u{ord(letter):04x}"
        for letter in name
    )


def told(items: Iterable[T], say: Callable[[int], str], note: Note) -> Iterator[T]:
    """The same items; every ten seconds, what `say` makes of how many are done goes to `note`."""
    last = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last > SECONDS_BETWEEN:
            note(say(done))
            last = time.monotonic()
        yield item
