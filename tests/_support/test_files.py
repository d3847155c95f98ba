"""Atomic writes, temporary files and checksums."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedwca._support import files
from fedwca._support.files import (
    add_checksum,
    open_regular_file,
    read_json,
    read_lines,
    read_optional_json,
    remove_stale_files,
    verify_checksum,
    write_folder_atomically,
)


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


def test_an_optional_file_is_empty_if_missing_or_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"site": "Köln"}', encoding="utf-8")
    assert read_json(path) == read_optional_json(path) == {"site": "Köln"}
    for text in ("{", "[1, 2]", "[" * 100_000):
        path.write_text(text)
        assert read_optional_json(path) == {}
    assert read_optional_json(tmp_path) == read_optional_json(tmp_path / "none.json") == {}
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")


# --- temporary files ----------------------------------------------------------------------------

LONG_AGO = 10**9  # in 2001
OF_ANOTHER = "a.0123abcd-7.tmp"


@pytest.fixture
def dead() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def named(pid: int) -> str:
    return f"a.{files._MACHINE}-{pid}.tmp"


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_only_files_of_dead_processes_on_this_machine_are_stale(tmp_path: Path, dead: int) -> None:
    kept = {named(os.getppid()), OF_ANOTHER, "a.tmp", f"a.{files._MACHINE}-{10**30}.tmp"}
    (tmp_path / "below").mkdir()
    for name in {named(dead), *kept}:
        (tmp_path / "below" / name).touch()
    remove_stale_files(tmp_path)
    assert left(tmp_path / "below") == kept


def test_after_a_day_all_temporary_files_are_stale_and_no_others(tmp_path: Path) -> None:
    for name in (named(os.getppid()), OF_ANOTHER, "a.tmp", "a.7.tmp"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (LONG_AGO, LONG_AGO))
    remove_stale_files(tmp_path)
    assert left(tmp_path) == {"a.tmp", "a.7.tmp"}


def test_in_a_locked_folder_all_temporary_files_are_stale(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for folder in (tmp_path, tmp_path / "below"):
        (folder / OF_ANOTHER).mkdir()
        (folder / "a.tmp").touch()
    remove_stale_files(tmp_path, locked=True)
    assert left(tmp_path) == {"below"}
    assert left(tmp_path / "below") == {OF_ANOTHER, "a.tmp"}


def test_one_file_that_cannot_be_removed_does_not_keep_the_others(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{letter}{named(dead)}" for letter in "bcd"]
    for name in names:
        (tmp_path / name).touch()
    remove = files.remove

    def refused(path: Path) -> None:
        if path.name == names[1]:
            raise PermissionError(path)
        remove(path)

    monkeypatch.setattr(files, "remove", refused)
    remove_stale_files(tmp_path)
    assert left(tmp_path) == {names[1]}
