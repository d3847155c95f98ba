"""Which temporary files are stale: those of dead and living processes, and of others."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fedwca._support import temporary_files as temporary_files
from fedwca._support.temporary_files import remove_stale_files, temporary_path, temporary_target

LONG_AGO = 10**9  # in 2001
OF_ANOTHER = "a.0123abcd-7.tmp"


@pytest.fixture
def dead() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def named(pid: int) -> str:
    return f"a.{temporary_files._MACHINE}-{pid}.tmp"


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_only_files_of_dead_processes_on_this_machine_are_stale(tmp_path: Path, dead: int) -> None:
    kept = {named(os.getppid()), OF_ANOTHER, "a.tmp", f"a.{temporary_files._MACHINE}-{10**30}.tmp"}
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


def test_files_in_use_are_kept_and_those_of_an_earlier_process_with_our_number_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary_path(tmp_path / "b").touch()
    monkeypatch.chdir(tmp_path)  # the same path, relative
    with temporary_target(Path("a")) as place:
        place.touch()
        remove_stale_files(tmp_path)
        assert left(tmp_path) == {place.name}
    assert left(tmp_path) == set()


def test_files_that_a_read_only_disk_kept_are_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(temporary_files, "remove", refused)
        with temporary_target(tmp_path / "a") as place:
            place.touch()
            raise KeyboardInterrupt  # and that it stays
    assert left(tmp_path) == {place.name}
    remove_stale_files(tmp_path)
    assert left(tmp_path) == set()


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
    remove = temporary_files.remove

    def refused(path: Path) -> None:
        if path.name == names[1]:
            raise PermissionError(path)
        remove(path)

    monkeypatch.setattr(temporary_files, "remove", refused)
    remove_stale_files(tmp_path)
    assert left(tmp_path) == {names[1]}


def test_a_folder_that_vanishes_meanwhile_is_ignored(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    (tmp_path / named(dead)).mkdir()
    (tmp_path / named(dead) / "inside").mkdir()
    walk = os.walk

    def slowly(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for found in walk(folder):
            if (tmp_path / "gone").exists():
                (tmp_path / "gone").rmdir()
            yield found

    monkeypatch.setattr(os, "walk", slowly)
    remove_stale_files(tmp_path)
    assert left(tmp_path) == set()
