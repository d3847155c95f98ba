"""The server's half on sites in this process: killed, its disk damaged, full, and resumed."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deployment import SITES, settings
from federation import same
from fedwca.deploy.server import serve
from fedwca.experiments.config import resolve
from fedwca.experiments.progress import Silent
from fedwca.experiments.store import RunFolder
from fedwca.models import read_seal
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
        return serve(grid, resolve(content), *places, lambda: expected, Silent())

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
