"""Files that are there whole or not at all, and results that grow line by line."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

__all__ = ["append_line", "file_digest", "read_lines", "write_atomically", "write_json"]


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
