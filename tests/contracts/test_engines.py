"""Every method gives the same on sites of their own as in the simulator, to the bit."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedwca.core.params import clone, distance
from fedwca.data.types import Benchmark
from fedwca.engines.simulator.simulator import Simulator
from fedwca.methods import METHODS, Record
from fedwca.models import DomainModel, load_model
from tests.support.federation import same
from tests.support.sites import (
    FakeGrid,
    RunLog,
    engine_for,
    load_site,
    run_rounds,
    settings,
    site_program,
    write_images,
)

NewModel = Callable[[], DomainModel]


@pytest.mark.parametrize("name", METHODS)
def test_sites_and_simulator_agree(
    name: str,
    new_model: NewModel,
    tiny_benchmark: Benchmark,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedwca.engines.flower.site_registry._POLL_SECONDS", 0.02)
    experiment = settings(name)
    method, classes = experiment.method, tiny_benchmark.classes
    names = write_images(tmp_path, tiny_benchmark)
    grid = FakeGrid(
        {node: site_program(tmp_path, site, tmp_path / "home") for node, site in enumerate(names)}
    )
    model = new_model()
    engine, log = engine_for(grid, experiment, model, classes, dict.fromkeys(names, ""))
    far = run_rounds(engine, method, model.feature_state(), log)

    clients = [load_site(tmp_path, site, tiny_benchmark) for site in names]
    simulated = RunLog()
    near = run_rounds(
        Simulator(_as_a_run_has_it(new_model()), method, clients, 0, tmp_path / "scratch"),
        method,
        clone(new_model().feature_state()),
        simulated,
    )

    for here, there in zip(near, far, strict=True):
        assert here.state.models.keys() == there.state.models.keys()
        for part, state in here.state.models.items():
            assert same(state, there.state.models[part])
    assert [line["clients"] for line in log.lines] == [line["clients"] for line in simulated.lines]
    for client in engine.clients():
        memory = near[-1].memories.get(client.name) if near else None
        used = _used_by(client.name, tmp_path, classes)
        if near and method.training.batch_norm == "blend":
            offered = method.offered(near[-1].state, client)
            wanted = method.personal(offered, memory or Record())
            assert distance(wanted, used.feature_state()) == 0
        assert same({"w": used.classifier_weight()}, {"w": new_model().classifier_weight()})


def _as_a_run_has_it(model: DomainModel) -> DomainModel:
    return model.to(memory_format=torch.channels_last)


def _used_by(site: str, folder: Path, classes: tuple[str, ...]) -> DomainModel:
    """The model that the site was left with, built from its file alone."""
    model, about = load_model(folder / "home" / site / "run-1" / "model.safetensors")
    assert about.classes == classes
    assert about.made["client"] == site
    return model
