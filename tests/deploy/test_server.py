"""The server with sites in this process: killed, with corrupt or full disks, and resumed."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedwca._support.errors import describe_disk_error
from fedwca.deploy.daemons import SERVER_FOLDER
from fedwca.deploy.deployment_files import create_deployment
from fedwca.deploy.processes import find_free_port
from fedwca.deploy.server import serve
from fedwca.deploy.start import follow_run, open_log
from fedwca.deploy.submission import Submission
from fedwca.experiments.config import resolve
from fedwca.experiments.store import RunFolder
from fedwca.flower_app import main
from fedwca.models import read_checksum
from tests.support.deployment import SITES, settings
from tests.support.federation import same
from tests.support.sites import FakeGrid, site_program
from torture.failing_disk import FULL, READ_ONLY, Disk, failing

ROUNDS = 5


@dataclass
class KillingGrid(FakeGrid):
    """Ends the server once every site has received its message of a round."""

    kill_round: int = -1

    def push_message(self, message: Any) -> str | None:
        message_id = super().push_message(message)
        done = [r.round for _, r in self.sent if r.kind == "work"]
        if done.count(self.kill_round) == len(SITES):
            raise SystemExit("killed")
        return message_id


@dataclass
class Federation:
    """Three sites and a server with a folder of runs."""

    folder: Path
    images: Path
    method: str
    privacy: dict[str, float] = field(default_factory=dict)

    def serve(self, kill_round: int = -1) -> RunFolder:
        content = settings(self.method, self.images / "source.safetensors", ROUNDS)
        content["privacy"] = {**self.privacy}
        programs = {
            n: site_program(self.images, s, self.folder / "home") for n, s in enumerate(SITES)
        }
        grid, keys = KillingGrid(programs, kill_round=kill_round), dict.fromkeys(SITES, "")
        runs, cache = self.folder / "runs", self.folder / "cache"
        return serve(lambda *_: grid, resolve(content), runs, cache, lambda: keys)

    def outcome(self, run: RunFolder) -> Any:
        newest = run.load_checkpoint()
        assert newest is not None
        models = self.folder.glob("home/*/*/model.safetensors")
        scores = [line["clients"] for line in run.lines()]
        return newest, scores, {path.parts[-3]: read_checksum(path) for path in models}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwca.engines.flower.collector._POLL_SECONDS", 0.02)


@pytest.mark.parametrize(
    ("method", "privacy"),
    [("local", {}), ("fedamp", {}), ("fedpcl", {}), ("fedamp", {"clip": 1.0})],
)
def test_a_killed_server_with_a_corrupt_newest_checkpoint_gives_the_same_result(
    tmp_path: Path, images: Path, method: str, privacy: dict[str, float]
) -> None:
    unbroken = Federation(tmp_path / "unbroken", images, method, privacy)
    expected, *expected_scores_and_models = unbroken.outcome(unbroken.serve())
    federation = Federation(tmp_path / "broken", images, method, privacy)
    for kill_round in (2, 4):
        with pytest.raises(SystemExit):
            federation.serve(kill_round)
        (run,) = (tmp_path / "broken" / "runs").iterdir()
        newest = max(run.glob("checkpoint-*"))
        assert newest.name == f"checkpoint-{kill_round:05d}"
        (newest / "manifest.json").write_text("{")
    found, *scores_and_models = federation.outcome(federation.serve())
    for part, state in expected.state.models.items():
        assert same(state, found.state.models[part])
    assert scores_and_models == expected_scores_and_models


@pytest.mark.parametrize(
    ("error", "message"), [(FULL, "disk is full"), (READ_ONLY, "cannot write")]
)
def test_a_disk_error_at_the_server_reaches_the_command_that_follows_the_run(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch, error: int, message: str
) -> None:
    server = create_deployment(
        tmp_path / "d", "127.0.0.1", find_free_port(), "127.0.0.1", SITES, plaintext=True
    )
    monkeypatch.setenv(SERVER_FOLDER, str(server.folder))
    monkeypatch.setattr("fedwca.flower_app.exit_with_parent", lambda: None)
    monkeypatch.setattr("fedwca.flower_app.FlowerGrid", lambda grid, *_: grid)
    content = settings("local", images / "source.safetensors", ROUNDS)
    experiment, runs = resolve(content), server.folder / "runs"
    run_id = Submission(server.folder).submit(
        experiment.deployed_settings(), runs, tmp_path / "cache"
    )
    programs = {n: site_program(images, s, tmp_path / "home") for n, s in enumerate(SITES)}

    def run_app() -> None:
        main(FakeGrid(programs), SimpleNamespace(run_id=1))  # type: ignore[arg-type]

    def follow() -> RunFolder:
        return follow_run(server, run_id, experiment, runs, open_log(experiment, runs))

    with failing(Disk(server.folder, 120, error)):
        with pytest.raises(OSError, match=os.strerror(error)):
            run_app()
        with pytest.raises(OSError, match=os.strerror(error)) as caught:
            follow()
    assert message in describe_disk_error(caught.value)
    assert "Traceback" in (server.folder / "serverapp.log").read_text()
    assert max(runs.glob("*/checkpoint-*")).name > "checkpoint-00000"
    run_app()
    assert len(follow().lines()) == ROUNDS + 1
    assert not list(server.folder.glob(".probe*"))
    (log,) = runs.glob("*/log.txt")
    assert re.search(r"^\d{4}-\d\d-\d\d [\d:]{8} INFO .*5 rounds done", log.read_text(), re.M)
