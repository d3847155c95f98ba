"""Files that are there whole or not at all, and results that grow line by line."""

import hashlib
import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "append_line",
    "file_digest",
    "file_names",
    "read_lines",
    "write_atomically",
    "write_json",
    "write_private",
]

_LONGEST = 40  # letters of a file's name: with its suffix below 255 bytes in any script
_NOT_PLAIN = re.compile(r"(|con|nul|aux|prn|com\d|lpt\d|.*-[0-9a-f]{12})")


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write beside the target and rename; `durable` makes sure that it survives a power cut."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: dict[str, Any], *, durable: bool = True) -> None:
    """Write a JSON file, whole or not at all."""
    write_atomically(path, json.dumps(content, indent=1).encode(), durable=durable)


def write_private(path: Path, content: bytes) -> None:
    """Write a file for the owner's eyes only, from its first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Add a JSON line, on the disk before anything else happens."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole result lines; one that a crash cut short or a disk damaged is left out."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("round"), int):
            lines.append(line)
    return lines


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
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
