"""What a round costs beside training: simulator, our half of a deployment, and Flower's processes.

    python benchmarks/deploy.py [--rounds 6] [--backbone lenet]

Three sites with eight images each, so that next to nothing is trained; FedWCA. Three ways of
the very same rounds, one after the other on this machine:

- simulator: one process, nothing is packed;
- ours: the deployed code of server and site, packing, hashing, checks, memory and model on disk,
  with messages handed over by function calls;
- Flower: SuperLink, three SuperNodes, TLS and keys, a new process for every message.

What is ours of a deployed round is the second less the first, and what a site's new process spends
on importing this package beyond Flower and PyTorch. The first round is left out everywhere.
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

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import numpy as np
from PIL import Image

from deployment import Deployment, write_toml
from fedwca.core.params import clone
from fedwca.data.augment import object_transform
from fedwca.data.site_images import site_images
from fedwca.engines.flower import Rules
from fedwca.engines.simulator import Simulator
from fedwca.experiments.config import Experiment, resolve
from fedwca.machine import cores
from fedwca.models import DomainModel, build_model, save_weights
from sites import FakeGrid, Told, engine_for, paths_of, run_rounds, site_program

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


def seconds_of(lines: list[dict[str, Any]]) -> list[float]:
    """Of every round but the first; the last exchange only scores and is none."""
    return [line["seconds"] for line in lines if line.get("seconds") is not None][1:]


def in_simulator(folder: Path, experiment: Experiment) -> list[float]:
    transform = object_transform(32)
    clients = [site_images(s, paths_of(folder, s), CLASSES, 32, transform) for s in SITES]
    model = new_model(experiment)
    engine = Simulator(model, experiment.method, clients, 0, folder / "scratch")
    told = Told()
    run_rounds(engine, experiment.method, clone(model.feature_state()), told)
    return seconds_of(told.lines)


def in_our_half(folder: Path, experiment: Experiment) -> list[float]:
    model = new_model(experiment)
    programs = {n: site_program(folder, site, folder / "home") for n, site in enumerate(SITES)}
    engine, told = engine_for(
        FakeGrid(programs),
        experiment,
        model,
        CLASSES,
        dict.fromkeys(SITES, ""),
        rules=Rules(least_sites=len(SITES)),
        transform=object_transform(32),
    )
    run_rounds(engine, experiment.method, clone(model.feature_state()), told)
    return seconds_of(told.lines)


def over_flower(folder: Path, content: dict[str, dict[str, Any]]) -> list[float]:
    deployment = Deployment(folder / "deployment", SITES, folder)
    deployment.start()
    try:
        config = write_toml(folder / "run.toml", content)
        done = deployment.fedwca("run", str(config), wait=1800)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
    finally:
        deployment.stop()
    (results,) = (folder / "deployment" / "server" / "runs").glob("*/results.jsonl")
    return seconds_of([json.loads(line) for line in results.read_text().splitlines()])


def import_seconds(statement: str) -> float:
    """Of a new process that imports something; the quickest of five."""
    found = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        found.append(time.perf_counter() - started)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--backbone", default="lenet")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="deploy-") as name:
        folder = Path(name)
        write_images(folder)
        content = settings(folder, given.backbone, given.rounds)
        experiment = resolve(content)
        model = new_model(experiment)
        save_weights(model, folder / "source.safetensors", classes=CLASSES)
        megabytes = sum(t.nbytes for t in model.feature_state().values()) / 1e6
        rounds = {
            "simulator": in_simulator(folder, experiment),
            "ours": in_our_half(folder, experiment),
            "Flower": over_flower(folder, content),
        }
    print(f"{len(SITES)} sites, {given.backbone}, {megabytes:.1f} MB a model; seconds a round")
    for way, seconds in rounds.items():
        spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
        print(f"  {way:10} {statistics.median(seconds):8.3f}   ({spread}, {len(seconds)} rounds)")
    beyond = import_seconds("import fedwca.flower_app") - import_seconds("import flwr.app, torch")
    median = {way: statistics.median(seconds) for way, seconds in rounds.items()}
    ours = median["ours"] - median["simulator"]
    waves = len(SITES) * beyond / cores()  # all sites' processes share this machine
    print(f"importing fedwca beyond flwr and torch: {beyond:.2f} s in each new process")
    overhead = median["Flower"] - median["simulator"]
    print(
        f"overhead of a deployed round {overhead:.2f} s, of which ours: {ours:.2f} s of work and "
        f"some {waves:.2f} s of importing"
    )


if __name__ == "__main__":
    main()
