"""Safe file names, atomic writes and checksums."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fedwca._support.files import (
    add_checksum,
    open_regular_file,
    read_lines,
    safe_file_names,
    verify_checksum,
    write_folder_atomically,
)

HOSTILE = [
    *("<script>alert(1)</script>", "../../etc/passwd", "a\nb", "\u202ertl", "😀", "", ".", "-rf"),
    *("x" * 300, "x" * 299, "א" * 300, "𝒜" * 300, "CON", "nul", "\x00", "\udcff"),
]


def test_ordinary_names_stay_readable() -> None:
    names = ["photo/0", "photo/1", "Zürich Süd", "dock_camera"]
    assert list(safe_file_names(names).values()) == [
        "photo-0",
        "photo-1",
        "Zürich-Süd",
        "dock-camera",
    ]


def test_names_that_would_be_the_same_file_stay_apart() -> None:
    names = ["a/b", "a b", "A-B", "a:b"]
    found = list(safe_file_names(names).values())
    assert len({name.casefold() for name in found}) == 4
    assert all(name.casefold().startswith("a-b-") for name in found)


def test_no_name_can_equal_the_file_name_of_another() -> None:
    first = safe_file_names(["a/b", "a b"])["a/b"]
    found = safe_file_names(["a/b", "a b", first])
    assert found["a/b"] == first
    assert len(set(found.values())) == 3


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_any_name_makes_a_file_in_its_folder(tmp_path: Path, name: str) -> None:
    found = safe_file_names([name])[name]
    path = tmp_path / f"{found}.safetensors.1234567.tmp"
    path.write_bytes(b"")
    assert os.listdir(tmp_path) == [path.name]
    assert found == safe_file_names([name])[name]
    assert not found.startswith(("-", "."))


def test_hostile_names_stay_apart() -> None:
    found = safe_file_names(HOSTILE)
    assert len({name.casefold() for name in found.values()}) == len(HOSTILE)


def test_a_folder_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with write_folder_atomically(target) as place:
        (place / "old").touch()
    with pytest.raises(FileNotFoundError), write_folder_atomically(target) as place:
        (place / "no" / "such").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["target", "old"]
    with write_folder_atomically(target) as place:
        (place / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["target", "new"]


@pytest.mark.parametrize("content", [{}, {"round": 1, "ü": [1.5, float("inf"), None, {"1": ()}]}])
def test_only_content_with_its_own_checksum_is_accepted(content: dict[str, Any]) -> None:
    written = json.loads(json.dumps(add_checksum(content)))
    assert verify_checksum(written) == json.loads(json.dumps(content))
    assert verify_checksum({**written, "more": 0}) is None
    assert verify_checksum(content) is None


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular_file(tmp_path / name)
    (tmp_path / "file").write_bytes(b"x")
    with open_regular_file(tmp_path / "file") as file:
        assert file.read() == b"x"


def test_unparsable_lines_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("[" * 100_000 + '\n{"round": 1}\n')
    assert read_lines(path) == [{"round": 1}]
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert read_lines(tmp_path / "zero") == []
