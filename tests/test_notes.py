"""A word every ten seconds, and none sooner."""

import pytest

from fedwca import notes
from fedwca.notes import silent, told


def test_long_work_is_told_of_and_short_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 6))  # every look at the clock is six seconds later
    monkeypatch.setattr(notes.time, "monotonic", lambda: float(next(clock)))
    said: list[str] = []
    items = list(told("abcd", lambda done: f"{done} done", said.append))
    assert items == list("abcd")
    # Looks: start 0; before a 6; before b 12, told, and noted at 18; c 24; d 30, told.
    assert said == ["1 done", "3 done"]
    assert list(told("ab", str, silent)) == ["a", "b"]
