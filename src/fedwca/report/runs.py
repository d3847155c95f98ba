"""Read run folders for reports, without PyTorch."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwca._support.errors import UserError
from fedwca._support.files import read_json, read_lines, read_verified
from fedwca.experiments.run_schema import (
    READ_ERRORS,
    check_line,
    clusters_in,
    corrupt_run_error,
    no_run_error,
    one_cluster_notice,
    read_settings,
    weights_in,
)

__all__ = ["RunView", "find_runs", "flat_records", "read_run"]

_SCORES = ("domain", "accuracy", "correct", "total", "confidence")


@dataclass(frozen=True)
class RunView:
    """The content of one run folder."""

    path: Path
    settings: dict[str, Any]
    lines: tuple[dict[str, Any], ...]
    done: bool

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.name

    @property
    def method(self) -> str:
        """Name of the method, with its BatchNorm treatment unless that is the paper's."""
        treatment = self.settings["training"]["batch_norm"]
        name = str(self.settings["method"]["name"])
        return name if treatment == "blend" else f"{name} ({treatment})"

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.settings["run"]["seed"])

    @property
    def trial(self) -> str:
        """What tells runs of the same settings apart: the seed, and that of the source model."""
        source_seed = self.settings.get("source", {}).get("seed")
        return str(self.seed) if source_seed in (None, self.seed) else f"{source_seed}/{self.seed}"

    @property
    def rounds(self) -> int:
        """Number of finished rounds."""
        return int(self.lines[-1]["round"]) if self.lines else 0

    @property
    def planned_rounds(self) -> int:
        """Number of rounds of the finished run; a method may need fewer than training.rounds."""
        return self.rounds if self.done else int(self.settings["training"]["rounds"])

    @property
    def last(self) -> dict[str, Any]:
        """The newest result line; empty before the first."""
        return self.lines[-1] if self.lines else {}

    @property
    def accuracy(self) -> float | None:
        """Mean accuracy over clients, where labels exist."""
        mean = self.last.get("accuracy", {}).get("mean")
        return None if mean is None else float(mean)

    @property
    def domain_accuracies(self) -> dict[str, float | None]:
        """Mean accuracy over the clients of each domain, where labels exist."""
        domains: dict[str, float | None] = self.last.get("accuracy", {}).get("domains", {})
        return domains

    @property
    def privacy(self) -> str:
        """The privacy guarantee of the run; empty if there is none."""
        path = self.path / "privacy.json"
        if not path.is_file():
            return ""
        guarantee = read_json(path)
        epsilon, delta, rounds = (guarantee[name] for name in ("epsilon", "delta", "rounds"))
        return f"ε = {epsilon:.3g}, δ = {delta:g} after {rounds} rounds"

    @property
    def weights(self) -> dict[int, dict[str, list[float]]]:
        """The cluster weights v_k of round r, by client; only rounds that have any.

        Rounds count as in the paper, from 0: a line of results after n rounds has those of n - 1.
        """
        rounds = {int(line["round"]) - 1: weights_in(line) for line in self.lines}
        return {number: weights for number, weights in rounds.items() if weights}

    @property
    def clusters(self) -> dict[str, int]:
        """The cluster of each client; empty if the method has none."""
        return clusters_in(self.last)

    @property
    def notice(self) -> str:
        """A sentence if all clients are in one cluster; empty otherwise."""
        return one_cluster_notice(self.last, self.settings)

    @property
    def domains(self) -> dict[str, str]:
        """The true domain of each client that has a cluster."""
        clusters, scores = self.clusters, self.last.get("clients", {})
        return {name: score["domain"] for name, score in scores.items() if name in clusters}


def read_run(path: Path) -> RunView:
    """Read a run folder."""
    config = path / "config.json"
    if not config.is_file():
        raise no_run_error(path)
    try:
        settings = read_settings(read_json(config))
        final = read_verified(path / "result.json", older=True)  # None if corrupt
        lines = read_lines(path / "results.jsonl")
        if final is not None:
            lines = [line for line in lines if line["round"] < final["round"]] + [final]
        run = RunView(path, settings, tuple(lines), final is not None)
        for line in run.lines:
            check_line(line)
        _ = run.privacy
    except READ_ERRORS:
        raise corrupt_run_error(path) from None
    return run


def find_runs(root: Path) -> tuple[list[RunView], list[str]]:
    """Return all runs in a folder, sorted by name, and an error message for each unreadable one."""
    if root.exists() and not root.is_dir():
        raise UserError(f"{root} is not a folder; give the folder of all runs")
    runs, problems = [], []
    for config in sorted(root.glob("*/config.json")):
        try:
            runs.append(read_run(config.parent))
        except UserError as error:
            problems.append(str(error))
    return runs, problems


def flat_records(run: RunView) -> list[dict[str, Any]]:
    """Return one record for each round and client; all have the same keys, None where unknown.

    `confidence` belongs to the model that the client uses, on the images that it is scored on;
    `init_confidence` to f_init, on the images that the client adapts on.
    """
    records = [record for line in run.lines for record in _records(line)]
    keys = dict.fromkeys(key for record in records for key in record)
    return [{key: record.get(key) for key in keys} for record in records]


def _records(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the record of each client in a line of results."""
    all_scores, all_health = line.get("clients", {}), line.get("health", {})
    clusters, weights = clusters_in(line), weights_in(line)
    for client in dict.fromkeys([*all_scores, *all_health]):
        score, health = all_scores.get(client, {}), dict(all_health.get(client, {}))
        if "confidence" in health:
            health["init_confidence"] = health.pop("confidence")
        record = {
            "round": line["round"],
            "client": client,
            **{name: score.get(name) for name in _SCORES},
            "cluster": clusters.get(client),
            "weights": weights.get(client),
        }
        yield {**record, **health, **record}  # a site's numbers must not hide ours
