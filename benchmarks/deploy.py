"""Measure the overhead of a deployed round, and how much of it is Flower's.

    python benchmarks/deploy.py [--rounds 6] [--backbone lenet]

Three sites with eight images each run FedWCA, so that almost nothing is trained. The same rounds
run in three ways, one after the other on this machine:

- simulator: one process, no messages;
- in process: the deployed code of server and sites (encoding, hashing, checks, files), with
  function calls instead of Flower;
- Flower: SuperLink, three SuperNodes, TLS and keys, a new process for every message.

fedwca's part of the overhead is "in process" less "simulator", plus its import in each new process.
The first round is left out.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from PIL import Image

from fedwca._support.machine import count_cores
from fedwca.core.params import clone
from fedwca.data.augment import object_transform
from fedwca.data.site_images import load_site_images
from fedwca.engines.flower.engine import Rules
from fedwca.engines.simulator.simulator import Simulator
from fedwca.experiments.config import Experiment, resolve
from fedwca.models import DomainModel, build_model, save_weights
from tests.support.deployment import Deployment, write_toml
from tests.support.sites import FakeGrid, RunLog, engine_for, paths_of, run_rounds, site_program

SITES = ["a", "b", "c"]
CLASSES = tuple("0123456789")
IMAGES = 8


def settings(folder: Path, backbone: str, rounds: int) -> dict[str, dict[str, Any]]:
    return {
        "data": {"benchmark": "images", "image_size": 32},
        "model": {"backbone": backbone, "bottleneck": 256},
        "source": {"weights": str(folder / "source.safetensors")},
        "method": {"name": "fedwca"},
        "training": {"rounds": rounds, "epochs": 1, "batch_size": IMAGES},
        "deploy": {"least_sites": len(SITES)},
    }


def write_images(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for site in SITES:
        for part, count in (("images", IMAGES), ("test", 2)):
            place = folder / part / site / "0" if part == "test" else folder / part / site
            place.mkdir(parents=True)
            for row in range(count):
                pixels = rng.integers(0, 256, (32, 32, 3), np.uint8)
                Image.fromarray(pixels).save(place / f"{row}.png")


def new_model(experiment: Experiment) -> DomainModel:
    size = object_transform(32).crop
    model = build_model(experiment.model.backbone, len(CLASSES), image_size=size, bottleneck=256)
    model.freeze_classifier()
    return model


def round_seconds(lines: list[dict[str, Any]]) -> list[float]:
    """Return the seconds of every round but the first; the last exchange only evaluates."""
    return [line["seconds"] for line in lines if line.get("seconds") is not None][1:]


def run_in_simulator(folder: Path, experiment: Experiment) -> list[float]:
    transform = object_transform(32)
    clients = [load_site_images(s, paths_of(folder, s), CLASSES, 32, transform) for s in SITES]
    model = new_model(experiment)
    engine = Simulator(model, experiment.method, clients, 0, folder / "scratch")
    log = RunLog()
    run_rounds(engine, experiment.method, clone(model.feature_weights()), log)
    return round_seconds(log.lines)


def run_in_process(folder: Path, experiment: Experiment) -> list[float]:
    model = new_model(experiment)
    programs = {n: site_program(folder, site, folder / "home") for n, site in enumerate(SITES)}
    expected, rules = dict.fromkeys(SITES, ""), Rules(least_sites=len(SITES))
    engine, log = engine_for(
        *(FakeGrid(programs), experiment, model, CLASSES, expected),
        rules=rules,
        transform=object_transform(32),
    )
    run_rounds(engine, experiment.method, clone(model.feature_weights()), log)
    return round_seconds(log.lines)


def run_with_flower(folder: Path, content: dict[str, dict[str, Any]]) -> list[float]:
    deployment = Deployment(folder / "deployment", SITES, folder)
    deployment.start()
    try:
        config = write_toml(folder / "run.toml", content)
        done = deployment.fedwca("run", str(config), timeout=1800)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
    finally:
        deployment.stop()
    (results,) = (folder / "deployment" / "server" / "runs").glob("*/results.jsonl")
    return round_seconds([json.loads(line) for line in results.read_text().splitlines()])


def import_seconds(statement: str) -> float:
    """Return the shortest of five times that a new process takes to import something."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--backbone", default="lenet")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="deploy-") as path:
        folder = Path(path)
        write_images(folder)
        content = settings(folder, options.backbone, options.rounds)
        experiment = resolve(content)
        model = new_model(experiment)
        save_weights(model, folder / "source.safetensors", classes=CLASSES)
        megabytes = sum(t.nbytes for t in model.feature_weights().values()) / 1e6
        rounds = {
            "simulator": run_in_simulator(folder, experiment),
            "in process": run_in_process(folder, experiment),
            "Flower": run_with_flower(folder, content),
        }
    network = f"{options.backbone}, {megabytes:.1f} MB per model"
    print(f"{len(SITES)} sites, {network}; seconds per round")
    for name, seconds in rounds.items():
        spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
        print(f"  {name:10} {statistics.median(seconds):8.3f}   ({spread}, {len(seconds)} rounds)")
    others = import_seconds("import flwr.app, torch")
    own_import = import_seconds("import fedwca.flower_app") - others
    median = {name: statistics.median(seconds) for name, seconds in rounds.items()}
    overhead = median["Flower"] - median["simulator"]
    work = median["in process"] - median["simulator"]
    imports = len(SITES) * own_import / count_cores()  # all sites share this machine
    print(f"importing fedwca (without flwr and torch): {own_import:.2f} s per process")
    print(
        f"overhead of a deployed round: {overhead:.2f} s; fedwca's part: {work:.2f} s of work and "
        f"about {imports:.2f} s of imports"
    )


if __name__ == "__main__":
    main()
