"""Whatever is wrong with a text is a ValueError, and what is right is read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedwca.files import read_json, read_optional, unseal
from fedwca.parsing import parse_json, parse_toml

DEEP = "[" * 100_000 + "]" * 100_000


def raised(read: Callable[[Any], object], what: object) -> bool:
    """Whether it is a ValueError of whatever words."""
    try:
        read(what)
    except ValueError:
        return True
    return False


def test_what_is_right_is_read(tmp_path: Path) -> None:
    assert parse_json('{"α": [1, 2.5, null]}') == {"α": [1, 2.5, None]}
    assert parse_json('{"α": 1}'.encode()) == {"α": 1}
    assert parse_toml("[run]\nseed = 3") == {"run": {"seed": 3}}
    path = tmp_path / "x.json"
    path.write_text('{"site": "Köln"}', encoding="utf-8")
    assert read_json(path) == read_optional(path) == {"site": "Köln"}


@pytest.mark.parametrize("text", [DEEP, "", "{", "nul", '{"a": 1} x', b"\xff\xfe\xfa"])
def test_bad_json_is_a_value_error(text: str | bytes, tmp_path: Path) -> None:
    assert raised(parse_json, text)
    path = tmp_path / "bad.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert raised(read_json, path)
    assert read_optional(path) == {}


@pytest.mark.parametrize("text", [f"x = {DEEP}", "x =", "x = 1\nx = 2", "x = 0x" + "f" * 5000])
def test_bad_toml_is_a_value_error(text: str) -> None:
    assert raised(parse_toml, text)


def test_a_file_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert read_optional(tmp_path / "none.json") == {}
    assert read_optional(tmp_path) == {}
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")


def test_what_is_no_mapping_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(json.dumps([1, 2]))
    assert read_optional(path) == {}


def test_what_is_nested_too_deep_was_never_sealed() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    assert unseal({"x": nested, "sha256": "0"}) is None
