"""The command line, called in an empty folder."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fedwca.cli import main


class Said(NamedTuple):
    """How a call ended, and what it said."""

    code: int
    out: str
    err: str


@pytest.fixture
def invoke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDWCA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: str) -> Said:
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        return Said(int(str(stop.value.code)), *capsys.readouterr())

    return call
