"""Names stay apart when they are shown, and long work logs its progress."""

import logging

import pytest

from fedwca._support import text
from fedwca._support.text import (
    escape_unprintable,
    format_count,
    log_progress,
    to_single_line,
)


def test_progress_is_logged_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="fedwca")
    clock = iter(range(0, 1000, 6))  # each call of the clock is six seconds later
    monkeypatch.setattr(text.time, "monotonic", lambda: float(next(clock)))
    logger = logging.getLogger("fedwca.test")
    items = list(log_progress("abcd", lambda done: f"{done} done", logger))
    assert items == list("abcd")
    # Clock: start 0; before a 6; before b 12, logged, and again 18; c 24; d 30, logged.
    assert caplog.messages == ["1 done", "3 done"]


def test_short_work_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="fedwca")
    assert list(log_progress("ab", str, logging.getLogger("fedwca.test"))) == ["a", "b"]
    assert caplog.messages == []


def test_escaped_names_stay_apart_and_readable() -> None:
    assert escape_unprintable("a\nb") != escape_unprintable("a\\nb") == "a\\nb"
    assert escape_unprintable("\u202e📷") == "\\u202e📷"
    assert escape_unprintable("a\nb\x1b[31mc\udcffd Straße 猫") == (
        r"a\u000ab\u001b[31mc\udcffd Straße 猫"
    )


def test_printable_is_one_line_without_control_codes() -> None:
    assert to_single_line("a\nb\x1b[31m\u202ec") == "a b [31m c"
    assert to_single_line("word" * 1000, 10) == "wordwordwo"


def test_a_count_has_its_plural() -> None:
    assert [format_count(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
