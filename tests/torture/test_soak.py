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


@pytest.mark.parametrize(
    ("memory", "files"),
    [
        ([300, 340, 360, 380, 380, 381, 380, 381], [8] * 8),  # warms up
        ([300.0] * 8, [8, 8, 8, 8, 9, 8, 9, 8]),  # a file is open for a moment
    ],
)
def test_what_is_flat(memory: list[float], files: list[int]) -> None:
    check_flat(facts(memory, files))


RISING = [300 + 5.0 * n for n in range(8)]


@pytest.mark.parametrize(
    ("memory", "files", "message"),
    [
        (RISING, [8] * 8, f"grew by 15.0 MiB, more than {MAX_GROWTH:g}"),
        ([300.0] * 8, [8, 9, 10, 11, 12, 13, 14, 15], "open files grew from 11 to 14"),
    ],
)
def test_what_is_not_flat(memory: list[float], files: list[int], message: str) -> None:
    with pytest.raises(AttackFailedError, match=message):
        check_flat(facts(memory, files))
