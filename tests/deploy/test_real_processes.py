"""Flower's processes on loopback: over TLS with keys, from `init` to saved models."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedwca.core.params import clone, distance
from fedwca.data.augment import object_transform
from fedwca.data.site_images import load_site_images
from fedwca.engines.client_runtime import ClientRuntime
from fedwca.engines.simulator.simulator import Simulator
from fedwca.experiments.config import resolve
from fedwca.methods import METHODS, Client, Record
from fedwca.models import load_weights, read_class_names
from tests.support.deployment import SITES, SIZE, Deployment, settings, source_model, write_toml
from tests.support.sites import RunLog, paths_of, run_rounds

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Iterator[Deployment]:
    running = Deployment(tmp_path_factory.mktemp("real") / "deployment", SITES, images)
    try:
        running.start()
        yield running
    finally:
        running.stop()
        assert running.remaining_processes() == []


def check_against_simulator(
    deployment: Deployment, images: Path, method: str, rounds: int, *, secure: bool = False
) -> None:
    """Run with Flower and in this process: every site's model is the same."""
    content = settings(method, images / "source.safetensors", rounds)
    content["deploy"]["secure_aggregation"] = secure
    config = write_toml(deployment.folder / f"{method}.toml", content)
    done = deployment.fedwca("run", str(config))
    assert done.returncode == 0, done.stdout + done.stderr
    experiment = resolve(content)
    run = deployment.folder / "server" / "runs" / experiment.deployed_name
    classes = read_class_names(images / "source.safetensors")
    transform = object_transform(SIZE)
    clients = [load_site_images(s, paths_of(images, s), classes, SIZE, transform) for s in SITES]
    model = source_model(classes)
    engine = Simulator(model, experiment.method, clients, 0, deployment.folder / "scratch")
    log = RunLog()
    checkpoints = run_rounds(engine, experiment.method, clone(model.feature_weights()), log)

    result = json.loads((run / "result.json").read_text())
    assert result["round"] == experiment.method.rounds
    if not secure:  # sums under masks may differ in the last digit
        assert result["clients"] == log.lines[-1]["clients"]
    state = (
        checkpoints[-1].state
        if checkpoints
        else experiment.method.init(clone(model.feature_weights()))
    )
    memories = checkpoints[-1].memories if checkpoints else {}
    runtime = ClientRuntime(
        source_model(classes), experiment.method, {c.name: c for c in clients}, 0
    )
    for site in SITES:
        memory = memories.get(site, Record())
        offered = experiment.method.offered(state, Client(site))
        runtime.load_offered(site, offered, memory)
        used = source_model(classes)
        load_weights(
            used, deployment.folder / "sites" / site / "runs" / run.name / "model.safetensors"
        )
        assert distance(runtime.model.feature_weights(), used.feature_weights()) < 1e-5
        assert torch.equal(used.classifier_weight(), source_model(classes).classifier_weight())


def test_fedwca_over_tls_with_keys_from_init_to_saved_models(
    deployment: Deployment, images: Path
) -> None:
    check_against_simulator(deployment, images, "fedwca", rounds=3)
    run = next((deployment.folder / "server" / "runs").glob("deployed-*-fedwca-*"))
    log = (run / "log.txt").read_text()
    for site in SITES:
        assert f"{site} has joined with 30 images" in log
    assert "bytes down" in log
    status = deployment.fedwca("status").stdout
    assert "TLS and site keys): up" in status
    assert "3 of 3 rounds, done" in status
    assert status.count("round 3") == 3
    # Nothing was pickled, and no image is on the server.
    assert not list(deployment.folder.rglob("*.pkl"))
    assert not list((deployment.folder / "server").rglob("*.png"))


@pytest.mark.slow
def test_sums_under_masks_give_the_same_models_and_leave_no_secret(
    deployment: Deployment, images: Path
) -> None:
    check_against_simulator(deployment, images, "fedwca", rounds=2, secure=True)
    (log,) = (deployment.folder / "server" / "runs").glob("deployed-*-secure/log.txt")
    assert "drops out" not in log.read_text()
    assert not list((deployment.folder / "sites").rglob("secret.json"))
    sums = list((deployment.folder / "sites").rglob("*-secure/sums.json"))
    assert len(sums) == len(SITES)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_same_models_with_flower_as_in_the_simulator(
    deployment: Deployment, images: Path, method: str
) -> None:
    check_against_simulator(deployment, images, method, rounds=2)
