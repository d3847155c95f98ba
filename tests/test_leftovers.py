"""What is swept and what is not: files of the dead, of the living, and of others."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fedwca import leftovers
from fedwca.leftovers import growing, sweep, temporary

LONG_AGO = 10**9  # in 2001
OF_ANOTHER = "a.0123abcd-7.tmp"


@pytest.fixture
def dead() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def named(pid: int) -> str:
    return f"a.{leftovers._HERE}-{pid}.tmp"


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_only_what_the_dead_of_this_machine_left_is_swept(tmp_path: Path, dead: int) -> None:
    kept = {named(os.getppid()), OF_ANOTHER, "a.tmp", f"a.{leftovers._HERE}-{10**30}.tmp"}
    (tmp_path / "below").mkdir()
    for name in {named(dead), *kept}:
        (tmp_path / "below" / name).touch()
    sweep(tmp_path)
    assert left(tmp_path / "below") == kept


def test_a_day_later_all_of_ours_is_swept_and_nothing_of_others(tmp_path: Path) -> None:
    for name in (named(os.getppid()), OF_ANOTHER, "a.tmp", "a.7.tmp"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (LONG_AGO, LONG_AGO))
    sweep(tmp_path)
    assert left(tmp_path) == {"a.tmp", "a.7.tmp"}


def test_what_we_are_writing_is_not_swept_and_what_had_our_number_before_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary(tmp_path / "b").touch()
    monkeypatch.chdir(tmp_path)  # a path may be told in two ways
    with growing(Path("a")) as place:
        place.touch()
        sweep(tmp_path)
        assert left(tmp_path) == {place.name}
    assert left(tmp_path) == set()


def test_what_a_read_only_disk_kept_us_from_removing_is_swept_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(leftovers, "remove", refused)
        with growing(tmp_path / "a") as place:
            place.touch()
            raise KeyboardInterrupt  # and that it stays
    assert left(tmp_path) == {place.name}
    sweep(tmp_path)
    assert left(tmp_path) == set()


def test_in_a_locked_folder_whatever_is_half_written_is_swept(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for folder in (tmp_path, tmp_path / "below"):
        (folder / OF_ANOTHER).mkdir()
        (folder / "a.tmp").touch()
    sweep(tmp_path, locked=True)
    assert left(tmp_path) == {"below"}
    assert left(tmp_path / "below") == {OF_ANOTHER, "a.tmp"}


def test_what_may_not_be_removed_keeps_nothing_else_from_being_swept(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{letter}{named(dead)}" for letter in "bcd"]
    for name in names:
        (tmp_path / name).touch()
    remove = leftovers.remove

    def refused(path: Path) -> None:
        if path.name == names[1]:
            raise PermissionError(path)
        remove(path)

    monkeypatch.setattr(leftovers, "remove", refused)
    sweep(tmp_path)
    assert left(tmp_path) == {names[1]}


def test_a_folder_that_vanishes_meanwhile_is_no_error(
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
    sweep(tmp_path)
    assert left(tmp_path) == set()
