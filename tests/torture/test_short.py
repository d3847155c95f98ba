"""The short form of `make torture`: every attack that has one is made a few times."""

from pathlib import Path

import pytest

from attack import Attack, NotTriedError, held
from torture import ATTACKS, Tally, _told, make


@pytest.mark.parametrize("attack", [a for a in ATTACKS if a.short], ids=lambda a: a.name)
def test_attack_is_withstood(attack: Attack, tmp_path: Path) -> None:
    tally = make(attack, tmp_path / "attack", range(attack.short), short=True)
    assert tally.lost == 0, "\n".join(tally.reasons)
    assert tally.tried >= attack.short


def test_what_is_lost_is_counted_and_told(tmp_path: Path) -> None:
    def attempt(folder: Path, number: int) -> int:
        held(number != 1, "the second was lost")
        return 5

    tally = make(Attack("odd", attempt, times=3), tmp_path / "attack", range(3))
    assert (tally.tried, tally.held, tally.lost) == (11, 10, 1)
    assert "the second was lost" in tally.reasons[0]
    assert (tmp_path / "attack" / "1").exists()
    assert not (tmp_path / "attack" / "0").exists()


def test_what_never_came_to_be_tried_is_lost(tmp_path: Path) -> None:
    tally = make(Attack("late", lambda folder, number: 0, times=2), tmp_path / "attack", range(2))
    assert (tally.tried, tally.held, tally.lost) == (1, 0, 1)


def test_what_cannot_be_tried_here_is_told_and_not_lost(tmp_path: Path) -> None:
    def attempt(folder: Path, number: int) -> int:
        raise NotTriedError("there is no such disk")

    tally = make(Attack("odd", attempt, times=2), tmp_path / "attack", range(2))
    assert (tally.tried, tally.held, tally.lost) == (0, 0, 0)
    assert list(_told(tally))[1:] == ["    not tried: there is no such disk"]


def test_the_short_form_has_its_own_attempt(tmp_path: Path) -> None:
    attack = Attack("long", lambda folder, number: 9, times=1, quick=lambda folder, number: 2)
    assert make(attack, tmp_path / "short", range(1), short=True).tried == 2
    assert make(attack, tmp_path / "full", range(1)).tried == 9


def test_a_reason_is_one_line_that_fits() -> None:
    _, told = _told(Tally("odd", 1, 0, 1, 2.0, ["it said\n" + "much " * 200]))
    assert told.startswith("    it said much much")
    assert len(told) == 304


def test_names_are_apart() -> None:
    assert len({a.name for a in ATTACKS}) == len(ATTACKS)
