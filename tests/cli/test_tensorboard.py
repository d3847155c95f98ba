"""`fedwca tensorboard` on run folders."""

import json
import sys
from pathlib import Path

import pytest

from fedwca.report.tensorboard import EVENTS
from tests.cli.conftest import Invoke
from tests.support.tiny_settings import TINY


@pytest.fixture
def run(invoke: Invoke, npz_folder: Path, tmp_path: Path) -> Path:
    given = [*TINY, f"--set=data.path={npz_folder}"]
    assert invoke("run", *given, "--method", "source_only")[0] == 0
    (folder,) = (tmp_path / "runs").iterdir()
    return folder


def test_a_run_by_name_or_folder(invoke: Invoke, run: Path, tmp_path: Path) -> None:
    code, out, _ = invoke("tensorboard", run.name)
    assert code == 0
    assert (run / "tensorboard" / EVENTS).is_file()
    assert f"tensorboard --logdir {run}" in out
    code, out, _ = invoke("tensorboard", str(run), run.name, "-o", "logs")
    assert code == 0
    assert [*Path("logs").rglob("*tfevents*")] == [Path("logs") / run.name / EVENTS]
    assert json.loads((run / "result.json").read_text())["round"] == 0


def test_mistakes(
    invoke: Invoke, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = invoke("tensorboard", "nothing")
    assert code == 2
    assert "is not a run folder" in err
    other = tmp_path / "others" / run.name
    other.mkdir(parents=True)
    for name in ("config.json", "results.jsonl"):
        (other / name).write_bytes((run / name).read_bytes())
    code, _, err = invoke("tensorboard", str(run), str(other), "-o", "logs")
    assert (code, Path("logs").exists()) == (2, False)
    assert "same name" in err
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    code, _, err = invoke("tensorboard", str(run))
    assert code == 2
    assert "pip install 'fedwca[tensorboard]'" in err
