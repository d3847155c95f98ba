"""Measure what one malicious client of eight does to the others through aggregation.

    python -m torture.poison [--rounds 5] [--seeds 2] [--method fedavg] [--domain postal]

Eight clients share one domain of mini-digits. In every round the last one sends a model that passes
all checks and does harm. Printed are the distance of the first round's model from the one without
the malicious client, and the accuracy of the seven others after the last round.
"""

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from fedwca._support.errors import UserError
from fedwca.core.params import Weights, clone, flatten
from fedwca.data.images import ClientData
from fedwca.data.partition import Partition
from fedwca.engines.base import Exchange, Job
from fedwca.engines.flower.reply_checks import check_magnitude
from fedwca.engines.record_checks import check_weights
from fedwca.engines.simulator.simulator import Simulator
from fedwca.experiments.config import Experiment, resolve
from fedwca.experiments.inputs import load_data
from fedwca.experiments.rounds import federate
from fedwca.experiments.source import initialize_model, load_or_train_source
from fedwca.experiments.store import Checkpoint
from fedwca.methods import Client, Record
from fedwca.models import DomainModel

AGGREGATIONS = ["mean", "median", "trimmed_mean", "clipped"]
Poison = Callable[[Tensor, torch.Generator], Tensor]
POISONS: dict[str, Poison] = {
    "900 × the source": lambda tensor, rng: tensor * 900,
    "- the source": lambda tensor, rng: -tensor,
    "noise": lambda t, rng: 10 * t.abs().mean() * torch.randn(t.shape, generator=rng),
}


def poisoned(source: Weights, poison: Poison, round: int) -> Weights:
    """Change all numbers but counters; variances stay positive, or they would be rejected."""
    rng = torch.Generator().manual_seed(round)
    changed = {n: poison(t, rng) if t.is_floating_point() else t for n, t in source.items()}
    return {n: t.abs() if n.endswith("running_var") else t for n, t in changed.items()}


class PoisonedSimulator(Simulator):
    """A simulator whose last client sends a poisoned model, or no reply without a poison."""

    source: Weights
    poison: Poison | None

    def exchange(self, round: int, state: Record, jobs: Iterable[tuple[Client, Job]]) -> Exchange:
        done, malicious = super().exchange(round, state, jobs), self.clients()[-1]
        results = dict(done.results)
        if (adapted := results[malicious].adapted) is None:
            return done
        if self.poison is None:
            del results[malicious]
        else:
            local = poisoned(self.source, self.poison, round)
            reply = Record({"local": local}, adapted.reply.values)
            check_weights("local", local, self.source)
            check_magnitude(reply, self.source)
            sent = adapted._replace(reply=reply)
            results[malicious] = results[malicious]._replace(adapted=sent)
        return done._replace(results=results)


def run(
    experiment: Experiment, model: DomainModel, clients: list[ClientData], poison: Poison | None
) -> tuple[Weights, float]:
    """Return the model after the first round, and the accuracy (%) of all but the last client.

    The accuracy is NaN if training diverges and the run stops.
    """
    source, lines, checkpoints = clone(model.feature_weights()), [], []
    method = experiment.method
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "scratch"
        engine = PoisonedSimulator(model, method, clients, experiment.run.seed, scratch, workers=1)
        engine.source, engine.poison = source, poison
        start = Checkpoint(0, method.init(source), {}, {})
        try:
            for result in federate(method, engine, start):
                (checkpoints if isinstance(result, Checkpoint) else lines).append(result)
        except UserError:
            lines[-1]["clients"] = {c.name: {"accuracy": math.nan} for c in clients}
        finally:
            engine.close()
    first = method.offered(checkpoints[0].state, engine.clients()[0])
    scores = [lines[-1]["clients"][c.name]["accuracy"] for c in clients[:-1]]
    return first, 100 * statistics.fmean(scores)


def length(a: Weights, b: Weights) -> float:
    names = [name for name, tensor in a.items() if tensor.is_floating_point()]
    return float((flatten(a, names) - flatten(b, names)).norm())


def run_seed(
    options: argparse.Namespace, seed: int, cache: Path
) -> dict[tuple[str, str], tuple[float, float]]:
    """Return distance and accuracy by poison and aggregation."""
    found = {}
    for aggregation in AGGREGATIONS:
        method = {"name": options.method, "aggregation": aggregation}
        training, source = {"rounds": options.rounds}, {"epochs": 15}
        experiment = resolve(
            {"method": method, "source": source, "training": training, "run": {"seed": seed}}
        )
        benchmark = load_data(experiment, cache)
        clients = benchmark.clients(experiment.data.source, Partition(8), seed)
        chosen = [c for c in clients if c.domain == options.domain]
        model = initialize_model(experiment, benchmark)
        load_or_train_source(experiment, benchmark, model, cache / f"{seed}.safetensors", cache)
        start = clone(model.state_dict())
        without, accuracy = run(experiment, model, chosen, None)
        found["none", aggregation] = (0.0, accuracy)
        for name, poison in POISONS.items():
            model.load_state_dict(start)
            first, accuracy = run(experiment, model, chosen, poison)
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
        runs = [run_seed(options, seed, Path(cache)) for seed in range(options.seeds)]
    print(f"{'poison':18}{'aggregation':14}{'moved by':>12}{'accuracy of the others':>26}")
    for poison, aggregation in runs[0]:
        moved = statistics.fmean(run[poison, aggregation][0] for run in runs)
        scores = [run[poison, aggregation][1] for run in runs]
        accuracy = f"{statistics.fmean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"
        print(f"{poison:18}{aggregation:14}{moved:12.3g}{accuracy:>26}")


if __name__ == "__main__":
    main()
