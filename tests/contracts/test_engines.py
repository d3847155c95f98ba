"""Every method gives the same on sites of their own as in the simulator, to the bit."""

from collections.abc import Callable
from pathlib import Path
from unittest import mock

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
    name: str, new_model: NewModel, tiny_benchmark: Benchmark, tmp_path: Path
) -> None:
    experiment = settings(name)
    method, classes = experiment.method, tiny_benchmark.classes
    names = write_images(tmp_path, tiny_benchmark)
    programs = {n: site_program(tmp_path, site, tmp_path / "home") for n, site in enumerate(names)}
    model, sites = new_model(), dict.fromkeys(names, "")
    engine, log = engine_for(FakeGrid(programs), experiment, model, classes, sites)
    with mock.patch("fedwca.engines.flower.collector._POLL_SECONDS", 0.02):
        far = run_rounds(engine, method, model.feature_weights(), log)

    clients = [load_site(tmp_path, site, tiny_benchmark) for site in names]
    model = new_model().to(memory_format=torch.channels_last)  # as a run has it
    simulator = Simulator(model, method, clients, 0, tmp_path / "scratch")
    simulated = RunLog()
    near = run_rounds(simulator, method, clone(new_model().feature_weights()), simulated)

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
            assert distance(wanted, used.feature_weights()) == 0
        assert same({"w": used.classifier_weight()}, {"w": new_model().classifier_weight()})


def _used_by(site: str, folder: Path, classes: tuple[str, ...]) -> DomainModel:
    """The model that the site was left with, built from its file alone."""
    model, about = load_model(folder / "home" / site / "run-1" / "model.safetensors")
    assert about.classes == classes
    assert about.made["client"] == site
    return model
