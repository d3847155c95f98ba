"""Kill the processes of a deployment at random moments, and resume it until it is done.

    python -m torture.deployment_kills FOLDER IMAGES

does the same run without Flower and without kills, to compare with.
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

from fedwca.deploy.server import serve
from fedwca.engines.flower.site import SiteConfig, handle_request
from fedwca.experiments.config import resolve
from fedwca.models import save_weights
from tests.support.deployment import FEDWCA, SITES, Deployment, settings, source_model, write_toml
from tests.support.sites import FakeGrid, paths_of
from torture import module_command, module_environment
from torture.attack import Attack, check
from torture.quick_sites import CLASSES, write_noise
from torture.tiny_run import (
    check_no_stale_files,
    checkpoint_rounds,
    newest_checkpoint,
    read_outcome,
    read_tensors,
    run_to_end,
)

ROUNDS = 5
MAX_PAUSE = 4.0  # seconds from one kill to the next
KILLS_PER_ROUND = 3  # so that all rounds get their share
_CORRUPT = "flwr-serverapp, with a corrupt newest checkpoint"
# Killed in one attempt: the ServerApp, ClientApps, their parents, and the commands.
KILLS = [
    *["flwr-serverapp", "flwr-serverapp", _CORRUPT],
    *["flwr-clientapp", "flwr-clientapp"],
    *["fedwca.deploy.superlink", "fedwca.deploy.supernode"],
    *["fedwca deploy server", "fedwca deploy client", "fedwca deploy run"],
]


def kill_processes(folder: Path, number: int) -> int:
    """Kill one process after another; models and results must equal those of an undisturbed run."""
    images = _write_images(folder.parent)
    expected = folder.parent / "undisturbed"
    if not expected.exists():
        run_to_end(
            module_command("torture.deployment_kills", expected, images), **module_environment()
        )
    _run_with_kills(folder, images, random.Random(number))
    check(_outcome(folder) == _outcome(expected), "the result differs")
    check_no_stale_files(folder)
    return len(KILLS)


def _write_images(folder: Path) -> Path:
    """Write images for three sites and a source model."""
    images = folder / "world"
    if not images.exists():
        write_noise(images, SITES, side=24)
        save_weights(source_model(CLASSES), images / "source.safetensors", classes=CLASSES)
    return images


def _settings(images: Path) -> dict[str, dict[str, object]]:
    return settings("fedamp", images / "source.safetensors", ROUNDS)


def _run_undisturbed(folder: Path, images: Path) -> None:
    """Run server and sites in this process, with the folders of a deployment."""
    home = folder / "deployment" / "sites"
    configs = [SiteConfig(s, paths_of(images, s), home / s / "runs", threads=1) for s in SITES]
    grid = FakeGrid(
        {n: lambda request, c=c: handle_request(c, request) for n, c in enumerate(configs)}
    )
    runs, cache = folder / "deployment" / "server" / "runs", folder / "cache"
    keys = dict.fromkeys(SITES, "")
    serve(lambda *_: grid, resolve(_settings(images)), runs, cache, lambda: keys)


def _run_with_kills(folder: Path, images: Path, rng: random.Random) -> None:
    """Run a deployment from `init` to its end, with all kills."""
    running = Deployment(folder / "deployment", SITES, images)
    config = write_toml(folder / "run.toml", _settings(images))
    try:
        running.start()
        _drive(running, config, rng)
    finally:
        running.stop()
    check(not running.remaining_processes(), f"processes remain: {running.processes()}")


def _drive(running: Deployment, config: Path, rng: random.Random) -> None:
    """Start and resume the run until it is done."""
    words, killer, deadline = [str(config)], _Killer(running, rng), time.monotonic() + 900
    while True:
        runner = subprocess.Popen(
            [FEDWCA, "deploy", "run", *words, "--folder", str(running.folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "FEDWCA_CACHE": str(running.folder / "cache")},
        )
        killer.kill_while(lambda r=runner: r.poll() is None and time.monotonic() < deadline)
        if runner.poll() is None:
            runner.kill()
        errors = runner.communicate()[1]
        check(time.monotonic() < deadline, f"it was not done in time: {errors[-500:]}")
        if runner.returncode == 0:
            break
        stopped = runner.returncode == 2 and "Traceback" not in errors
        check(
            stopped or runner.returncode == -signal.SIGKILL, f"unexpected output: {errors[-500:]}"
        )
        if list(running.folder.glob("server/runs/*/config.json")):
            words = ["--resume"]
        # If only `deploy run` was killed, the run continues: try again now and then.
        retry = time.monotonic() + (5 if "another run is running" in errors else 1)
        killer.kill_while(lambda t=retry: time.monotonic() < t)
    check(not killer.pending, f"it was done before these were killed: {killer.pending}")
    killer.starts.check()


class _Killer:
    """Kills one process of each kind in `KILLS`, in random order; ended services are restarted."""

    def __init__(self, running: Deployment, rng: random.Random) -> None:
        self._running, self._rng = running, rng
        self.pending, self._next = [*KILLS], 0.0
        self.starts = _Starts(running.folder / "server")

    def kill_while(self, condition: Callable[[], bool]) -> None:
        while condition():
            time.sleep(0.1)
            self.starts.poll()
            self._running.restart_ended()
            self._kill_next()

    def _kill_next(self) -> None:
        """Kill one process, if it is time and one is alive."""
        folder, made = self._running.folder, len(KILLS) - len(self.pending)
        early = time.monotonic() < self._next or made >= KILLS_PER_ROUND * (1 + _rounds(folder))
        if early or not self.pending:
            return
        alive = self._running.processes()
        found = {kind: [p for p in alive if _is_of(kind, p)] for kind in set(self.pending)}
        if not _sites_are_ahead(folder):
            found.pop(_CORRUPT, None)
        kinds = sorted(kind for kind, processes in found.items() if processes)
        if kinds and list(folder.glob("server/runs/*/log.txt")):  # the run has started
            kind = self._rng.choice(kinds)
            self._kill(kind, int(self._rng.choice(found[kind]).split()[0]))

    def _kill(self, kind: str, process: int) -> None:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:  # it has just ended
            return
        if kind == _CORRUPT:
            self.starts.corrupt_newest()
        self.pending.remove(kind)
        self._next = time.monotonic() + self._rng.uniform(0, MAX_PAUSE)
        with (self._running.folder.parent / "kills.txt").open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {kind}\n")


class _Starts:
    """Checks that each start of the server resumes from the newest valid checkpoint.

    Between its end and its next start, which takes seconds, nothing changes on its disk.
    """

    def __init__(self, server: Path) -> None:
        self._server, self._seen, self._newest, self._corrupt = server, 0, 0, 0
        self._resumed = self._stepped_back = 0

    def poll(self) -> None:
        """Check the starts in the log since the last call, and remember the checkpoints on disk."""
        logs = " ".join(path.read_text() for path in self._server.glob("runs/*/log.txt"))
        starts = re.findall(r": \d+ rounds, (\d+) done", logs)
        for done in map(int, starts[self._seen :]):
            expected = f"the server resumed after {done} rounds, not after {self._newest}"
            check(done == self._newest, expected)
            self._resumed += done > 0
            self._stepped_back += self._corrupt > 0
            self._corrupt = 0  # it is written again
        self._seen = len(starts)
        newest = max((n for n in checkpoint_rounds(self._server) if n != self._corrupt), default=0)
        check(newest >= self._newest, f"checkpoint {self._newest} is gone")
        self._newest = newest

    def corrupt_newest(self) -> None:
        """Truncate the newest checkpoint, so that the one before it must be used."""
        self._corrupt = checkpoint_rounds(self._server)[-1]
        (state,) = self._server.glob(f"runs/*/checkpoint-{self._corrupt:05d}/state.safetensors")
        os.truncate(state, state.stat().st_size // 2)
        self._newest = 0
        self.poll()

    def check(self) -> None:
        """Check that the server was resumed, and once from an older checkpoint."""
        self.poll()
        check(self._resumed > 1, f"only {self._resumed} starts resumed a run")
        check(self._stepped_back == 1, "no start used the checkpoint before a corrupt one")


def _is_of(kind: str, process: str) -> bool:
    return re.search(rf"[/ ]{re.escape(kind.partition(',')[0])} ", f"{process} ") is not None


def _sites_are_ahead(deployment: Path) -> bool:
    """Return whether a site has done the round after the newest of two checkpoints."""
    after = f"memory-{_rounds(deployment) + 1:05d}.safetensors"
    ahead = list(deployment.glob(f"sites/*/runs/*/{after}"))
    return len(checkpoint_rounds(deployment / "server")) > 1 and bool(ahead)


def _rounds(deployment: Path) -> int:
    """Return how many rounds are done."""
    return newest_checkpoint(deployment / "server")


def _outcome(folder: Path) -> tuple[Any, ...]:
    lines, models, source = read_outcome(folder / "deployment" / "server")
    for line in lines:
        for name in ("bytes_down", "bytes_up"):  # a restarted server sends known tensors again
            line.pop(name, None)
    sites = folder.glob("deployment/sites/*/runs/*/model.safetensors")
    used = {path.parts[-4]: read_tensors(path) for path in sites}
    check(len(used) == len(SITES), f"only {sorted(used)} have a model")
    return json.dumps(lines), models, source, used


ATTACKS = [
    Attack(
        "processes of a deployment killed with SIGKILL and resumed",
        kill_processes,
        times=2,
        short_times=0,
    )
]

if __name__ == "__main__":
    _run_undisturbed(Path(sys.argv[1]), Path(sys.argv[2]))
