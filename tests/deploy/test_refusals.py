"""Who must not come in stays out, and a site that lies changes nothing: on real processes."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployment import FEDWCA, SITES, SIZE, Deployment, settings, source_model, write_toml
from fedwca.core.params import clone, distance
from fedwca.data.augment import object_transform
from fedwca.deploy.certificates import authority, site_keys
from fedwca.deploy.kit import server_kit
from fedwca.deploy.processes import environment, flower, free_port
from fedwca.engines.flower_messages import Reply, Request
from fedwca.experiments.config import resolve
from fedwca.methods import Client, Record
from fedwca.models import load_weights, read_class_names
from mischief import FEW_TRICKS, TRICKS
from sites import FakeGrid, engine_for, run_rounds, site_program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are told by /proc"),
]
LIAR = "mill"
ROUNDS = 1 + -(-len(FEW_TRICKS) // 3)  # a site is asked three times a round

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
    # So much is not even fetched, where Flower is between.
    reasons = {name: TRICKS[name].reason for name in FEW_TRICKS} | {"junk": "it is more than "}
    for name, reason in reasons.items():
        assert reason in log, f"nothing is said of {name}: {log}"
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    refused = [why for line in lines for why in line.get("refused", {}).get(LIAR, [])]
    assert len(refused) == 3 * (ROUNDS - 1)
    row = next(r for r in deployment.fedwca("status").stdout.splitlines() if r.startswith(LIAR))
    assert f" {len(refused)} " in row

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


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("site.key", site_keys().private, "the server does not know this key"),
        ("ca.crt", authority("another").public, "not of this deployment's authority"),
    ],
)
def test_a_stranger_is_told_why_and_not_let_in(
    deployment: Deployment, name: str, content: bytes, said: str, tmp_path: Path
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
    assert said in lines[1]
    assert "connected\n" not in [*lines, rest]
    assert deployment.fedwca("status").stdout == before
    if name == "site.key":
        told = (deployment.folder / "server.out").read_text()
        assert "a node was refused: its key is not known" in told


def run_once(folder: Path, *words: str) -> str:
    """What a SuperNode says until it gives up; its own children are ended with it."""
    with (folder / "said").open("wb") as said:
        node = subprocess.Popen(
            [flower(words[0]), *words[1:]],
            stdout=said,
            stderr=said,
            start_new_session=True,
            env=environment(folder),
        )
        try:
            assert node.wait(timeout=60) != 0
        finally:
            os.killpg(node.pid, signal.SIGKILL)
    return (folder / "said").read_text()


def test_a_node_without_a_key_or_tls_is_not_let_in(deployment: Deployment, tmp_path: Path) -> None:
    kit = server_kit(deployment.folder)
    words = ["flower-supernode", "--superlink", f"127.0.0.1:{kit.port}", "--host", "127.0.0.1"]
    words += ["--port", str(free_port()), "--max-retries", "1"]
    plain = run_once(tmp_path, *words, "--insecure")
    assert "Server disconnected without sending" in plain
    keyless = run_once(tmp_path, *words, "--root-certificates", str(kit.folder / "ca.crt"))
    assert "[code: 2001] SuperNode authentication" in keyless
    until = time.monotonic() + 10
    told = deployment.folder / "server.out"
    while "a node without a registered key was refused" not in told.read_text():
        assert time.monotonic() < until
        time.sleep(0.5)
