"""Files that others have named, that appear at once, and that notice damage."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fedwca.files import file_names, folder_at_once, open_file, read_lines, seal, unseal

HOSTILE = [
    *("<script>alert(1)</script>", "../../etc/passwd", "a\nb", "\u202ertl", "😀", "", ".", "-rf"),
    *("x" * 300, "x" * 299, "א" * 300, "𝒜" * 300, "CON", "nul", "\x00", "\udcff"),
]


def test_ordinary_names_stay_readable() -> None:
    names = ["photo/0", "photo/1", "Zürich Süd", "dock_camera"]
    assert list(file_names(names).values()) == ["photo-0", "photo-1", "Zürich-Süd", "dock-camera"]


def test_names_that_would_be_one_file_stay_apart() -> None:
    names = ["a/b", "a b", "A-B", "a:b"]
    found = list(file_names(names).values())
    assert len({name.casefold() for name in found}) == 4
    assert all(name.casefold().startswith("a-b-") for name in found)


def test_nobody_can_take_anothers_name() -> None:
    first = file_names(["a/b", "a b"])["a/b"]
    found = file_names(["a/b", "a b", first])
    assert found["a/b"] == first
    assert len(set(found.values())) == 3


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_any_name_makes_a_file_in_its_folder(tmp_path: Path, name: str) -> None:
    found = file_names([name])[name]
    path = tmp_path / f"{found}.safetensors.1234567.tmp"
    path.write_bytes(b"")
    assert os.listdir(tmp_path) == [path.name]
    assert found == file_names([name])[name]
    assert not found.startswith(("-", "."))


def test_all_hostile_names_at_once_are_apart() -> None:
    found = file_names(HOSTILE)
    assert len({name.casefold() for name in found.values()}) == len(HOSTILE)


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with folder_at_once(target) as place:
        (place / "old").touch()
    with pytest.raises(FileNotFoundError), folder_at_once(target) as place:
        (place / "no" / "such").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["target", "old"]
    with folder_at_once(target) as place:
        (place / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["target", "new"]


@pytest.mark.parametrize("content", [{}, {"round": 1, "ü": [1.5, float("inf"), None, {"1": ()}]}])
def test_what_is_sealed_comes_back_and_nothing_else(content: dict[str, Any]) -> None:
    written = json.loads(json.dumps(seal(content)))
    assert unseal(written) == json.loads(json.dumps(content))
    assert unseal({**written, "more": 0}) is None
    assert unseal(content) is None


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(OSError, match="not a regular file"):
            open_file(tmp_path / name)
    (tmp_path / "file").write_bytes(b"x")
    with open_file(tmp_path / "file") as file:
        assert file.read() == b"x"


def test_lines_that_no_parser_bears_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("[" * 100_000 + '\n{"round": 1}\n')
    assert read_lines(path) == [{"round": 1}]
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert read_lines(tmp_path / "zero") == []
