"""What one poisoned client of eight does to the others, by way of aggregation.

    python torture/poison.py [--rounds 5] [--seeds 2] [--method fedavg] [--domain postal]

Eight clients of one domain of mini-digits, of which the last sends in every round what passes all
checks of form and magnitude, and harms. Printed are the distance of the first round's model from
what it would be without the liar, and the accuracy of the seven others after the last round.
"""

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from fedwca.core.params import State, clone, flatten
from fedwca.data.images import ClientData
from fedwca.data.partition import Partition
from fedwca.engines.base import Exchanged, Job
from fedwca.engines.plausible import check_magnitude
from fedwca.engines.simulator import Simulator
from fedwca.engines.wire import check_state
from fedwca.errors import UserError
from fedwca.experiments.config import Experiment, resolve
from fedwca.experiments.runner import federate, load_data
from fedwca.experiments.source import blank_model, source_model
from fedwca.experiments.store import Checkpoint
from fedwca.methods import Client, Record
from fedwca.models import DomainModel
from fedwca.notes import silent

AGGREGATIONS = ["mean", "median", "trimmed_mean", "clipped"]
Lie = Callable[[State, int], State]


def scaled(source: State, round: int) -> State:
    return _each(source, lambda tensor: tensor * 900)


def flipped(source: State, round: int) -> State:
    return _each(source, lambda tensor: -tensor)


def noise(source: State, round: int) -> State:
    rng = torch.Generator().manual_seed(round)
    return _each(source, lambda t: 10 * t.abs().mean() * torch.randn(t.shape, generator=rng))


LIES: dict[str, Lie] = {"900 × the source": scaled, "- the source": flipped, "noise": noise}


def _each(source: State, change: Callable[[torch.Tensor], torch.Tensor]) -> State:
    """All numbers but counters changed; a negative variance would be refused."""
    changed = {n: change(t) if t.is_floating_point() else t for n, t in source.items()}
    return {n: t.abs() if n.endswith("running_var") else t for n, t in changed.items()}


class Poisoned:
    """An engine whose last client lies about its model; with no lie, it does not answer."""

    def __init__(self, engine: Simulator, source: State, lie: Lie | None) -> None:
        self._engine, self._source, self._lie = engine, source, lie
        self._liar = engine.clients()[-1]

    def clients(self) -> list[Client]:
        return self._engine.clients()

    def exchange(self, round: int, jobs: Mapping[Client, Job]) -> Exchanged:
        done = self._engine.exchange(round, jobs)
        answers = dict(done.answers)
        adapted = answers[self._liar].adapted
        if adapted is not None and self._lie is None:
            del answers[self._liar]
        elif adapted is not None and self._lie is not None:
            local = self._lie(self._source, round)
            reply = Record({"local": local}, adapted.reply.values)
            check_state("local", local, self._source)
            check_magnitude(reply, self._source)
            answers[self._liar] = answers[self._liar]._replace(
                adapted=adapted._replace(reply=reply)
            )
        return done._replace(answers=answers)

    def close(self) -> None:
        self._engine.close()


def play(
    experiment: Experiment, model: DomainModel, clients: list[ClientData], lie: Lie | None
) -> tuple[State, float]:
    """The model after the first round, and the accuracy (%) of all but the last client.

    Not a number, where the others' training does not stay finite and the run ends.
    """
    source, lines, kept = clone(model.feature_state()), [], []
    method = experiment.method
    with tempfile.TemporaryDirectory() as folder:
        simulator = Simulator(
            model, method, clients, experiment.run.seed, Path(folder) / "scratch", workers=1
        )
        engine = Poisoned(simulator, source, lie)
        start = Checkpoint(0, method.init(source), {}, {})
        try:
            federate(method, engine, start, lines.append, kept.append)
        except UserError:
            lines[-1]["clients"] = {c.name: {"accuracy": math.nan} for c in clients}
        finally:
            engine.close()
    first = method.offered(kept[0].state, engine.clients()[0])
    scores = [lines[-1]["clients"][c.name]["accuracy"] for c in clients[:-1]]
    return first, 100 * statistics.fmean(scores)


def length(a: State, b: State) -> float:
    names = [name for name, tensor in a.items() if tensor.is_floating_point()]
    return float((flatten(a, names) - flatten(b, names)).norm())


def one_seed(
    options: argparse.Namespace, seed: int, cache: Path
) -> dict[tuple[str, str], tuple[float, float]]:
    """Distance and accuracy by lie and aggregation."""
    found = {}
    for aggregation in AGGREGATIONS:
        experiment = resolve(
            {
                "method": {"name": options.method, "aggregation": aggregation},
                "source": {"epochs": 15},
                "training": {"rounds": options.rounds},
                "run": {"seed": seed},
            }
        )
        benchmark = load_data(experiment, cache)
        clients = benchmark.clients(experiment.data.source, Partition(8), seed)
        chosen = [c for c in clients if c.domain == options.domain]
        model = blank_model(experiment, benchmark)
        source_model(experiment, benchmark, model, cache / f"{seed}.safetensors", cache, silent)
        start = clone(model.state_dict())
        without, accuracy = play(experiment, model, chosen, None)
        found["nobody", aggregation] = (0.0, accuracy)
        for name, lie in LIES.items():
            model.load_state_dict(start)
            first, accuracy = play(experiment, model, chosen, lie)
            found[name, aggregation] = (length(first, without), accuracy)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--domain", default="postal")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        runs = [one_seed(options, seed, Path(cache)) for seed in range(options.seeds)]
    print(f"{'the liar sends':18}{'aggregation':14}{'moved by':>12}{'accuracy of the others':>26}")
    for lie, aggregation in runs[0]:
        moved = statistics.fmean(run[lie, aggregation][0] for run in runs)
        scores = [run[lie, aggregation][1] for run in runs]
        told = f"{statistics.fmean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"
        print(f"{lie:18}{aggregation:14}{moved:12.3g}{told:>26}")


if __name__ == "__main__":
    main()
