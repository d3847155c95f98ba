"""Who must not come in stays out, and a site that lies changes nothing: on real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployment import SITES, SIZE, Deployment, settings, source_model, write_toml
from fedwca.core.params import clone, distance
from fedwca.data.image_files import object_transform
from fedwca.deploy.certificates import site_keys
from fedwca.deploy.kit import server_kit
from fedwca.deploy.processes import flower, free_port
from fedwca.engines.flower_messages import Reply, Request
from fedwca.experiments.config import resolve
from fedwca.methods import Client, Record
from fedwca.models import load_weights, read_class_names
from mischief import TRICKS
from sites import FakeGrid, engine_for, run_rounds, site_program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are told by /proc"),
]
LIAR = "mill"
ROUNDS = 1 + -(-len(TRICKS) // 3)  # a site is asked three times a round

POSSESSED = """
import sys
if sys.argv[0].endswith("flwr-clientapp"):
    from mischief import possess
    possess()
"""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("refusals")
    (folder / "sitecustomize.py").write_text(POSSESSED)
    code = os.pathsep.join([str(folder), str(Path(__file__).parent.parent)])
    running = Deployment(folder / "deployment", SITES, images)
    running.start({LIAR: {"PYTHONPATH": code, "FEDWCA_MISCHIEF": str(folder / "played")}})
    try:
        yield running
    finally:
        running.stop()
        assert running.left() == []


def test_a_site_that_lies_is_refused_and_changes_nothing(
    deployment: Deployment, images: Path
) -> None:
    content = settings("fedwca", images / "source.safetensors", ROUNDS)
    content["deploy"]["least_sites"] = 2
    done = deployment.fedwca(
        "run", str(write_toml(deployment.folder / "r.toml", content)), wait=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = next((deployment.folder / "server" / "runs").iterdir())
    log = (run / "log.txt").read_text()
    for name, trick in TRICKS.items():
        assert trick.reason in log, f"nothing is said of {name}: {log}"

    # The same, in this process, with a site that is gone where it lied.
    experiment = resolve(content)
    classes = read_class_names(images / "source.safetensors")
    model = source_model(classes)
    programs = {
        n: site_program(images, s, deployment.folder / "again") for n, s in enumerate(SITES)
    }
    honest = programs[SITES.index(LIAR)]

    def gone(request: Request) -> Reply:
        return honest(request) if request.round == 0 else Reply(LIAR, problem="gone")

    programs[SITES.index(LIAR)] = gone
    engine, told = engine_for(
        FakeGrid(programs),
        experiment,
        model,
        classes,
        dict.fromkeys(SITES, ""),
        transform=object_transform(SIZE),
    )
    kept = run_rounds(engine, experiment.method, clone(model.feature_state()), told)
    for site in SITES:
        used = source_model(classes)
        where = deployment.folder / "sites" / site / "runs" / run.name / "model.safetensors"
        load_weights(used, where)
        wanted = experiment.method.deployed(kept[-1].state, Client(site), Record())
        assert distance(wanted, used.feature_state()) < 1e-5


@pytest.mark.parametrize("lack", ["key", "registration", "authority", "encryption"])
def test_a_stranger_is_not_let_in(deployment: Deployment, lack: str, tmp_path: Path) -> None:
    kit = server_kit(deployment.folder)
    stranger = tmp_path / "stranger.key"
    stranger.write_bytes(site_keys().private)
    words = [flower("flower-supernode"), "--superlink", f"127.0.0.1:{kit.port}"]
    words += ["--host", "127.0.0.1", "--port", str(free_port()), "--max-retries", "2"]
    if lack == "encryption":
        words.append("--insecure")
    if lack in ("key", "registration"):
        words += ["--root-certificates", str(kit.folder / "ca.crt")]
    if lack in ("registration", "authority"):
        words += ["--auth-supernode-private-key", str(stranger)]
    before = deployment.fedwca("status").stdout
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "FLWR_HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0"},
    )
    print(done.stdout, done.stderr, file=sys.stderr)
    assert done.returncode != 0
    assert "SuperNode ID" not in done.stdout + done.stderr
    assert deployment.fedwca("status").stdout == before
