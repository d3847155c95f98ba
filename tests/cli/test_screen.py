"""Others' words on the screen: no code in them reaches the terminal."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedwca.progress_display import LineProgress, TerminalProgress
from fedwca.report_cli import _reader
from fedwca.screen import Screen
from made_up_runs import make_run

Invoke = Callable[..., Any]
ESC = "\x1b[2J\u202e"


def harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_a_screen_shows_text_alone_and_keeps_its_lines() -> None:
    screen = Screen(file=io.StringIO(), width=80)
    screen.say(f"one{ESC}\n  two\x07")
    screen.print(f"three{ESC}", markup=False)
    LineProgress(screen).note(f"warning: {ESC} is empty")
    TerminalProgress(screen).note(f"warning: {ESC} is empty")
    told = screen.file.getvalue()  # type: ignore[attr-defined]
    assert harmless(told)
    shown = r"\u001b[2J\u202e"
    assert told.splitlines()[:3] == [f"one{shown}", r"  two\u0007", f"three{shown}"]


def strange_run(name: str) -> Path:
    run = make_run(Path("runs"))
    config = json.loads((run / "config.json").read_text())
    config["settings"]["data"] = {"benchmark": f"b{ESC}", "source": f"s{ESC}\nerror: x"}
    (run / "config.json").write_text(json.dumps(config))
    return run.rename(Path("runs") / name)


def test_settings_and_names_of_others(invoke: Invoke) -> None:
    name = f"run{ESC}"
    run = strange_run(name)
    for words in (["show", name], ["list"], ["compare"], ["compare", "--markdown"], ["report"]):
        done = invoke(*words)
        assert done.code == 0
        assert harmless(done.out + done.err)
        assert "\nerror" not in done.out
    (run / "config.json").write_text("{}")
    for words in (["list"], ["compare"], ["report"], ["show", name]):
        done = invoke(*words)
        assert "are damaged" in done.err
        assert harmless(done.out + done.err)


def test_who_watches_is_told_once_of_a_run_that_cannot_be_read(
    invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(Path("runs"))
    (Path("runs") / "bad").mkdir()
    (Path("runs") / "bad" / "config.json").write_text("{}")
    read = _reader(None, Path("runs"))
    assert [len(read()) for _ in range(3)] == [1, 1, 1]
    assert capsys.readouterr().err.count("warning: the files in runs/bad are damaged") == 1
