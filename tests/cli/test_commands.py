"""The commands as users call them."""

import errno
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image

from fedwca.cli.entry import app
from tests.cli.conftest import Fedwca, Invoke
from tests.support.tiny_settings import TINY


def test_run_list_show_compare_and_run_again(
    fedwca: Fedwca, invoke: Invoke, npz_folder: Path
) -> None:
    many = ["--method", "source_only", "--method", "fedwca", "--seed", "0", "--seed", "1"]
    first = fedwca("run", *TINY, f"--set=data.path={npz_folder}", *many)
    assert "round 2/2  accuracy" in first
    assert "dim" in first
    assert "cluster of each client" in first
    runs = sorted(Path("runs").iterdir())
    assert len(runs) == 4
    assert all(run.name in first for run in runs)

    again = fedwca("run", *TINY, f"--set=data.path={npz_folder}", *many)
    assert "round" not in again.split("accuracy (%)")[0]
    assert again.count("is finished already") == 4

    listed = fedwca("list")
    assert listed.count("done") == 4
    assert listed.count(" 0/0 ") == 2  # source_only has no rounds
    compared = fedwca("compare")
    assert "±" in compared
    assert "source_only" in compared
    markdown = fedwca("compare", "--markdown", *map(str, runs))
    assert "| fedwca (one cluster) |" in markdown
    shown = fedwca("show", str(runs[0]))
    assert "[training]" in shown
    assert "rounds = 2" in shown
    assert "Results:" in fedwca("resume", str(runs[0]))
    assert "fedwca resume" in invoke("run", str(runs[0])).err


def test_an_empty_list_says_how_to_start(fedwca: Fedwca) -> None:
    assert "start one with `fedwca run`" in fedwca("list")


def test_preview_writes_a_contact_sheet(fedwca: Fedwca, npz_folder: Path) -> None:
    output = fedwca("data", "preview", str(npz_folder), "-o", "sheets/s.png")
    assert "Wrote sheets/s.png" in output
    with Image.open("sheets/s.png") as sheet:
        assert sheet.width > 200


def test_a_preview_that_cannot_be_written_keeps_the_old_one(
    invoke: Invoke, npz_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Image.Image, file: Any, *_: object, **__: object) -> None:
        with file.open("wb") if isinstance(file, Path) else nullcontext(file) as stream:
            stream.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    Path("s.png").write_bytes(b"before")
    monkeypatch.setattr(Image.Image, "save", full)
    assert invoke("data", "preview", str(npz_folder), "-o", "s.png").code == 2
    assert Path("s.png").read_bytes() == b"before"
    assert [path.name for path in Path().glob("s.png*")] == ["s.png"]


def every_command() -> list[list[str]]:
    """As the command line itself lists them."""

    def below(group: Any, words: list[str]) -> Iterator[list[str]]:
        for name, command in group.commands.items():
            is_group = hasattr(command, "commands")
            yield from below(command, [*words, name]) if is_group else [[*words, name]]

    return list(below(typer.main.get_command(app), []))


@pytest.mark.parametrize("command", every_command(), ids=" ".join)
def test_the_help_of_every_command_has_an_example(fedwca: Fedwca, command: list[str]) -> None:
    output = fedwca(*command, "--help")
    assert output.startswith("Usage:")
    assert f"Example: fedwca {' '.join(command)}" in " ".join(output.split())


def test_a_terminal_shows_a_bar(npz_folder: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    folders = ["--runs", str(tmp_path / "runs"), "--cache", str(tmp_path / "cache")]
    arguments = ["run", *TINY, f"--set=data.path={npz_folder}", *folders]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        [sys.executable, "-m", "fedwca.cli", *arguments], stdout=theirs, env=environment
    )
    os.close(theirs)
    output = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        output += piece
    os.close(ours)
    assert process.wait(timeout=60) == 0
    assert "━" in output.decode()
    assert "2/2" in output.decode()
