"""Parsers, names that stay apart when shown or used for files, and the log of long work."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedwca._support import text
from fedwca._support.text import (
    escape_unprintable,
    format_count,
    log_progress,
    parse_json,
    parse_toml,
    safe_file_names,
    to_single_line,
)

HOSTILE = [
    *("<script>alert(1)</script>", "../../etc/passwd", "a\nb", "\u202ertl", "😀", "", ".", "-rf"),
    *("x" * 300, "x" * 299, "א" * 300, "𝒜" * 300, "CON", "nul", "\x00", "\udcff"),
]


def test_ordinary_names_stay_readable() -> None:
    names = ["photo/0", "photo/1", "Zürich Süd", "dock_camera"]
    found = list(safe_file_names(names).values())
    assert found == ["photo-0", "photo-1", "Zürich-Süd", "dock-camera"]


def test_names_that_would_be_the_same_file_stay_apart() -> None:
    names = ["a/b", "a b", "A-B", "a:b"]
    found = list(safe_file_names(names).values())
    assert len({name.casefold() for name in found}) == 4
    assert all(name.casefold().startswith("a-b-") for name in found)


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_any_name_makes_a_file_in_its_folder(tmp_path: Path, name: str) -> None:
    found = safe_file_names([name])[name]
    path = tmp_path / f"{found}.safetensors.1234567.tmp"
    path.write_bytes(b"")
    assert os.listdir(tmp_path) == [path.name]
    assert not found.startswith(("-", "."))


def test_hostile_names_stay_apart() -> None:
    found = safe_file_names(HOSTILE)
    assert len({name.casefold() for name in found.values()}) == len(HOSTILE)


DEEP = "[" * 100_000 + "]" * 100_000


def test_valid_json_and_toml_are_parsed() -> None:
    assert parse_json('{"α": [1, 2.5, null]}') == {"α": [1, 2.5, None]}
    assert parse_json('{"α": 1}'.encode()) == {"α": 1}
    assert parse_toml("[run]\nseed = 3") == {"run": {"seed": 3}}


@pytest.mark.parametrize(
    ("parse", "content"),
    [
        *((parse_json, text) for text in (DEEP, "", "{", "nul", '{"a": 1} x', b"\xff\xfe\xfa")),
        *((parse_toml, f"x = {value}") for value in (DEEP, "", "1\nx = 2", "0x" + "f" * 5000)),
    ],
)
def test_invalid_text_is_a_value_error(parse: Callable[[Any], object], content: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the parser's own message
        parse(content)


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
