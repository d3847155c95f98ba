"""The harness itself: what it must notice, however well it is hidden."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from fedwca.errors import UserError
from fuzzing.door import Place, fails_with, within_bounds

MANY = 2 << 30  # bytes


def refuse() -> None:
    raise UserError("it is refused: give another")


def hang() -> None:
    time.sleep(20)


def take() -> None:
    assert bytearray(b"x") * MANY  # used, not only asked for


def take_without_end() -> None:
    assert bytearray(1 << 42)


@pytest.mark.parametrize("caught", [Exception, BaseException])
def test_a_hang_is_no_refusal_whoever_catches_it(caught: type[BaseException]) -> None:
    def act() -> None:
        with contextlib.suppress(caught):
            hang()
        refuse()

    with pytest.raises(AssertionError, match="it hangs"), within_bounds(seconds=1):
        act()


def test_memory_is_measured_where_the_input_is_refused() -> None:
    def act() -> None:
        take()
        refuse()

    with pytest.raises(AssertionError, match="it took 2,"):
        fails_with(UserError, act)
    fails_with(UserError, refuse)


def test_a_want_of_memory_is_no_refusal() -> None:
    def act() -> None:
        try:
            take_without_end()
        except Exception:
            raise UserError("it is refused: give another") from None

    with pytest.raises(AssertionError, match="without end"):
        fails_with(UserError, act)


@pytest.mark.parametrize(
    ("harm", "told"), [(take, "it took 2,"), (take_without_end, "without end")]
)
def test_a_command_that_refuses_is_looked_at_too(
    tmp_path: Path, harm: Callable[[], None], told: str
) -> None:
    def read(*_: object) -> None:
        try:
            harm()
        finally:
            refuse()

    found = mock.patch("fedwca.report.runs.find_runs", read)
    with found, pytest.raises(AssertionError, match=told):
        Place(tmp_path).fedwca("list")


def test_whatever_changes_beside_a_commands_own_is_noticed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (place.work / "link").symlink_to("one")
    before = place.listing()
    (tmp_path / "canary").write_text("unTouched")
    assert place.listing() != before
    (tmp_path / "canary").write_text("untouched")
    assert place.listing() == before
    (place.work / "link").unlink()
    (place.work / "link").symlink_to("two")
    assert place.listing() != before
