"""Parse text, make it safe to show, derive file names from it, and log progress."""

import hashlib
import json
import logging
import re
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "escape_unprintable",
    "format_count",
    "log_progress",
    "parse_json",
    "parse_toml",
    "safe_file_names",
    "to_single_line",
]

T = TypeVar("T")

SECONDS_BETWEEN = 10.0
_JOINERS = "\u200c\u200d"  # used by Persian and Indic scripts and by emoji
_LONGEST_NAME = 40  # characters: with a suffix below 255 bytes in any script
_UNSAFE_NAME = re.compile(r"(|con|nul|aux|prn|com\d|lpt\d)")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; ValueError if that fails."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; ValueError if that fails."""
    try:
        content = tomllib.loads(text)
        repr(content)  # ValueError for integers too large to print, even in an error message
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


def to_single_line(text: str, limit: int = 500) -> str:
    """Return foreign text for a screen or a table: one line, no control codes, limited length.

    Characters that change the writing direction become spaces too: they would reverse the rest.
    """
    return "".join(letter if letter.isprintable() else " " for letter in text[:limit])


def escape_unprintable(name: str) -> str:
    """Return a name with line breaks, control codes and undecodable bytes as `\\uXXXX`.

    Different names stay different, unless a name itself contains such an escape.
    """
    return "".join(
        letter if letter.isprintable() or letter in _JOINERS else f"\\u{ord(letter):04x}"
        for letter in name
    )


def safe_file_names(names: Sequence[str]) -> dict[str, str]:
    """Map foreign names to file names without suffix: safe, readable and unique.

    Letters and digits of any script stay. A name that would become unreadable, or equal to
    another, gets a digest appended.
    """
    readable = {name: _readable(name) for name in names}
    counts = Counter(text.casefold() for text in readable.values())
    safe = {}
    for name, text in readable.items():
        if counts[text.casefold()] > 1 or _UNSAFE_NAME.fullmatch(text.casefold()):
            digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
            text = f"{text or 'client'}-{digest}"
        safe[name] = text
    return safe


def _readable(name: str) -> str:
    letters = "".join(c if c.isalnum() else "-" for c in unicodedata.normalize("NFC", name))
    return re.sub("-+", "-", letters)[:_LONGEST_NAME].strip("-")


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
