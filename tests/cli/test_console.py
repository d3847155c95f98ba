"""Control codes in names never reach the terminal."""

import io
import json
import logging
from pathlib import Path

import pytest

from fedwca.cli.console import Screen, show_logs
from fedwca.cli.progress import LineProgress, TerminalProgress
from tests.cli.conftest import Invoke
from tests.support.made_up_runs import make_run

ESC = "\x1b[2J\u202e"


def harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_a_screen_escapes_control_codes_and_keeps_lines() -> None:
    screen = Screen(file=io.StringIO(), width=80)
    screen.print_line(f"one{ESC}\n  two\x07")
    screen.print(f"three{ESC}", markup=False)
    LineProgress(screen).print_line(f"warning: {ESC} is empty")
    TerminalProgress(screen).print_line(f"warning: {ESC} is empty")
    output = screen.file.getvalue()  # type: ignore[attr-defined]
    assert harmless(output)
    escaped = r"\u001b[2J\u202e"
    assert output.splitlines()[:3] == [f"one{escaped}", r"  two\u0007", f"three{escaped}"]


def test_logs_are_shown_as_lines_without_control_codes() -> None:
    logger, lines = logging.getLogger("fedwca.somewhere"), list[str]()
    with show_logs(lines.append):
        logger.info("round %d", 1)
        logger.warning("%s is empty", f"a{ESC}\nb")
        logger.debug("detail")
    logger.info("after the block")
    assert lines == ["round 1", "warning: a [2J  b is empty"]


def test_the_innermost_block_shows_the_logs() -> None:
    logger, outer, inner = logging.getLogger("fedwca.somewhere"), list[str](), list[str]()
    with show_logs(outer.append):
        with show_logs(inner.append):
            logger.info("inside")
        logger.info("outside")
    assert (outer, inner) == (["outside"], ["inside"])


def test_a_command_prints_logs_to_stderr(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_runs(root: Path) -> tuple[list[object], list[str]]:
        logging.getLogger("fedwca.report").warning("something in %s", root)
        return [], []

    monkeypatch.setattr("fedwca.cli.results.find_runs", find_runs)
    result = invoke("list")
    assert "something" not in result.out
    assert result.err == "warning: something in runs\n"


def strange_run(name: str) -> Path:
    run = make_run(Path("runs"))
    config = json.loads((run / "config.json").read_text())
    config["settings"]["data"] = {"benchmark": f"b{ESC}", "source": f"s{ESC}\nerror: x"}
    (run / "config.json").write_text(json.dumps(config))
    return run.rename(Path("runs") / name)


def test_control_codes_in_settings_and_names_are_escaped(invoke: Invoke) -> None:
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
        assert done.err.startswith(("warning: ", "error: "))
        assert harmless(done.out + done.err)
