"""What the soak calls flat."""

import pytest

from attack import LostError
from memory import Held
from soak import RISE, _rise, check


def facts(memory: list[float], files: list[int]) -> dict[str, object]:
    samples = [
        (30.0 * n, Held(m, f, 3)) for n, (m, f) in enumerate(zip(memory, files, strict=True))
    ]
    rows = [[when, *what] for when, what in samples]
    return {"rise": _rise(samples), "samples": rows}


def test_what_warms_up_and_then_stays_is_flat() -> None:
    check(facts([300, 340, 360, 380, 380, 381, 380, 381], [8] * 8))


def test_memory_that_goes_on_rising_is_not() -> None:
    rising = [300 + 5.0 * n for n in range(8)]
    assert facts(rising, [8] * 8)["rise"] == pytest.approx(15)
    with pytest.raises(LostError, match=f"rose by 15.0 MiB, more than {RISE:g}"):
        check(facts(rising, [8] * 8))


def test_files_that_are_never_closed_are_not() -> None:
    with pytest.raises(LostError, match="open files grew from 11 to 14"):
        check(facts([300.0] * 8, [8, 9, 10, 11, 12, 13, 14, 15]))


def test_a_file_that_is_open_for_a_moment_is_no_growth() -> None:
    check(facts([300.0] * 8, [8, 8, 8, 8, 9, 8, 9, 8]))
