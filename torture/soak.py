"""Inject faults into one process for a long time; its memory must stay flat.

    python -m torture.soak [--minutes 30] [--seed 0]

Simulations with killed workers, corrupt checkpoints and resumption alternate with deployed rounds
whose sites reply wrongly, are late, are lost and return. Memory, open files and threads are sampled
in between. The exit code is 1 if a result differs from the undisturbed one, or if memory grows by
more than the limit over the second half.
"""

import argparse
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler
from multiprocessing import active_children
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from fedwca.core.params import clone
from fedwca.engines.flower import collector
from fedwca.engines.flower.engine import Rules
from fedwca.engines.simulator.simulator import Simulator
from fedwca.experiments.rounds import federate
from fedwca.experiments.store import Checkpoint, RunFolder
from tests.support.sites import engine_for, run_rounds, settings, site_program
from torture.attack import Attack, check
from torture.faulty_grid import FaultyGrid
from torture.load import create_clients
from torture.memory import Usage, current_usage, run_module
from torture.quick_sites import CLASSES, new_model, write_noise

MAX_GROWTH = 8.0  # MiB of memory over the second half, by a fitted line
RULES = Rules(least_sites=1, start_seconds=0.2, round_seconds=2.0, return_seconds=0.2)


class InterruptedRunError(Exception):
    """A simulation is stopped after a round."""


class Simulations:
    """Repeats one simulation with random faults."""

    def __init__(self, folder: Path, faults: "Counter[str]") -> None:
        self._folder, self._faults = folder, faults
        self._clients = create_clients(6, folder / "pixels.npy")
        self._method = settings("fedwca", rounds=3).method
        self._expected = self._run(folder / "undisturbed", workers=1)

    def run_with_faults(self, chance: random.Random) -> int:
        """Stop after a round, corrupt a checkpoint, resume; kill a worker each time."""
        place = self._folder / "disturbed"
        with self._killed_worker(chance):
            try:
                self._run(place, workers=2, until=(rounds := chance.randint(1, 2)))
            except InterruptedRunError:
                self._faults["resumed"] += 1
        if chance.random() < 0.5:
            file = chance.choice(sorted(max(place.glob("checkpoint-*")).iterdir()))
            os.truncate(file, chance.randrange(file.stat().st_size))
            self._faults["corrupt checkpoint"] += 1
            rounds -= 1
        with self._killed_worker(chance):
            found = self._run(place, workers=2, done=rounds)
        check(found == self._expected, "the result of a disturbed simulation differs")
        shutil.rmtree(place)
        return 4

    def _run(
        self, path: Path, workers: int, until: int = 99, done: int = 0
    ) -> list[dict[str, Any]]:
        run = RunFolder.open(path, {}, {})
        run.clean()
        model = new_model()
        first = Checkpoint(0, self._method.init(clone(model.feature_weights())), {}, {})
        start = run.load_checkpoint() or first
        check(start.rounds == done, f"resumed after {start.rounds} rounds, not {done}")
        run.rewind(start.rounds)
        engine = Simulator(model, self._method, self._clients, 0, run.scratch, workers)
        try:
            for result in federate(self._method, engine, start):
                if isinstance(result, Checkpoint):
                    run.save_checkpoint(result)
                    if result.rounds == until:
                        raise InterruptedRunError
                else:
                    run.append(result)
        finally:
            engine.close()
        check(not run.scratch.exists(), "the scratch folder remains")
        check(not list(path.glob("*.tmp")), "a temporary file remains")
        return [{k: v for k, v in line.items() if k != "seconds"} for line in run.lines()]

    @contextmanager
    def _killed_worker(self, chance: random.Random) -> Iterator[None]:
        """Kill one worker at a random moment after its start."""
        stopped, pause = threading.Event(), chance.uniform(0, 4)

        def kill() -> None:
            while not (workers := active_children()):
                if stopped.wait(0.05):
                    return
            if not stopped.wait(pause) and workers[0].is_alive():
                os.kill(workers[0].pid or 0, signal.SIGKILL)
                self._faults["killed worker"] += 1

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()


class Deployment:
    """Runs one engine all the time, with sites in this process and random faults."""

    def __init__(self, folder: Path, faults: "Counter[str]", chance: random.Random) -> None:
        self._faults = faults
        sites = write_noise(folder, ["dim", "noisy", "bright"], side=16)
        programs = {site: site_program(folder, site, folder / "home") for site in sites}
        self._grid = FaultyGrid(programs, "dim", chance, faults)
        self._model, self._experiment = new_model(), settings("fedwca", rounds=4)
        expected = dict.fromkeys(sites, "")
        self._messages: SimpleQueue[logging.LogRecord] = SimpleQueue()
        logger = logging.getLogger("fedwca.engines.flower")
        logger.setLevel(logging.INFO)
        logger.addHandler(QueueHandler(self._messages))
        self._engine, self._log = engine_for(
            self._grid, self._experiment, self._model, CLASSES, expected, rules=RULES
        )

    def run_with_faults(self) -> int:
        """Run four rounds and the final evaluation; check that only right replies are used."""
        source, before = clone(self._model.feature_weights()), (self._wrong(), self._refused())
        run_rounds(self._engine, self._experiment.method, source, self._log)
        wrong, refused = self._wrong() - before[0], self._refused() - before[1]
        messages = [self._messages.get().getMessage() for _ in range(self._messages.qsize())]
        late = sum("too late" in message for message in messages)
        rejected = f"{refused} of {wrong} wrong replies were rejected"
        check(refused <= wrong <= refused + late, rejected)
        lines = self._log.lines
        check(len(lines) == 5, f"{len(lines)} lines of results")
        check(all("dim" in line["clients"] for line in lines), "an honest site is missing")
        self._log.lines.clear()
        return 5

    def _wrong(self) -> int:
        return self._faults["wrong reply"] + self._faults["corrupt reply"]

    def _refused(self) -> int:
        return sum(facts["refused"] for facts in self._log.sites.values())


def soak(minutes: float, seed: int) -> dict[str, Any]:
    collector._POLL_SECONDS = 0.02
    chance, faults = random.Random(seed), Counter[str]()
    samples: list[tuple[float, Usage]] = []
    started, rounds, turns = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        deployed = Deployment(folder, faults, chance)
        simulated = Simulations(folder, faults)
        while (now := time.monotonic() - started) < 60 * minutes:
            simulates = turns % 3 == 0
            rounds += simulated.run_with_faults(chance) if simulates else deployed.run_with_faults()
            turns += 1
            if not samples or now >= samples[-1][0] + min(30, minutes * 1.5):
                samples.append((now, current_usage()))
                print(f"{now:6.0f} s {rounds:6} rounds {samples[-1][1]}", file=sys.stderr)
    return {
        "minutes": minutes,
        "rounds": rounds,
        "faults": dict(faults),
        "growth": fit_growth(samples),
        "samples": [[round(when), *what] for when, what in samples],
    }


def fit_growth(samples: list[tuple[float, Usage]]) -> float:
    """Return MiB of growth over the second half, by a fitted line; the first half warms up."""
    half = samples[len(samples) // 2 :]
    when, memory = (np.array(row) for row in zip(*((w, h.memory) for w, h in half), strict=True))
    slope, _ = np.polyfit(when, memory, 1)
    return float(slope * (when[-1] - when[0]))


def check_flat(facts: dict[str, Any]) -> None:
    """Check that memory, open files and threads did not grow."""
    check(
        facts["growth"] <= MAX_GROWTH,
        f"memory grew by {facts['growth']:.1f} MiB, more than {MAX_GROWTH:g}",
    )
    samples = facts["samples"]
    first, last = samples[: len(samples) // 2], samples[3 * len(samples) // 4 :]
    for column, what in ((2, "open files"), (3, "threads")):
        # A reply that is being sent takes one more for a moment; growth stays.
        before, after = max(row[column] for row in first), min(row[column] for row in last)
        check(after <= before, f"{what} grew from {before} to {after}")


def attempt(folder: Path, number: int) -> int:
    facts = run_module("torture.soak", "--minutes", 3, "--seed", number, timeout=1200)
    return int(sum(facts["faults"].values()))


ATTACKS = [
    Attack(
        "soak: many faults in one process, memory stays flat", attempt, 1, short_times=0, alone=True
    )
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    facts = soak(options.minutes, options.seed)
    print(json.dumps(facts))
    check_flat(facts)


if __name__ == "__main__":
    main()
