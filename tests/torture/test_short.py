"""The short form of `make torture`: every attack that has one is made a few times."""

from pathlib import Path

import pytest

from attack import Attack, held
from torture import ATTACKS, make


@pytest.mark.parametrize("attack", [a for a in ATTACKS if a.short], ids=lambda a: a.name)
def test_attack_is_withstood(attack: Attack, tmp_path: Path) -> None:
    tally = make(attack, tmp_path / "attack", range(attack.short))
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


def test_names_are_apart() -> None:
    assert len({a.name for a in ATTACKS}) == len(ATTACKS)
