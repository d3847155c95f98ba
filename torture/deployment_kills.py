"""A deployment whose processes are killed at random moments, and which is always resumed."""

import json
import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attack import Attack, held
from deployment import FEDWCA, SITES, Deployment, settings, source_model, write_toml
from fedwca.models import read_seal, save_weights
from tiny_run import outcome, untidy

KILLS = 10  # in one attempt
CLASSES = ("bar", "post", "square")
# The ServerApp, a site's working process, the SuperLink, a SuperNode, which is missed for a minute.
TARGETS = ["flwr-serverapp"] * 4 + ["flwr-clientapp"] * 4 + ["flower-superlink", "flower-supernode"]


def killed(folder: Path, number: int) -> int:
    """Kill one process after another; sites' models and results are those of an unbroken run."""
    world = _world(folder.parent)
    whole = folder.parent / "whole"
    if not (whole / "outcome").exists():
        whole.mkdir()
        _run(whole, world, random.Random(number), 0)
        (whole / "outcome").touch()
    kills = _run(folder, world, random.Random(number), KILLS)
    held(_outcome(folder) == _outcome(whole), "the result is another one")
    held(not untidy(folder), f"left behind: {untidy(folder)}")
    return kills


def _world(world: Path) -> Path:
    """Images for three sites, and a source model."""
    images = world / "world"
    if not images.exists():
        for seed, site in enumerate(SITES):
            rng = np.random.default_rng(seed)
            for row in range(24):
                label = CLASSES[row % 3]
                test = images / "test" / site / label
                place = images / "images" / site if row < 18 else test
                place.mkdir(parents=True, exist_ok=True)
                pixels = rng.integers(0, 200, (24, 24, 3), np.uint8)
                Image.fromarray(pixels).save(place / f"{row:02d}.png")
        save_weights(source_model(CLASSES), images / "source.safetensors", classes=CLASSES)
    return images


def _run(folder: Path, images: Path, rng: random.Random, kills: int) -> int:
    """A deployment from nothing to its end; how many kills there were."""
    running = Deployment(folder / "deployment", SITES, images)
    content = settings("fedamp", images / "source.safetensors", rounds=12)
    config = write_toml(folder / "run.toml", content)
    try:
        running.start()
        done = _driven(running, config, rng, kills)
    finally:
        running.stop()
    held(not running.left(), f"processes are left: {running.left(0)}")
    return done


def _driven(running: Deployment, config: Path, rng: random.Random, kills: int) -> int:
    words, done = [str(config)], 0
    until = time.monotonic() + 900
    while True:
        runner = subprocess.Popen(
            [FEDWCA, "deploy", "run", *words, "--folder", str(running.folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "FEDWCA_CACHE": str(running.folder / "cache")},
        )
        while runner.poll() is None and time.monotonic() < until:
            time.sleep(rng.uniform(0, 2))
            if done < kills and runner.poll() is None:
                done += _kill(running, rng)
        if runner.poll() is None:
            runner.kill()
        told = runner.communicate()[1]
        if runner.returncode == 0:
            return done
        held(time.monotonic() < until, f"it was not done in time: {told[-500:]}")
        held(runner.returncode == 2 and "Traceback" not in told, f"it said {told[-500:]}")
        if list(running.folder.glob("server/runs/*/config.json")):
            words = ["--resume"]
        time.sleep(2)  # a SuperLink that was killed is started again


def _kill(running: Deployment, rng: random.Random) -> int:
    """Kill one process of a kind, if there is any; how many."""
    if not list(running.folder.glob("server/runs/*/log.txt")):
        return 0  # nothing has begun
    kind = rng.choice(TARGETS)
    found = [line.split()[0] for line in running._alive() if f"/{kind} " in f"{line} "]
    if not found:
        return 0
    with suppress(ProcessLookupError):
        os.kill(int(rng.choice(found)), signal.SIGKILL)
    return 1


def _outcome(folder: Path) -> tuple[Any, ...]:
    lines, models, source = outcome(folder / "deployment" / "server")
    for line in lines:
        for name in ("bytes_down", "bytes_up"):  # what a killed server knew of sites is sent again
            line.pop(name, None)
    sites = folder.glob("deployment/sites/*/runs/*/model.safetensors")
    used = {path.parts[-4]: read_seal(path) for path in sites}
    return json.dumps(lines), models, source, used


ATTACKS = [Attack("deployment killed by SIGKILL and resumed", killed, times=2, short=0)]
