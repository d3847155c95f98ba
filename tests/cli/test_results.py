"""`fedwca report`, `watch` and `tensorboard` from the command line."""

import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from fedwca.report.tensorboard import EVENTS
from tests.cli.conftest import Fedwca, Invoke, assert_error
from tests.support.made_up_runs import make_run


def test_a_report_of_one_run_and_of_all(fedwca: Fedwca) -> None:
    one = make_run(Path("runs"))
    make_run(Path("runs"), method="fedavg")
    assert "out/one.html" in fedwca("report", one.name, "-o", "out/one.html")
    assert one.name in Path("out/one.html").read_text()
    assert "2 runs" in fedwca("report")
    assert '"kind":"comparison"' in Path("report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("report",), "runs"),
        (("report", "nowhere"), "runs/nowhere"),
        (("report", "-o", "page.pdf"), "--output"),
        (("watch", "nowhere"), "runs/nowhere"),
        (("tensorboard", "nowhere"), "runs/nowhere"),
    ],
)
def test_wrong_arguments_end_with_an_error(
    invoke: Invoke, arguments: tuple[str, ...], named: str
) -> None:
    assert_error(invoke(*arguments), named)


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


def test_events_of_a_run_by_name_or_folder(fedwca: Fedwca, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    assert f"tensorboard --logdir {run}" in fedwca("tensorboard", run.name)
    assert (run / "tensorboard" / EVENTS).is_file()
    fedwca("tensorboard", str(run), run.name, "-o", "logs")
    assert [*Path("logs").rglob("*tfevents*")] == [Path("logs") / run.name / EVENTS]


def test_events_need_distinct_names_and_the_extra(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "runs")
    other = shutil.copytree(run, tmp_path / "others" / run.name)
    assert_error(invoke("tensorboard", str(run), str(other), "-o", "logs"), "--output")
    assert not Path("logs").exists()
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    assert_error(invoke("tensorboard", str(run)), "fedwca[tensorboard]")
