"""The harness notices hangs, memory and changed files even if the code under test hides them."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from fedwca._support.errors import UserError
from tests.fuzz.harness import Sandbox, fails_with, within_bounds

MANY = 2 << 30  # bytes


def reject() -> None:
    raise UserError("rejected")


def hang() -> None:
    time.sleep(20)


def use_memory() -> None:
    assert bytearray(b"x") * MANY  # used, not only asked for


def request_unbounded_memory() -> None:
    assert bytearray(1 << 42)


@pytest.mark.parametrize("caught", [Exception, BaseException])
def test_a_hang_is_noticed_if_the_alarm_is_caught(caught: type[BaseException]) -> None:
    def act() -> None:
        with contextlib.suppress(caught):
            hang()
        reject()

    with pytest.raises(AssertionError, match="it hangs"), within_bounds(seconds=1):
        act()


def test_memory_is_measured_if_the_input_is_rejected() -> None:
    def act() -> None:
        use_memory()
        reject()

    with pytest.raises(AssertionError, match="it used 2,"):
        fails_with(UserError, act)
    fails_with(UserError, reject)


def test_out_of_memory_is_noticed_if_the_input_is_rejected() -> None:
    def act() -> None:
        try:
            request_unbounded_memory()
        except Exception:
            raise UserError("rejected") from None

    with pytest.raises(AssertionError, match="unbounded memory"):
        fails_with(UserError, act)


@pytest.mark.parametrize(
    ("harm", "message"),
    [(use_memory, "it used 2,"), (request_unbounded_memory, "unbounded memory")],
)
def test_a_command_that_rejects_its_input_is_measured_too(
    tmp_path: Path, harm: Callable[[], None], message: str
) -> None:
    def read(*_: object) -> None:
        try:
            harm()
        finally:
            reject()

    found = mock.patch("fedwca.cli.results.find_runs", read)
    with found, pytest.raises(AssertionError, match=message):
        Sandbox(tmp_path).fedwca("list")


def test_changed_files_outside_the_commands_own_folders_are_noticed(tmp_path: Path) -> None:
    place = Sandbox(tmp_path)
    (place.work / "link").symlink_to("one")
    before = place.listing()
    (tmp_path / "canary").write_text("unTouched")
    assert place.listing() != before
    (tmp_path / "canary").write_text("untouched")
    assert place.listing() == before
    (place.work / "link").unlink()
    (place.work / "link").symlink_to("two")
    assert place.listing() != before
