"""Parsers return valid content and raise ValueError for everything else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedwca._support.files import read_json, read_optional_json, verify_checksum
from fedwca._support.parse import parse_json, parse_toml

DEEP = "[" * 100_000 + "]" * 100_000


def is_value_error(read: Callable[[Any], object], content: object) -> bool:
    try:
        read(content)
    except ValueError:
        return True
    return False


def test_valid_json_and_toml_are_parsed(tmp_path: Path) -> None:
    assert parse_json('{"α": [1, 2.5, null]}') == {"α": [1, 2.5, None]}
    assert parse_json('{"α": 1}'.encode()) == {"α": 1}
    assert parse_toml("[run]\nseed = 3") == {"run": {"seed": 3}}
    path = tmp_path / "x.json"
    path.write_text('{"site": "Köln"}', encoding="utf-8")
    assert read_json(path) == read_optional_json(path) == {"site": "Köln"}


@pytest.mark.parametrize("text", [DEEP, "", "{", "nul", '{"a": 1} x', b"\xff\xfe\xfa"])
def test_bad_json_is_a_value_error(text: str | bytes, tmp_path: Path) -> None:
    assert is_value_error(parse_json, text)
    path = tmp_path / "bad.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert is_value_error(read_json, path)
    assert read_optional_json(path) == {}


@pytest.mark.parametrize("text", [f"x = {DEEP}", "x =", "x = 1\nx = 2", "x = 0x" + "f" * 5000])
def test_bad_toml_is_a_value_error(text: str) -> None:
    assert is_value_error(parse_toml, text)


def test_a_missing_optional_file_is_empty(tmp_path: Path) -> None:
    assert read_optional_json(tmp_path / "none.json") == {}
    assert read_optional_json(tmp_path) == {}
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")


def test_an_optional_file_without_a_mapping_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(json.dumps([1, 2]))
    assert read_optional_json(path) == {}


def test_deep_nesting_has_no_valid_checksum() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    assert verify_checksum({"x": nested, "sha256": "0"}) is None
