"""Commands use no network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from fedwca.data.types import Benchmark
from fedwca.deploy.processes import flower_environment
from tests.support.tiny_settings import TINY

OFFLINE = Path(__file__).parent.parent / "support" / "offline"

# One process for all commands: most of a short command's time is PyTorch's import.
COMMANDS = """
import sys
from pathlib import Path
from fedwca.cli.entry import main

def fedwca(*words):
    try:
        main([str(word) for word in words])
    except SystemExit as stop:
        assert stop.code == 0, words

if __name__ == "__main__":
    fedwca("run", *sys.argv[2:], "--method", "fedwca")
    run = next(Path("runs").iterdir())
    fedwca("report", run.name, "-o", "report.html")
    fedwca("export", run.name)
    fedwca("export", run.name, "--format", "onnx")
    fedwca("predict", next((run / "models").glob("*.safetensors")), "some.png")
    fedwca("predict", next((run / "models").glob("*.onnx")), "some.png")
    fedwca("data", "check", sys.argv[1])
"""


def run_offline(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run Python without network; return the process and the calls that it tried."""
    log = folder / "calls.txt"
    path = os.pathsep.join([str(OFFLINE), *filter(None, [os.environ.get("PYTHONPATH")])])
    place = {"FEDWCA_CALLS_LOG": str(log), "FEDWCA_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **place, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done, log.read_text().splitlines() if log.exists() else []


def test_commands_use_no_network(
    tmp_path: Path, npz_folder: Path, tiny_benchmark: Benchmark
) -> None:
    Image.fromarray(tiny_benchmark.domains["dim"].images[0]).save(tmp_path / "some.png")
    for name in ("bar", "post"):
        (tmp_path / "own" / "site" / name).mkdir(parents=True)
        picture = Image.fromarray(tiny_benchmark.domains["dim"].images[1])
        picture.save(tmp_path / "own" / "site" / name / "1.png")
    (tmp_path / "commands.py").write_text(COMMANDS)
    settings = [*TINY, f"--set=data.path={npz_folder}", "--set=run.workers=2"]
    done, calls = run_offline(tmp_path, "commands.py", str(tmp_path / "own"), *settings)
    assert done.returncode == 0, done.stderr
    assert calls == []


@pytest.mark.parametrize(
    "call",
    [
        "socket.create_connection(('192.0.2.1', 9), timeout=1)",
        "socket.getaddrinfo('example.org', 443)",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 9))",
    ],
)
def test_a_network_call_would_be_noticed(tmp_path: Path, call: str) -> None:
    done, calls = run_offline(tmp_path, "-c", f"import socket; {call}")
    assert "would leave this machine" in done.stderr
    assert len(calls) == 1


def test_calls_to_this_machine_are_allowed(tmp_path: Path) -> None:
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 0));"
        "socket.create_connection(s.getsockname())"
    )
    done, calls = run_offline(tmp_path, "-c", code)
    assert (done.returncode, calls) == (0, []), done.stderr


def test_flower_is_started_offline_whatever_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("FLWR_DISABLE_UPDATE_CHECK", "0")
    found = flower_environment(tmp_path)
    assert found["FLWR_TELEMETRY_ENABLED"] == "0"
    assert found["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert found["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert (found["UV_OFFLINE"], found["FLWR_HOME"]) == ("1", str(tmp_path))
