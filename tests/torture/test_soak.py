"""When the soak calls memory and open files flat."""

import pytest

from torture.attack import AttackFailedError
from torture.memory import Usage
from torture.soak import MAX_GROWTH, check_flat, fit_growth


def facts(memory: list[float], files: list[int]) -> dict[str, object]:
    samples = [
        (30.0 * n, Usage(m, f, 3)) for n, (m, f) in enumerate(zip(memory, files, strict=True))
    ]
    rows = [[when, *what] for when, what in samples]
    return {"growth": fit_growth(samples), "samples": rows}


def test_memory_that_warms_up_and_then_stays_is_flat() -> None:
    check_flat(facts([300, 340, 360, 380, 380, 381, 380, 381], [8] * 8))


def test_memory_that_keeps_growing_is_not_flat() -> None:
    rising = [300 + 5.0 * n for n in range(8)]
    assert facts(rising, [8] * 8)["growth"] == pytest.approx(15)
    with pytest.raises(AttackFailedError, match=f"grew by 15.0 MiB, more than {MAX_GROWTH:g}"):
        check_flat(facts(rising, [8] * 8))


def test_files_that_are_never_closed_are_growth() -> None:
    with pytest.raises(AttackFailedError, match="open files grew from 11 to 14"):
        check_flat(facts([300.0] * 8, [8, 9, 10, 11, 12, 13, 14, 15]))


def test_a_file_that_is_open_for_a_moment_is_not_growth() -> None:
    check_flat(facts([300.0] * 8, [8, 8, 8, 8, 9, 8, 9, 8]))
