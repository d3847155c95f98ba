"""Measure start-up, source training, a round of each method, and the parts of FedWCA's round."""

import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from measure import Row, interleaved, ratio, row, seconds
from workload import SOURCE, World, flops, simulator, with_epochs

from fedwca._support.machine import count_cores
from fedwca.core.params import clone
from fedwca.data.images import ClientData
from fedwca.engines.client_runtime import ClientRuntime
from fedwca.engines.simulator.simulator import Simulator
from fedwca.experiments.experiment import SourceConfig
from fedwca.experiments.rounds import federate
from fedwca.experiments.source import train_source
from fedwca.experiments.store import Checkpoint, RunFolder
from fedwca.methods import METHODS, fedwca
from fedwca.methods.base import Method, Record
from fedwca.methods.fedwca import FedWCA
from fedwca.methods.fedwca_plus import FedWCAPlus

CLIENTS = 8
EPOCHS = 5  # as in the paper


def start(folder: Path, repeats: int, quick: bool) -> list[Row]:
    """Measure start-up: commands, imports, workers, source training."""
    world = World(folder)
    model = world.model()
    method = METHODS["fedavg"](training=with_epochs(1))
    source = world.images(SOURCE, 200 if quick else 2_000, 1)

    def workers() -> float:
        started = time.perf_counter()
        with simulator(model, method, world.clients([16] * CLIENTS), count_cores()):
            return time.perf_counter() - started

    ways: dict[str, Callable[[], float]] = {
        "fedwca --help": lambda: _command("--help"),
        "import of what a worker needs": lambda: _import("import fedwca.engines.simulator"),
        "import torch alone": lambda: _import("import torch"),
        "workers up": workers,
        f"source training, LeNet, an epoch of {len(source):,} images": lambda: seconds(
            lambda: train_source(world.model(), source, SourceConfig(epochs=1, holdout=0.0), 0)
        ),
    }
    found = interleaved(ways, repeats)
    return [row(name, values, "s") for name, values in found.items()]


def methods(folder: Path, repeats: int, quick: bool) -> list[Row]:
    """Measure a second round of every method; compare FedWCA's with its cost in arithmetic."""
    world = World(folder)
    images = 128 if quick else 680
    clients = world.clients([images] * CLIENTS)
    tried = {name: _as_in_the_paper(name) for name in METHODS}
    found, health = _time_second_rounds(
        world, clients, {name: m for name, m in tried.items() if m.rounds}, repeats
    )
    rows = [row(f"images of each of {CLIENTS} clients, {EPOCHS} epochs", [images], "")]
    rows += [row(f"a round of {name}", found[name], "s") for name in found]
    bound = _bound(world, health["fedwca"], images)
    ours, theirs = found["fedwca"], found["fedavg"]
    cost = [bound * took for took in theirs]
    return [
        *rows,
        ratio("FedWCA's round over FedAvg's", ours, theirs, "×"),
        row("  in arithmetic, with four clusters", [bound], "×"),
        ratio("  over what its passes cost in arithmetic", ours, cost, "×", "≤ 1.10"),
    ]


def additions(folder: Path, repeats: int, quick: bool) -> list[Row]:
    """Measure what FedWCA+ adds to FedAvg's round, one addition after the other."""
    world = World(folder)
    clients = world.clients([128 if quick else 680] * CLIENTS)
    loop = with_epochs(EPOCHS)
    recalibrated = replace(loop, batch_norm="recalibrate")
    consistent = replace(recalibrated, consistency=1.0)
    found, _ = _time_second_rounds(
        world,
        clients,
        {
            "FedAvg": METHODS["fedavg"](training=loop),
            "with recalibrated statistics": METHODS["fedavg"](training=recalibrated),
            "with consistency too": METHODS["fedavg"](training=consistent),
            "FedWCA+ without stability": FedWCAPlus(training=consistent, trust=0.0),
            "FedWCA+": FedWCAPlus(training=consistent),
        },
        repeats,
    )
    return [ratio(f"a round of {name}", found[name], found["FedAvg"], "×") for name in found]


def _time_second_rounds(
    world: World, clients: list[ClientData], tried: dict[str, Method], repeats: int
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Time a second round of each method; return the seconds and the log of its clients."""
    ways: dict[str, Callable[[], float]] = {}
    health: dict[str, Any] = {}
    with ExitStack() as stack:
        for name, method in tried.items():
            model = world.model()
            engine = stack.enter_context(simulator(model, method, clients, count_cores()))
            begin = _start_checkpoint(method, model)
            once = _rounds(method, 1)
            first = _without_files(_last_checkpoint(once, engine, begin))

            def second(name=name, m=method, e=engine, at=first) -> None:
                after = _last_checkpoint(_rounds(m, 2), e, at)
                health[name] = after.facts["health"]

            ways[name] = lambda second=second: seconds(second)
        return interleaved(ways, repeats), health


def parts(folder: Path, repeats: int, quick: bool) -> list[Row]:
    """Measure the share of each part in a round of FedWCA, in one process."""
    world = World(folder)
    clients = world.clients([128 if quick else 680] * CLIENTS, [212] * CLIENTS)
    # With FINCH, as users have it: clustering is a part of the server's work.
    method = replace(_rounds(_as_in_the_paper("fedwca"), 3), clustering="finch")
    model = world.model()
    shares: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as place, _stopwatch() as spent:
            run = RunFolder.open(Path(place), {}, {})
            engine = Simulator(model, method, clients, 0, Path(place) / "scratch", 1)
            started = time.perf_counter()
            begin = _start_checkpoint(method, model)
            for result in federate(method, engine, begin):
                if isinstance(result, Checkpoint):
                    run.save_checkpoint(result)
                else:
                    run.append(result)
            total = time.perf_counter() - started
            engine.close()
        spent["everything else"] = total - sum(spent.values())
        for name, took in spent.items():
            shares[name].append(100 * took / total)
    rows = [row(name, values, "%") for name, values in shares.items()]
    server = [sum(values) for values in zip(*(shares[name] for name in SERVER), strict=True)]
    return [*rows, row("the server's work (clustering, aggregation, blending)", server, "%", "< 3")]


# Functions to time, where they are looked up, with the name of the part. The time of a part
# excludes parts inside it.
TIMED: dict[tuple[Any, str], str] = {
    (fedwca, "load"): "loading weights",
    (fedwca, "evaluate"): "passes for α, β and labels",
    (fedwca, "alignment"): "α: alignment",
    (fedwca, "soft_neighborhood_density"): "β: soft neighbourhood density",
    (fedwca, "prototype_labels"): "labels: prototypes",
    (fedwca, "reconcile"): "labels: two models",
    (fedwca, "train"): "training",
    (FedWCA, "_blend"): "blending at the client",
    (FedWCA, "send"): "server: messages",
    (FedWCA, "aggregate"): "server: clustering and aggregation",
    (ClientRuntime, "load_offered"): "evaluation on test images",
    (ClientRuntime, "evaluate"): "evaluation on test images",
    (RunFolder, "save_checkpoint"): "checkpoint",
}
SERVER = ("server: messages", "server: clustering and aggregation")


@contextmanager
def _stopwatch() -> Iterator[dict[str, float]]:
    """Yield the seconds of each part, without its inner parts."""
    spent: dict[str, float] = defaultdict(float)
    inner = [0.0]

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            inner.append(0.0)
            started = time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                took = time.perf_counter() - started
                spent[name] += took - inner.pop()
                inner[-1] += took

        return call

    with ExitStack() as stack:
        for (where, what), name in TIMED.items():
            stack.enter_context(patch.object(where, what, timed(name, getattr(where, what))))
        yield spent


def _bound(world: World, health: dict[str, dict[str, Any]], images: int) -> float:
    """Return FedWCA's FLOP over FedAvg's: C + 3 forward passes instead of one, and mixed images."""
    forward, train = flops(world.model(), world.clients([16])[0].train)
    clusters = len(next(iter(health.values()))["alpha"])
    mixed = sum(_mixed(h, images) for h in health.values()) / len(health)
    wca = (clusters + 3) * forward + EPOCHS * (1 + mixed) * train
    return wca / (forward + EPOCHS * train)


def _mixed(health: dict[str, Any], images: int) -> float:
    """Return the share of mixed images: those whose labels differ and that have a partner."""
    return 1 - float(health["matched"]) - float(health["without_partner"]) / images


def _as_in_the_paper(name: str) -> Method:
    fields = {"clustering": "domain"} if name.startswith(("fedwca", "ladd")) else {}
    return METHODS[name](training=with_epochs(EPOCHS), **fields)


def _rounds(method: Method, count: int) -> Method:
    return replace(method, training=replace(method.training, rounds=count))


def _start_checkpoint(method: Method, model: Any) -> Checkpoint:
    return Checkpoint(0, method.init(clone(model.feature_weights())), {}, {})


def _without_files(at: Checkpoint) -> Checkpoint:
    """Return a checkpoint for several rounds, each of which removes the files of memories."""
    memories = {name: Record(dict(m.models), m.values) for name, m in at.memories.items()}
    return at._replace(memories=memories)


def _last_checkpoint(method: Method, engine: Simulator, start: Checkpoint) -> Checkpoint:
    """Run the remaining rounds and return the last checkpoint; evaluate only at the end."""
    rounds = federate(method, engine, start, every=99)
    return [result for result in rounds if isinstance(result, Checkpoint)][-1]


def _command(*arguments: str) -> float:
    code = f"import sys; sys.argv = {['fedwca', *arguments]!r}; from fedwca.cli import main; main()"
    return _import(code)


def _import(code: str) -> float:
    command = [sys.executable, "-c", code]
    return seconds(lambda: subprocess.run(command, capture_output=True, check=True))
