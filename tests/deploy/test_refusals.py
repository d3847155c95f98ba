"""Strangers are refused and a site that lies changes nothing, on real processes."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedwca.core.params import clone, distance
from fedwca.data.augment import object_transform
from fedwca.deploy.certificates import create_authority, create_site_keys
from fedwca.deploy.deployment_files import load_server
from fedwca.deploy.processes import find_free_port, flower_environment
from fedwca.engines.flower.messages import Reply, Request
from fedwca.experiments.config import resolve
from fedwca.methods import Client
from fedwca.models import load_weights, read_class_names
from tests.support.deployment import (
    FEDWCA,
    SITES,
    SIZE,
    Deployment,
    settings,
    source_model,
    write_toml,
)
from tests.support.sites import FakeGrid, engine_for, run_rounds, site_program
from tests.support.wrong_replies import FEW_WRONG_REPLIES, WRONG_REPLIES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc"),
]
LIAR = "mill"
ROUNDS = 1 + -(-len(FEW_WRONG_REPLIES) // 3)  # a site is asked three times a round

SITECUSTOMIZE = """
import sys
if sys.argv[0].endswith("flwr-clientapp"):
    from tests.support.wrong_replies import patch_site
    patch_site()
"""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("refusals")
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    code = os.pathsep.join([str(folder), str(Path(__file__).parents[2])])
    running = Deployment(folder / "deployment", SITES, images)
    try:
        running.start({LIAR: {"PYTHONPATH": code, "FEDWCA_WRONG_REPLIES": str(folder / "sent")}})
        yield running
    finally:
        running.stop()
        assert running.remaining_processes() == []


def test_a_site_that_lies_is_refused_and_changes_nothing(
    deployment: Deployment, images: Path
) -> None:
    content = settings("fedwca", images / "source.safetensors", ROUNDS)
    content["deploy"]["least_sites"] = 2
    done = deployment.fedwca(
        "run", str(write_toml(deployment.folder / "r.toml", content)), timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = next((deployment.folder / "server" / "runs").iterdir())
    log = (run / "log.txt").read_text()
    # Junk as large as this is not even fetched from Flower.
    reasons = {name: WRONG_REPLIES[name].reason for name in FEW_WRONG_REPLIES} | {
        "junk": "the reply is larger than "
    }
    for name, reason in reasons.items():
        assert reason in log, f"the log lacks {name}: {log}"
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    refused = [why for line in lines for why in line.get("refused", {}).get(LIAR, [])]
    assert len(refused) == 3 * (ROUNDS - 1)
    row = next(r for r in deployment.fedwca("status").stdout.splitlines() if r.startswith(LIAR))
    assert f" {len(refused)} " in row

    # The same in this process, with a site that fails where it lied.
    experiment = resolve(content)
    classes = read_class_names(images / "source.safetensors")
    model = source_model(classes)
    programs = {
        n: site_program(images, s, deployment.folder / "again") for n, s in enumerate(SITES)
    }
    honest = programs[SITES.index(LIAR)]

    def fail_later(request: Request) -> Reply:
        return honest(request) if request.round == 0 else Reply(LIAR, problem="gone")

    programs[SITES.index(LIAR)] = fail_later
    engine, log = engine_for(
        FakeGrid(programs),
        experiment,
        model,
        classes,
        dict.fromkeys(SITES, ""),
        transform=object_transform(SIZE),
    )
    checkpoints = run_rounds(engine, experiment.method, clone(model.feature_weights()), log)
    for site in SITES:
        used = source_model(classes)
        where = deployment.folder / "sites" / site / "runs" / run.name / "model.safetensors"
        load_weights(used, where)
        expected = experiment.method.offered(checkpoints[-1].state, Client(site))
        assert distance(expected, used.feature_weights()) < 1e-5


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("site.key", create_site_keys().private, "the server does not know this site's key"),
        ("ca.crt", create_authority("another").public, "not from this deployment's authority"),
    ],
)
def test_a_site_with_foreign_secrets_is_refused_and_told_why(
    deployment: Deployment, name: str, content: bytes, cause: str, tmp_path: Path
) -> None:
    home = tmp_path / LIAR
    shutil.copytree(deployment.folder / "sites" / LIAR, home)
    (home / name).write_bytes(content)
    before = deployment.fedwca("status").stdout
    words = [FEDWCA, "deploy", "client", "--site", LIAR, "--folder", str(home), "--data", "."]
    stranger = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert stranger.stdout is not None
        lines = [stranger.stdout.readline() for _ in range(2)]
    finally:
        stranger.terminate()
        rest, _ = stranger.communicate(timeout=30)
    assert cause in lines[1]
    assert "connected\n" not in [*lines, rest]
    assert deployment.fedwca("status").stdout == before
    if name == "site.key":
        output = (deployment.folder / "server.out").read_text()
        assert "refused a node whose key is unknown" in output


def run_supernode(folder: Path, *words: str) -> str:
    """Return the output of a SuperNode that gives up; its children are ended with it."""
    with (folder / "output").open("wb") as output:
        node = subprocess.Popen(
            words,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=flower_environment(folder),
        )
        try:
            assert node.wait(timeout=60) != 0
        finally:
            os.killpg(node.pid, signal.SIGKILL)
    return (folder / "output").read_text()


def test_a_node_without_a_key_or_tls_is_refused(deployment: Deployment, tmp_path: Path) -> None:
    server = load_server(deployment.folder)
    words = ["flower-supernode", "--superlink", f"127.0.0.1:{server.port}", "--host", "127.0.0.1"]
    words += ["--port", str(find_free_port()), "--max-retries", "1"]
    plain = run_supernode(tmp_path, *words, "--insecure")
    assert "Server disconnected without sending" in plain
    keyless = run_supernode(tmp_path, *words, "--root-certificates", str(server.folder / "ca.crt"))
    assert "[code: 2001] SuperNode authentication" in keyless
    deadline = time.monotonic() + 10
    output = deployment.folder / "server.out"
    while "refused a node without a registered key" not in output.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.5)
