"""A deployment whose processes are killed at random moments, and which is always resumed.

    python torture/deployment_kills.py FOLDER IMAGES

is the same run without Flower and without kills, in a process of its own.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tests"))

import numpy as np
from PIL import Image

from attack import Attack, held
from deployment import FEDWCA, SITES, Deployment, settings, source_model, write_toml
from fedwca.deploy.server import serve
from fedwca.deploy.site import Here, answer
from fedwca.experiments.config import resolve
from fedwca.experiments.progress import Silent
from fedwca.models import save_weights
from fedwca.notes import silent
from sites import FakeGrid, paths_of
from tiny_run import finished, kept, outcome, tensors, untidy

CLASSES = ("bar", "post", "square")
ROUNDS = 5
PAUSE = 4.0  # seconds from one kill to the next, at most
A_ROUND = 3  # kills before the next round must be done, so that all rounds have their share
_DAMAGED = "flwr-serverapp, and its newest checkpoint damaged"
# What is killed in one attempt: the ServerApp, a site's working process, what keeps them up.
KILLS = [
    *["flwr-serverapp", "flwr-serverapp", _DAMAGED],
    *["flwr-clientapp", "flwr-clientapp"],
    *["fedwca.deploy.superlink", "fedwca.deploy.supernode"],
    *["fedwca deploy server", "fedwca deploy client", "fedwca deploy run"],
]


def killed(folder: Path, number: int) -> int:
    """Kill one process after another; sites' models and results are those of an unbroken run."""
    world = _world(folder.parent)
    whole = folder.parent / "whole"
    if not whole.exists():
        finished([sys.executable, __file__, str(whole), str(world)])
    _run(folder, world, random.Random(number))
    held(_outcome(folder) == _outcome(whole), "the result is another one")
    held(not untidy(folder), f"left behind: {untidy(folder)}")
    return len(KILLS)


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


def _settings(images: Path) -> dict[str, dict[str, object]]:
    return settings("fedamp", images / "source.safetensors", ROUNDS)


def _unbroken(folder: Path, images: Path) -> None:
    """Server and sites in this process, their folders where a deployment has them."""
    home = folder / "deployment" / "sites"
    here = [Here(s, paths_of(images, s), home / s / "runs", threads=1) for s in SITES]
    grid = FakeGrid({n: lambda asked, h=h: answer(h, asked, silent) for n, h in enumerate(here)})
    places = folder / "deployment" / "server" / "runs", folder / "cache"
    expected = dict.fromkeys(SITES, "")
    serve(lambda *_: grid, resolve(_settings(images)), *places, lambda: expected, Silent())


def _run(folder: Path, images: Path, rng: random.Random) -> None:
    """A deployment from nothing to its end, with all kills."""
    running = Deployment(folder / "deployment", SITES, images)
    config = write_toml(folder / "run.toml", _settings(images))
    try:
        running.start()
        _driven(running, config, rng)
    finally:
        running.stop()
    held(not running.left(), f"processes are left: {running.left(0)}")


def _driven(running: Deployment, config: Path, rng: random.Random) -> None:
    """Start the run, or go on with it, until it is done."""
    words, cards, until = [str(config)], _Cards(running, rng), time.monotonic() + 900
    while True:
        runner = subprocess.Popen(
            [FEDWCA, "deploy", "run", *words, "--folder", str(running.folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "FEDWCA_CACHE": str(running.folder / "cache")},
        )
        cards.play_while(lambda r=runner: r.poll() is None and time.monotonic() < until)
        if runner.poll() is None:
            runner.kill()
        told = runner.communicate()[1]
        held(time.monotonic() < until, f"it was not done in time: {told[-500:]}")
        if runner.returncode == 0:
            break
        stopped = runner.returncode == 2 and "Traceback" not in told
        held(stopped or runner.returncode == -signal.SIGKILL, f"it said {told[-500:]}")
        if list(running.folder.glob("server/runs/*/config.json")):
            words = ["--resume"]
        # Where `deploy run` alone was killed, the run goes on, and is asked for now and then.
        again = time.monotonic() + (5 if "under way" in told else 1)
        cards.play_while(lambda t=again: time.monotonic() < t)
    held(not cards.left, f"it was done before these were killed: {cards.left}")
    cards.starts.check()


class _Cards:
    """What is still to be killed, one after another and in any order."""

    def __init__(self, running: Deployment, rng: random.Random) -> None:
        self._running, self._rng = running, rng
        self.left, self._next = [*KILLS], 0.0
        self.starts = _Starts(running.folder / "server")

    def play_while(self, lasts: Callable[[], bool]) -> None:
        while lasts():
            time.sleep(0.1)
            self.starts.look()
            self._play()

    def _play(self) -> None:
        """Kill one, once it is time and any is there."""
        folder, made = self._running.folder, len(KILLS) - len(self.left)
        early = time.monotonic() < self._next or made >= A_ROUND * (1 + _rounds(folder))
        if early or not self.left:
            return
        alive = self._running._alive()
        found = {card: [line for line in alive if _is_of(card, line)] for card in set(self.left)}
        if not _sites_are_ahead(folder):
            found.pop(_DAMAGED, None)
        there = sorted(card for card, lines in found.items() if lines)
        if there and list(folder.glob("server/runs/*/log.txt")):  # it has begun
            card = self._rng.choice(there)
            self._kill(card, int(self._rng.choice(found[card]).split()[0]))

    def _kill(self, card: str, process: int) -> None:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:  # it has just ended by itself
            return
        if card == _DAMAGED:
            self.starts.damage()
        self.left.remove(card)
        self._next = time.monotonic() + self._rng.uniform(0, PAUSE)
        with (self._running.folder.parent / "kills.txt").open("a") as file:  # should it be lost
            file.write(f"{time.strftime('%H:%M:%S')} {card}\n")


class _Starts:
    """Looks on as the server starts: each time it has to go on from the newest whole checkpoint.

    Between its end and its next start, which takes seconds, nothing changes on its disk.
    """

    def __init__(self, server: Path) -> None:
        self._server, self._seen, self._newest, self._damaged = server, 0, 0, 0
        self._resumed = self._stepped_back = 0

    def look(self) -> None:
        """What it has said of its starts since, and what is on the disk now."""
        said = " ".join(path.read_text() for path in self._server.glob("runs/*/log.txt"))
        starts = re.findall(r": \d+ rounds, (\d+) of them done", said)
        for done in map(int, starts[self._seen :]):
            told = f"the server went on after {done} rounds, not after {self._newest}"
            held(done == self._newest, told)
            self._resumed += done > 0
            self._stepped_back += self._damaged > 0
            self._damaged = 0  # it is made again
        self._seen = len(starts)
        newest = max((n for n in kept(self._server) if n != self._damaged), default=0)
        held(newest >= self._newest, f"checkpoint {self._newest} is gone")
        self._newest = newest

    def damage(self) -> None:
        """Cut off the newest checkpoint, so that the one before it must serve."""
        self._damaged = kept(self._server)[-1]
        (state,) = self._server.glob(f"runs/*/checkpoint-{self._damaged:05d}/state.safetensors")
        os.truncate(state, state.stat().st_size // 2)
        self._newest = 0
        self.look()

    def check(self) -> None:
        """Whether it came to all that at all."""
        self.look()
        held(self._resumed > 1, f"of its starts only {self._resumed} went on with rounds")
        held(self._stepped_back == 1, "it did not go on from the one before a damaged checkpoint")


def _is_of(card: str, process: str) -> bool:
    return re.search(rf"[/ ]{re.escape(card.partition(',')[0])} ", f"{process} ") is not None


def _sites_are_ahead(deployment: Path) -> bool:
    """Whether a site has done the round after the newest of two checkpoints."""
    after = f"memory-{_rounds(deployment) + 1:05d}.safetensors"
    ahead = list(deployment.glob(f"sites/*/runs/*/{after}"))
    return len(kept(deployment / "server")) > 1 and bool(ahead)


def _rounds(deployment: Path) -> int:
    """How many are done."""
    return max(kept(deployment / "server"), default=0)


def _outcome(folder: Path) -> tuple[Any, ...]:
    lines, models, source = outcome(folder / "deployment" / "server")
    for line in lines:
        for name in ("bytes_down", "bytes_up"):  # what a killed server knew of sites is sent again
            line.pop(name, None)
    sites = folder.glob("deployment/sites/*/runs/*/model.safetensors")
    used = {path.parts[-4]: tensors(path) for path in sites}
    held(len(used) == len(SITES), f"only {sorted(used)} have a model")
    return json.dumps(lines), models, source, used


ATTACKS = [Attack("deployment killed by SIGKILL and resumed", killed, times=2, short=0)]

if __name__ == "__main__":
    _unbroken(Path(sys.argv[1]), Path(sys.argv[2]))
