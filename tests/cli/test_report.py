"""`fedwca report` and `fedwca watch` from the command line."""

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.support.made_up_runs import make_run


def test_a_report_of_one_run_and_of_all(invoke: Invoke) -> None:
    one = make_run(Path("runs"))
    make_run(Path("runs"), method="fedavg")
    done = invoke("report", one.name, "-o", "out/one.html")
    assert done.code == 0, done.err
    assert "Wrote out/one.html" in done.out
    assert one.name in Path("out/one.html").read_text()
    assert "2 runs" in invoke("report").out
    assert '"kind":"comparison"' in Path("report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("report",), "runs"),
        (("report", "nowhere"), "runs/nowhere"),
        (("report", "-o", "page.pdf"), "--output"),
        (("watch", "nowhere"), "runs/nowhere"),
        (("watch", "--port", "70000"), "--port"),
    ],
)
def test_wrong_arguments_end_with_an_error(
    invoke: Invoke, arguments: tuple[str, ...], named: str
) -> None:
    done = invoke(*arguments)
    assert done.code == 2
    assert named in done.err


def test_watch_serves_until_it_is_stopped(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    command = [sys.executable, "-m", "fedwca.cli", "watch", run.name]
    child = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        address = child.stdout.readline().split()[1]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address + "data.json", timeout=10) as reply:
            assert run.name.encode() in reply.read()
    finally:
        child.terminate()
        child.communicate(timeout=20)
