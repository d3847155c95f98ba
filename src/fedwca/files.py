"""Files that are there whole or not at all, and results that grow line by line."""

import errno
import hashlib
import json
import os
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from fedwca.leftovers import growing, remove
from fedwca.parsing import parse_json

__all__ = [
    "SEAL",
    "append_line",
    "file_digest",
    "file_names",
    "folder_at_once",
    "is_passing",
    "open_file",
    "read_json",
    "read_lines",
    "read_optional",
    "read_sealed",
    "seal",
    "unseal",
    "write_atomically",
    "write_json",
    "write_lines",
    "write_private",
]

SEAL = "sha256"  # the entry that holds a digest of all the others
_LONGEST = 40  # letters of a file's name: with its suffix below 255 bytes in any script
# What is wrong then is the disk, the network or the machine, not the file.
_PASSING = {
    *(errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE),
    *(errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN),
}
_NOT_PLAIN = re.compile(r"(|con|nul|aux|prn|com\d|lpt\d|.*-[0-9a-f]{12})")


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write beside the target and rename; `durable` makes sure that it survives a power cut."""
    with growing(path) as place:
        with place.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        place.replace(path)
        if durable:
            _sync(path.parent)


def write_json(path: Path, content: dict[str, Any], *, durable: bool = True) -> None:
    """Write a JSON file, whole or not at all."""
    write_atomically(path, json.dumps(content, indent=1).encode(), durable=durable)


def write_private(path: Path, content: bytes) -> None:
    """Write a file for the owner's eyes only, from its first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


@contextmanager
def folder_at_once(path: Path) -> Iterator[Path]:
    """A folder to fill: it appears under its name only when all is in it, and on the disk."""
    with growing(path) as place:
        remove(place)
        place.mkdir()
        yield place
        _sync(place)
        remove(path)
        place.rename(path)
        _sync(path.parent)


def _sync(folder: Path) -> None:
    """The names in a folder survive a power cut too."""
    if os.name == "posix":  # elsewhere a folder cannot be opened
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """The content with a digest of it, by which damage is noticed."""
    return {**content, SEAL: hashlib.sha256(json.dumps(content).encode()).hexdigest()}


def unseal(content: dict[str, Any]) -> dict[str, Any] | None:
    """What was sealed; None if it is not that any more."""
    rest = {name: value for name, value in content.items() if name != SEAL}
    try:
        return rest if seal(rest) == content else None
    except RecursionError:  # nested as we never do
        return None


def read_sealed(path: Path, *, older: bool = False) -> dict[str, Any] | None:
    """What was sealed in a JSON file; None if it is gone or damaged.

    `older` takes one too that has no digest, as a file of an older version.
    """
    content = read_optional(path)
    return content if older and content and SEAL not in content else unseal(content)


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Add a JSON line with its digest, on the disk before anything else happens."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(seal(line)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Write such lines anew, whole or not at all."""
    write_atomically(path, "".join(json.dumps(seal(line)) + "\n" for line in lines).encode())


def read_lines(path: Path, *, older: bool = True) -> list[dict[str, Any]]:
    """All whole result lines; one that a crash cut short or a disk damaged is left out.

    `older` takes those too that have no digest, as lines of older versions.
    """
    if not path.is_file():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            line = parse_json(text)
        except ValueError:
            continue
        if isinstance(line, dict) and (SEAL in line or not older):
            line = unseal(line)
        if isinstance(line, dict) and isinstance(line.get("round"), int):
            lines.append(line)
    return lines


def read_json(path: Path) -> Any:
    """What a JSON file says; OSError or ValueError if it cannot be read."""
    with open_file(path) as file:
        return parse_json(file.read())


def read_optional(path: Path) -> dict[str, Any]:
    """What a JSON file says; nothing if it is not there or damaged."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def open_file(path: str | Path) -> BufferedReader:
    """Open a regular file to read; of anything else, OSError.

    A pipe would keep us waiting for whoever writes into it, and a device may never end.
    """
    return open(path, "rb", opener=_regular)


def _regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # Windows does not have it
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return descriptor


def is_passing(error: BaseException) -> bool:
    """Whether a file could not be read for a reason that tells nothing of the file."""
    return isinstance(error, OSError) and error.errno in _PASSING


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    with open_file(path) as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def file_names(names: Sequence[str]) -> dict[str, str]:
    """A file's name, without suffix, for each of some foreign names: safe, readable, unique.

    Letters and digits stay, of any script; where that makes two alike, or nothing readable, a
    digest of the name is added.
    """
    plain = {name: _readable(name) for name in names}
    times = Counter(text.casefold() for text in plain.values())

    def unique(name: str) -> str:
        text = plain[name]
        # What already looks as if it had a digest gets one, so that nobody can take another's.
        if times[text.casefold()] == 1 and not _NOT_PLAIN.fullmatch(text.casefold()):
            return text
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return f"{text or 'client'}-{digest}"

    return {name: unique(name) for name in names}


def _readable(name: str) -> str:
    letters = "".join(c if c.isalnum() else "-" for c in unicodedata.normalize("NFC", name))
    return re.sub("-+", "-", letters)[:_LONGEST].strip("-")
