"""The server's half on sites in this process: killed, its disk damaged, full, and resumed."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deployment import SITES, settings
from failing_disk import FULL, READ_ONLY, Disk, failing
from federation import same
from fedwca.deploy.job import Jobs
from fedwca.deploy.kit import make_kit
from fedwca.deploy.launch import follow, log_of
from fedwca.deploy.processes import free_port
from fedwca.deploy.roles import SERVER_FOLDER
from fedwca.deploy.server import serve
from fedwca.errors import disk_sentence
from fedwca.experiments.config import resolve
from fedwca.experiments.progress import Silent
from fedwca.experiments.store import RunFolder
from fedwca.flower_app import main
from fedwca.models import read_seal
from fedwca.notes import silent
from sites import FakeGrid, site_program

ROUNDS = 5


@dataclass
class Killing(FakeGrid):
    """Is gone, and the server with it, once every site has done a round."""

    in_round: int = -1

    def push_messages(self, messages: list[Any]) -> list[str | None]:
        numbers = super().push_messages(messages)
        done = [r.round for _, r in self.sent if r.kind == "work"]
        if done.count(self.in_round) == len(SITES):
            raise SystemExit("killed")
        return numbers


@dataclass
class World:
    """Three sites, and a server whose runs lie in a folder of its own."""

    folder: Path
    images: Path
    method: str
    privacy: dict[str, float] = field(default_factory=dict)

    def serve(self, killed_in: int = -1) -> RunFolder:
        content = settings(self.method, self.images / "source.safetensors", ROUNDS)
        content["privacy"] = {**self.privacy}
        programs = {
            n: site_program(self.images, s, self.folder / "home") for n, s in enumerate(SITES)
        }
        grid, expected = Killing(programs, in_round=killed_in), dict.fromkeys(SITES, "")
        places = self.folder / "runs", self.folder / "cache"
        return serve(lambda *_: grid, resolve(content), *places, lambda: expected, Silent())

    def outcome(self, run: RunFolder) -> Any:
        newest = run.load_checkpoint(1)
        assert newest is not None
        models = self.folder.glob("home/*/*/model.safetensors")
        scores = [line["clients"] for line in run.lines()]
        return newest, scores, {path.parts[-3]: read_seal(path) for path in models}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwca.engines.flower_sites._POLL", 0.02)


@pytest.mark.parametrize(
    ("method", "privacy"),
    [("local", {}), ("fedamp", {}), ("fedpcl", {}), ("fedamp", {"clip": 1.0})],
)
def test_a_killed_server_whose_newest_checkpoint_is_damaged_gives_the_same(
    tmp_path: Path, images: Path, method: str, privacy: dict[str, float]
) -> None:
    whole = World(tmp_path / "whole", images, method, privacy)
    wanted, *scores_and_models = whole.outcome(whole.serve())
    world = World(tmp_path / "broken", images, method, privacy)
    for killed_in in (2, 4):
        with pytest.raises(SystemExit):
            world.serve(killed_in)
        (run,) = (tmp_path / "broken" / "runs").iterdir()
        newest = max(run.glob("checkpoint-*"))
        assert newest.name == f"checkpoint-{killed_in:05d}"
        (newest / "manifest.json").write_text("{")
    found, *found_too = world.outcome(world.serve())
    for part, state in wanted.state.models.items():
        assert same(state, found.state.models[part])
    assert found_too == scores_and_models


@pytest.mark.parametrize(("error", "said"), [(FULL, "disk is full"), (READ_ONLY, "cannot write")])
def test_a_disk_that_fails_at_the_server_is_told_to_whoever_follows_the_run(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch, error: int, said: str
) -> None:
    kit, _ = make_kit(tmp_path / "d", "127.0.0.1", free_port(), "127.0.0.1", SITES, plaintext=True)
    monkeypatch.setenv(SERVER_FOLDER, str(kit.folder))
    monkeypatch.setattr("fedwca.flower_app.end_with_parent", lambda: None)  # the tests' own process
    monkeypatch.setattr("fedwca.flower_app.FlowerGrid", lambda grid, *_: grid)
    content = settings("local", images / "source.safetensors", ROUNDS)
    experiment, runs = resolve(content), kit.folder / "runs"
    job = Jobs(kit.folder).hand_in(experiment.deployed_settings(), runs, tmp_path / "cache")
    programs = {n: site_program(images, s, tmp_path / "home") for n, s in enumerate(SITES)}

    def begin() -> None:
        main(FakeGrid(programs), SimpleNamespace(run_id=1))  # type: ignore[arg-type]

    def followed() -> RunFolder:
        return follow(kit, job, experiment, runs, log_of(experiment, runs, silent))

    with failing(Disk(kit.folder, 120, error)):
        with pytest.raises(OSError, match=os.strerror(error)):
            begin()
        with pytest.raises(OSError, match=os.strerror(error)) as caught:
            followed()
    assert said in disk_sentence(caught.value)
    assert max(runs.glob("*/checkpoint-*")).name > "checkpoint-00000"
    begin()
    assert len(followed().lines()) == ROUNDS + 1
    assert not list(kit.folder.glob(".probe*"))
