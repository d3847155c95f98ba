"""Call the command line in an empty folder."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fedwca.cli.entry import main


class Result(NamedTuple):
    """Exit code and output of a call."""

    code: int
    out: str
    err: str


@pytest.fixture
def invoke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDWCA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: str) -> Result:
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        return Result(int(str(stop.value.code)), *capsys.readouterr())

    return call
