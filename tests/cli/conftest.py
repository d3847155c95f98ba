"""Call the command line in an empty folder."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fedwca.cli.entry import main

Invoke = Callable[..., "Result"]
Fedwca = Callable[..., str]


class Result(NamedTuple):
    """Exit code and output of a call."""

    code: int
    out: str
    err: str


@pytest.fixture
def invoke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Invoke:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDWCA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: str) -> Result:
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        return Result(int(str(stop.value.code)), *capsys.readouterr())

    return call


@pytest.fixture
def fedwca(invoke: Invoke) -> Fedwca:
    """Call a command that must succeed; return its output."""

    def call(*arguments: str) -> str:
        result = invoke(*arguments)
        assert result.code == 0, result.err
        return result.out

    return call


def assert_error(result: Result, *named: str) -> None:
    """Assert that the command ended with one sentence that names all of these."""
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    for text in named:
        assert text in result.err
