"""Flower's own processes on loopback: over TLS with keys, from nothing to exported models."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from deployment import SITES, SIZE, Deployment, settings, source_model, write_toml
from fedwca.core.params import clone, distance
from fedwca.data.augment import object_transform
from fedwca.data.site_images import site_images
from fedwca.deploy.server import deployed_name
from fedwca.engines.simulator import Simulator
from fedwca.engines.site import Site
from fedwca.experiments.config import resolve
from fedwca.methods import METHODS, Client, Record
from fedwca.models import load_weights, read_class_names
from sites import Told, paths_of, run_rounds

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are told by /proc")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Iterator[Deployment]:
    running = Deployment(tmp_path_factory.mktemp("real") / "deployment", SITES, images)
    running.start()
    try:
        yield running
    finally:
        running.stop()
        assert running.left() == []


def check_against_simulator(
    deployment: Deployment, images: Path, method: str, rounds: int, *, secure: bool = False
) -> None:
    """Run it by Flower and in this process: every site's model is the same."""
    content = settings(method, images / "source.safetensors", rounds)
    content["deploy"]["secure_aggregation"] = secure
    config = write_toml(deployment.folder / f"{method}.toml", content)
    done = deployment.fedwca("run", str(config), wait=600 if secure else 240)
    assert done.returncode == 0, done.stdout + done.stderr
    experiment = resolve(content)
    run = deployment.folder / "server" / "runs" / deployed_name(experiment)
    classes = read_class_names(images / "source.safetensors")
    transform = object_transform(SIZE)
    clients = [site_images(s, paths_of(images, s), classes, SIZE, transform) for s in SITES]
    model = source_model(classes)
    engine = Simulator(model, experiment.method, clients, 0, deployment.folder / "scratch")
    told = Told()
    kept = run_rounds(engine, experiment.method, clone(model.feature_state()), told)

    result = json.loads((run / "result.json").read_text())
    assert result["round"] == experiment.method.rounds
    if not secure:  # sums under masks may round the last digit otherwise
        assert result["clients"] == told.lines[-1]["clients"]
    state = kept[-1].state if kept else experiment.method.init(clone(model.feature_state()))
    memories = kept[-1].memories if kept else {}
    place = Site(source_model(classes), experiment.method, {c.name: c for c in clients}, 0)
    for site in SITES:
        memory = memories.get(site, Record())
        place.evaluate(site, experiment.method.deployed(state, Client(site), memory), memory)
        used = source_model(classes)
        load_weights(
            used, deployment.folder / "sites" / site / "runs" / run.name / "model.safetensors"
        )
        assert distance(place.model.feature_state(), used.feature_state()) < 1e-5
        assert torch.equal(used.classifier_weight(), source_model(classes).classifier_weight())


def test_fedwca_over_tls_with_keys_from_nothing_to_exported_models(
    deployment: Deployment, images: Path
) -> None:
    check_against_simulator(deployment, images, "fedwca", rounds=3)
    run = next((deployment.folder / "server" / "runs").glob("deployed-*-fedwca-*"))
    log = (run / "log.txt").read_text()
    for site in SITES:
        assert f"{site} has joined with 30 images" in log
    assert "bytes down" in log
    told = deployment.fedwca("status").stdout
    assert "TLS and node keys): up" in told
    assert "3 of 3 rounds, done" in told
    assert told.count("round 3") == 3
    # nothing was pickled, and nothing of the images is on the server
    assert not list(deployment.folder.rglob("*.pkl"))
    assert not list((deployment.folder / "server").rglob("*.png"))


@pytest.mark.slow
def test_sums_under_masks_give_the_same_and_leave_no_secret(
    deployment: Deployment, images: Path
) -> None:
    check_against_simulator(deployment, images, "fedwca", rounds=2, secure=True)
    (log,) = (deployment.folder / "server" / "runs").glob("deployed-*-secure/log.txt")
    assert "drops out" not in log.read_text()
    assert not list((deployment.folder / "sites").rglob("secret.json"))
    given = list((deployment.folder / "sites").rglob("*-secure/sums.json"))
    assert len(given) == len(SITES)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_same_by_flower_as_in_the_simulator(
    deployment: Deployment, images: Path, method: str
) -> None:
    check_against_simulator(deployment, images, method, rounds=2)
