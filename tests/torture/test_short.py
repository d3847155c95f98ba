"""The short form of `make torture`: every attack that has one runs a few times."""

from pathlib import Path

import pytest

from torture.__main__ import ATTACKS, Tally, format_tally, run_attack
from torture.attack import Attack, check


@pytest.mark.parametrize("attack", [a for a in ATTACKS if a.short_times], ids=lambda a: a.name)
def test_attack_is_withstood(attack: Attack, tmp_path: Path) -> None:
    tally = run_attack(attack, tmp_path / "attack", range(attack.short_times), short=True)
    assert tally.failed == 0, "\n".join(tally.reasons)
    assert tally.attempts >= attack.short_times


def test_failures_are_counted_with_their_reason(tmp_path: Path) -> None:
    def attempt(folder: Path, number: int) -> int:
        check(number != 1, "the second failed")
        return 5

    tally = run_attack(Attack("odd", attempt, times=3), tmp_path / "attack", range(3))
    assert (tally.attempts, tally.passed, tally.failed) == (11, 10, 1)
    assert "the second failed" in tally.reasons[0]
    assert (tmp_path / "attack" / "1").exists()
    assert not (tmp_path / "attack" / "0").exists()


def test_an_attack_that_does_nothing_has_failed(tmp_path: Path) -> None:
    tally = run_attack(
        Attack("late", lambda folder, number: 0, times=2), tmp_path / "attack", range(2)
    )
    assert (tally.attempts, tally.passed, tally.failed) == (1, 0, 1)


def test_the_short_form_has_its_own_attempt(tmp_path: Path) -> None:
    attack = Attack(
        "long", lambda folder, number: 9, times=1, short_attempt=lambda folder, number: 2
    )
    assert run_attack(attack, tmp_path / "short", range(1), short=True).attempts == 2
    assert run_attack(attack, tmp_path / "full", range(1)).attempts == 9


def test_a_tally_is_a_table_row_and_a_line_for_each_reason() -> None:
    reasons = ["line\n" + "much " * 200]
    row, line = format_tally(Tally("killed | resumed", 1200, 1199, 1, 2.0, reasons))
    assert row == "| killed \\| resumed | 1,200 | 1,199 | 1 | 2 |"
    assert line.startswith("    line much much")
    assert len(line) <= 304


def test_names_are_unique() -> None:
    assert len({a.name for a in ATTACKS}) == len(ATTACKS)
