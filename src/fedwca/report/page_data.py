"""The data of the report page, for one run or several side by side."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedwca._support.files import open_regular_file, read_optional_json
from fedwca.report.clusters import chance_purity, purity
from fedwca.report.runs import RunView
from fedwca.report.significance import paired_difference
from fedwca.report.tables import group_by_variant, planned_rounds

__all__ = ["comparison_data", "run_data"]

Json = dict[str, Any]
_LOG_LINES = 200


def run_data(run: RunView, *, images: bool = True) -> Json:
    """Return the data of the page of one run."""
    clients = _mappings(read_optional_json(run.path / "clients.json").get("clients"))
    names = _client_names(run)
    return {
        "kind": "run",
        "name": run.name,
        "method": run.method,
        "settings": run.settings,
        "seed": run.seed,
        "done": run.done,
        "rounds_done": run.rounds,
        "rounds_planned": planned_rounds(run),
        "clients": [_client_data(run, name, clients.get(name, {})) for name in names],
        "purity": _purity(run),
        "rounds": [line["round"] for line in run.lines],
        "series": _series(run, names),
        "weights": _weights(run, names),
        "costs": _costs(run),
        "examples": _example_images(run.path / "examples.json") if images else {},
        "sites": _mappings(read_optional_json(run.path / "sites.json")),
        "log": _log_tail(run.path / "log.txt"),
    }


def _client_names(run: RunView) -> list[str]:
    """Return all clients of any line, in the order of their first appearance."""
    return list(dict.fromkeys(chain.from_iterable(line["clients"] for line in run.lines)))


def _client_data(run: RunView, name: str, images: Json) -> Json:
    scored = [line["clients"][name] for line in run.lines if name in line["clients"]]
    last = scored[-1]
    return {
        "name": name,
        "domain": last.get("domain", ""),
        "cluster": run.clusters.get(name),
        "images": len(images["train"]) if isinstance(images.get("train"), list) else None,
        "accuracy": _round(last.get("accuracy")),
        "first_accuracy": _round(scored[0].get("accuracy")),
        "confidence": _round(last.get("confidence")),
    }


def _purity(run: RunView) -> Json | None:
    """Return how well clusters match domains; None where these are unknown."""
    domains = run.domains
    # If every client has a domain of its own, all clusterings are equally pure.
    if not any(domains.values()) or len(set(domains.values())) == len(domains):
        return None
    clusters, truth = [run.clusters[name] for name in domains], list(domains.values())
    return {"purity": purity(clusters, truth), "chance": chance_purity(clusters, truth)}


def _series(run: RunView, names: Sequence[str]) -> Json:
    """Return a value for each line by quantity and client, None where it is unknown."""
    scores = {
        quantity: {
            name: [_round(line["clients"].get(name, {}).get(quantity)) for line in run.lines]
            for name in names
        }
        for quantity in ("accuracy", "confidence")
    }
    health_by_line = [line.get("health", {}) for line in run.lines]
    health = {
        quantity: {
            name: [_health_value(h.get(name, {}), quantity) for h in health_by_line]
            for name in names
        }
        for quantity in _health_names(run)
    }
    health.pop("confidence", None)  # f_init's: the scores have that of the model in use
    series = {**scores, **health}
    return {k: by for k, by in series.items() if _known(chain.from_iterable(by.values()))}


def _health_names(run: RunView) -> list[str]:
    """Return the names of the clients' log numbers; `density` stands for `beta_scores`."""
    names: dict[str, None] = {}
    for line in run.lines:
        for health in line.get("health", {}).values():
            names |= {name: None for name, v in health.items() if not isinstance(v, list)}
            if "beta_scores" in health:
                names["density"] = None
    return list(names)


def _health_value(health: Json, quantity: str) -> float | None:
    if quantity != "density":
        return _round(health.get(quantity))
    # SND of the own cluster's model, which β compares with that of the blend.
    scores = health.get("beta_scores")
    return _round(scores[0]) if isinstance(scores, list) and scores else None


def _weights(run: RunView, names: Sequence[str]) -> Json | None:
    """Return v_k of every client for each round that has any."""
    rounds = []
    for line in run.lines:
        server = line.get("server", {})
        weights = {name: server[f"v/{name}"] for name in names if f"v/{name}" in server}
        if weights:
            values = {name: [_round(v) for v in row] for name, row in weights.items()}
            rounds.append({"round": line["round"], "values": values})
    return {"rounds": rounds} if rounds else None


def _costs(run: RunView) -> Json:
    lines = [line for line in run.lines if line.get("seconds") is not None]
    return {
        "rounds": [line["round"] for line in lines],
        "seconds": [_round(line["seconds"]) for line in lines],
        "bytes_down": [line.get("bytes_down", 0) for line in lines],
        "bytes_up": [line.get("bytes_up", 0) for line in lines],
    }


def comparison_data(runs: Sequence[RunView]) -> Json:
    """Return the data of several runs, grouped by benchmark and source."""
    groups: dict[tuple[str, str], list[RunView]] = {}
    for run in runs:
        data = run.settings["data"]
        groups.setdefault((data["benchmark"], data["source"]), []).append(run)
    return {
        "kind": "comparison",
        "runs": [_run_line(run) for run in runs],
        "groups": [_group_data(key, members) for key, members in groups.items()],
    }


def _run_line(run: RunView) -> Json:
    return {
        "name": run.name,
        "method": run.method,
        "seed": run.seed,
        "rounds": run.rounds,
        "planned": planned_rounds(run),
        "done": run.done,
        "accuracy": _round(run.accuracy),
    }


def _group_data(key: tuple[str, str], runs: list[RunView]) -> Json:
    benchmark, source = key
    methods = [_method_data(name, group) for name, group in group_by_variant(runs)]
    domains = dict.fromkeys(
        d for run in runs for d in run.last.get("accuracy", {}).get("domains", {})
    )
    return {
        "benchmark": benchmark,
        "source": source,
        "domains": list(domains),
        "methods": methods,
        "differences": _differences(methods),
    }


def _method_data(name: str, runs: list[RunView]) -> Json:
    scores = [run.last.get("accuracy", {}).get("domains", {}) for run in runs]
    domains = list(dict.fromkeys(chain.from_iterable(scores)))
    return {
        "name": name,
        "seeds": [run.seed for run in runs],
        "rounds": sorted({run.rounds for run in runs}),
        "done": all(run.done for run in runs),
        "means": {run.seed: run.accuracy for run in runs if run.accuracy is not None},
        "mean": _spread([run.accuracy for run in runs]),
        "domains": {d: _spread([score.get(d) for score in scores]) for d in domains},
        "curve": _curve(runs),
    }


def _curve(runs: Sequence[RunView]) -> list[Json]:
    """Return mean accuracy by round, over the seeds that have the round."""
    by_round: dict[int, list[float | None]] = {}
    for run in runs:
        for line in run.lines:
            by_round.setdefault(line["round"], []).append(line.get("accuracy", {}).get("mean"))
    return [{"round": r, **_spread(values)} for r, values in sorted(by_round.items())]


def _spread(values: Iterable[float | None]) -> Json:
    known = _known(values)
    return {
        "mean": _round(fmean(known)) if known else None,
        "spread": _round(stdev(known)) if len(known) > 1 else None,
        "count": len(known),
    }


def _differences(methods: Sequence[Json]) -> list[Json]:
    """Compare the best method with each other one, paired over the seeds of both."""
    scored = [method for method in methods if method["mean"]["mean"] is not None]
    if len(scored) < 2:
        return []
    best = max(scored, key=lambda method: method["mean"]["mean"])
    rows = []
    for other in scored:
        seeds = sorted(best["means"].keys() & other["means"].keys())
        if other is best or len(seeds) < 2:
            continue
        difference = paired_difference(
            [best["means"][seed] for seed in seeds], [other["means"][seed] for seed in seeds]
        )
        if difference is not None:
            values = {key: _round(value) for key, value in difference._asdict().items()}
            rows.append({"best": best["name"], "other": other["name"], **values})
    return rows


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _round(value: Any) -> float | None:
    """Round to four digits, more than any plot or table shows; None if not a finite number."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.4g}")


def _mappings(content: Any) -> dict[str, Json]:
    """Return the entries of a file that are mappings; ignore corrupt ones."""
    if not isinstance(content, dict):
        return {}
    return {name: value for name, value in content.items() if isinstance(value, dict)}


def _example_images(path: Path) -> dict[str, list[str]]:
    """Return each client's example images as base64; ignore corrupt entries."""
    clients = read_optional_json(path).get("clients")
    if not isinstance(clients, dict):
        return {}
    return {
        name: [image for image in images if isinstance(image, str)]
        for name, images in clients.items()
        if isinstance(images, list)
    }


def _log_tail(path: Path) -> list[str]:
    try:
        with open_regular_file(path) as file:
            return file.read().decode("utf-8", "replace").splitlines()[-_LOG_LINES:]
    except OSError:
        return []
