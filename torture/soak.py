"""One process at work for a long time while faults are injected; it must not grow.

    python torture/soak.py [--minutes 30] [--seed 0]

Simulations whose workers are killed, whose newest checkpoint is damaged and which are resumed take
turns with deployed rounds whose sites lie, are late, are lost and return. Between them memory, open
files and threads are looked at. Ends with 1 if anything came out otherwise than undisturbed, or if
the second half's line of memory rises by more than is stated.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from multiprocessing import active_children
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tests"))

import numpy as np
import torch

import fedwca.engines.flower_sites as flower_sites
from attack import Attack, LostError, held
from faulty_grid import FaultyGrid
from fedwca.core.params import clone
from fedwca.data.augment import DIGITS
from fedwca.data.domains import Benchmark, Domain
from fedwca.engines.flower import Rules
from fedwca.engines.simulator import Simulator
from fedwca.experiments.runner import federate
from fedwca.experiments.store import Checkpoint, RunFolder
from fedwca.models import DomainModel, build_model
from load import people_of
from memory import Held, held_now, in_a_process
from sites import engine_for, run_rounds, settings, site_program, write_images

RISE = 8.0  # MiB that the second half's line of memory may rise by
CLASSES, SIDE = ("bar", "post", "square"), 16
RULES = Rules(least_sites=1, start_seconds=0.2, round_seconds=2.0, return_seconds=0.2)


def source_model() -> DomainModel:
    torch.manual_seed(0)
    model = build_model("lenet", len(CLASSES), image_size=SIDE, bottleneck=16)
    model.freeze_classifier()
    return model.eval()


class BrokenOffError(Exception):
    """A simulation ends in the middle."""


class Simulations:
    """The same simulation again and again, each time disturbed in another way."""

    def __init__(self, folder: Path, faults: "Counter[str]") -> None:
        self._folder, self._faults = folder, faults
        self._people = people_of(6, folder / "pixels.npy")
        self._method = settings("fedwca", rounds=3).method
        self._expected = self._run(folder / "undisturbed", workers=1)

    def spell(self, chance: random.Random) -> int:
        """Broken off after a round, its checkpoint damaged, resumed; a worker killed in each."""
        place = self._folder / "disturbed"
        with _killer(chance, self._faults):
            try:
                self._run(place, workers=2, until=(rounds := chance.randint(1, 2)))
            except BrokenOffError:
                self._faults["resumed"] += 1
        if chance.random() < 0.5:
            file = chance.choice(sorted(max(place.glob("checkpoint-*")).iterdir()))
            os.truncate(file, chance.randrange(file.stat().st_size))
            self._faults["damaged checkpoint"] += 1
            rounds -= 1
        with _killer(chance, self._faults):
            found = self._run(place, workers=2, done=rounds)
        held(found == self._expected, "a disturbed simulation has another result")
        shutil.rmtree(place)
        return 4

    def _run(
        self, path: Path, workers: int, until: int = 99, done: int = 0
    ) -> list[dict[str, Any]]:
        run = RunFolder.open(path, {}, {})
        run.clean()
        model = source_model()
        first = Checkpoint(0, self._method.init(clone(model.feature_state())), {}, {})
        start = run.load_checkpoint(1) or first
        held(start.rounds == done, f"after {done} rounds it went on after {start.rounds}")
        run.rewind(start.rounds)

        def keep(checkpoint: Checkpoint) -> None:
            run.save_checkpoint(checkpoint)
            if checkpoint.rounds == until:
                raise BrokenOffError

        engine = Simulator(model, self._method, self._people, 0, run.scratch, workers)
        try:
            federate(self._method, engine, start, run.append, keep)
        finally:
            engine.close()
        held(not run.scratch.exists(), "the scratch folder is left")
        held(not list(path.glob("*.tmp")), "half a file is left")
        return [{k: v for k, v in line.items() if k != "seconds"} for line in run.lines()]


class _killer:  # noqa: N801 (a context)
    """Kills one worker, at a moment of chance after it has come."""

    def __init__(self, chance: random.Random, faults: "Counter[str]") -> None:
        self._pause, self._faults = chance.uniform(0, 4), faults
        self._over = threading.Event()

    def __enter__(self) -> None:
        self._thread = threading.Thread(target=self._kill)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _kill(self) -> None:
        while not (workers := active_children()):
            if self._over.wait(0.05):
                return
        if not self._over.wait(self._pause) and workers[0].is_alive():
            os.kill(workers[0].pid or 0, signal.SIGKILL)
            self._faults["killed worker"] += 1


class Deployment:
    """One engine for all the time, and sites in this process that do whatever chance says."""

    def __init__(self, folder: Path, faults: "Counter[str]", chance: random.Random) -> None:
        rng, self._faults = np.random.default_rng(0), faults

        def drawn() -> Domain:
            pixels = rng.integers(0, 256, (24, SIDE, SIDE, 3), dtype=np.uint8)
            return Domain(pixels, np.arange(24) % len(CLASSES))

        names = ("clean", "dim", "noisy", "bright")
        noise = Benchmark("noise", CLASSES, {name: drawn() for name in names}, DIGITS)
        sites = write_images(folder, noise, count=16, test=8)
        programs = {site: site_program(folder, site, folder / "home") for site in sites}
        self._grid = FaultyGrid(programs, "dim", chance, faults)
        self._model, self._experiment = source_model(), settings("fedwca", rounds=4)
        expected = dict.fromkeys(sites, "")
        self._engine, self._told = engine_for(
            self._grid, self._experiment, self._model, CLASSES, expected, rules=RULES
        )

    def spell(self) -> int:
        """Four rounds and the scoring; whoever is honest is in each of them, and no lie is."""
        source, before = clone(self._model.feature_state()), (self._spoilt(), self._refused())
        run_rounds(self._engine, self._experiment.method, source, self._told)
        lies, refused = self._spoilt() - before[0], self._refused() - before[1]
        late = sum("too late" in note for note in self._told.notes)
        held(refused <= lies <= refused + late, f"of {lies} lies {refused} were refused")
        lines = self._told.lines
        held(len(lines) == 5, f"{len(lines)} lines of results")
        held(all("dim" in line["clients"] for line in lines), "an honest site is missing")
        self._told.lines.clear()
        self._told.notes.clear()
        return 5

    def _spoilt(self) -> int:
        return self._faults["lying site"] + self._faults["damaged reply"]

    def _refused(self) -> int:
        return sum(facts["refused"] for facts in self._told.sites.values())


def soak(minutes: float, seed: int) -> dict[str, Any]:
    flower_sites._POLL = 0.02
    chance, faults = random.Random(seed), Counter[str]()
    samples: list[tuple[float, Held]] = []
    began, rounds, spells = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        deployed = Deployment(folder, faults, chance)
        simulated = Simulations(folder, faults)
        while (now := time.monotonic() - began) < 60 * minutes:
            rounds += simulated.spell(chance) if spells % 3 == 0 else deployed.spell()
            spells += 1
            if not samples or now >= samples[-1][0] + min(30, minutes * 1.5):
                samples.append((now, held_now()))
                print(
                    f"{now:6.0f} s {rounds:6} rounds {samples[-1][1]}", file=sys.stderr, flush=True
                )
    return {
        "minutes": minutes,
        "rounds": rounds,
        "faults": dict(faults),
        "rise": _rise(samples),
        "samples": [[round(when), *what] for when, what in samples],
    }


def _rise(samples: list[tuple[float, Held]]) -> float:
    """MiB by which the line through the second half's memory rises; the first half warms up."""
    half = samples[len(samples) // 2 :]
    when, memory = (np.array(row) for row in zip(*((w, h.memory) for w, h in half), strict=True))
    slope, _ = np.polyfit(when, memory, 1)
    return float(slope * (when[-1] - when[0]))


def check(facts: dict[str, Any]) -> None:
    """What must hold at the end."""
    held(facts["rise"] <= RISE, f"memory rose by {facts['rise']:.1f} MiB, more than {RISE:g}")
    samples = facts["samples"]
    first, last = samples[: len(samples) // 2], samples[3 * len(samples) // 4 :]
    for column, what in ((2, "open files"), (3, "threads")):
        # One more for a moment is a reply on its way; what has grown stays.
        before, after = max(row[column] for row in first), min(row[column] for row in last)
        held(after <= before, f"{what} grew from {before} to {after}")


def attempt(folder: Path, number: int) -> int:
    facts = in_a_process(__file__, "--minutes", 3, "--seed", number, timeout=1200)
    check(facts)
    return int(sum(facts["faults"].values()))


ATTACKS = [Attack("soak: faults in one process, flat memory", attempt, 1, short=0, alone=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    facts = soak(options.minutes, options.seed)
    print(json.dumps(facts))
    try:
        check(facts)
    except LostError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
