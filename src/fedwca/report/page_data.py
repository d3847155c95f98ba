"""The data of the report page, for one run or several side by side."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedwca._support.files import read_optional_json
from fedwca.experiments.run_schema import READ_ERRORS, corrupt_run_error
from fedwca.report.measures import chance_purity, paired_difference, purity
from fedwca.report.runs import RunView, flat_records
from fedwca.report.tables import group_by_source, group_by_variant

__all__ = ["page_data"]

Json = dict[str, Any]
_LOG_LINES = 200
# Numbers of a record that have no plot of their own.
_NO_SERIES = ("round", "cluster", "correct", "total", "init_confidence")


def page_data(runs: Sequence[RunView], *, images: bool = True) -> Json:
    """Return the data that the page of one run, or of several, shows."""
    if len(runs) > 1:
        return _comparison_data(runs)
    try:
        return _run_data(runs[0], images)
    except READ_ERRORS:
        raise corrupt_run_error(runs[0].path) from None


# --- one run ------------------------------------------------------------------------------------


def _run_data(run: RunView, images: bool) -> Json:
    examples = read_optional_json(run.path / "examples.json") if images else {}
    names = list(dict.fromkeys(chain.from_iterable(line["clients"] for line in run.lines)))
    return {
        "kind": "run",
        "name": run.name,
        "method": run.method,
        "settings": run.settings,
        "seed": run.seed,
        "done": run.done,
        "rounds_done": run.rounds,
        "rounds_planned": run.planned_rounds,
        "clients": _client_rows(run, names),
        "purity": _purity(run),
        "notice": run.notice,
        "rounds": [line["round"] for line in run.lines],
        "series": _series(run, names),
        "weights": _weights(run, names),
        "costs": _costs(run),
        "examples": examples.get("clients", {}),
        "sites": read_optional_json(run.path / "sites.json"),
        "log": _log_tail(run.path / "log.txt"),
    }


def _client_rows(run: RunView, names: Sequence[str]) -> list[Json]:
    files = read_optional_json(run.path / "clients.json").get("clients", {})
    rows = []
    for name in names:
        scores = [line["clients"][name] for line in run.lines if name in line["clients"]]
        rows.append(
            {
                "name": name,
                "domain": scores[-1].get("domain", ""),
                "cluster": run.clusters.get(name),
                "images": len(files[name]["train"]) if name in files else None,
                "accuracy": _round(scores[-1].get("accuracy")),
                "first_accuracy": _round(scores[0].get("accuracy")),
                "confidence": _round(scores[-1].get("confidence")),
            }
        )
    return rows


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
    records = {(record["round"], record["client"]): record for record in flat_records(run)}
    for record in records.values():
        # SND of the own cluster's model, which β compares with that of the blend.
        scores = record.pop("beta_scores", None)
        record["density"] = scores[0] if scores else None
    rounds = [line["round"] for line in run.lines]
    series = {}
    for quantity in dict.fromkeys(chain.from_iterable(records.values())):
        values = {
            name: [_round(records.get((n, name), {}).get(quantity)) for n in rounds]
            for name in names
        }
        if quantity not in _NO_SERIES and _known(chain.from_iterable(values.values())):
            series[quantity] = values
    return series


def _weights(run: RunView, names: Sequence[str]) -> Json | None:
    """Return v_k of every client for each round that has any."""
    rounds = [
        {"round": number, "values": {n: list(map(_round, by[n])) for n in names if n in by}}
        for number, by in run.weights.items()
    ]
    return {"rounds": rounds} if rounds else None


def _costs(run: RunView) -> Json:
    lines = [line for line in run.lines if line.get("seconds") is not None]
    return {
        "rounds": [line["round"] for line in lines],
        "seconds": [_round(line["seconds"]) for line in lines],
        "bytes_down": [line.get("bytes_down", 0) for line in lines],
        "bytes_up": [line.get("bytes_up", 0) for line in lines],
    }


def _log_tail(path: Path) -> list[str]:
    if not path.is_file():
        return []
    return path.read_text("utf-8", "replace").splitlines()[-_LOG_LINES:]


# --- several runs -------------------------------------------------------------------------------


def _comparison_data(runs: Sequence[RunView]) -> Json:
    """Return the data of several runs, grouped by benchmark and source."""
    return {
        "kind": "comparison",
        "runs": [_run_row(run) for run in runs],
        "groups": [_group_data(*key, members) for key, members in group_by_source(runs).items()],
    }


def _run_row(run: RunView) -> Json:
    return {
        "name": run.name,
        "method": run.method,
        "seed": run.seed,
        "rounds": run.rounds,
        "planned": run.planned_rounds,
        "done": run.done,
        "accuracy": _round(run.accuracy),
    }


def _group_data(benchmark: str, source: str, runs: list[RunView]) -> Json:
    methods = [_method_data(name, group) for name, group in group_by_variant(runs)]
    return {
        "benchmark": benchmark,
        "source": source,
        "domains": list(dict.fromkeys(d for run in runs for d in run.domain_accuracies)),
        "methods": methods,
        "differences": _differences(methods),
    }


def _method_data(name: str, runs: list[RunView]) -> Json:
    domains = dict.fromkeys(d for run in runs for d in run.domain_accuracies)
    return {
        "name": name,
        "trials": [run.trial for run in runs],
        "rounds": sorted({run.rounds for run in runs}),
        "done": all(run.done for run in runs),
        "means": {run.trial: run.accuracy for run in runs if run.accuracy is not None},
        "mean": _spread([run.accuracy for run in runs]),
        "domains": {d: _spread([run.domain_accuracies.get(d) for run in runs]) for d in domains},
        "curve": _curve(runs),
    }


def _curve(runs: Sequence[RunView]) -> list[Json]:
    """Return mean accuracy by round, over the trials that have the round."""
    by_round: dict[int, list[float | None]] = {}
    for run in runs:
        for line in run.lines:
            by_round.setdefault(line["round"], []).append(line["accuracy"]["mean"])
    return [{"round": r, **_spread(values)} for r, values in sorted(by_round.items())]


def _spread(values: Iterable[float | None]) -> Json:
    known = _known(values)
    return {
        "mean": _round(fmean(known)) if known else None,
        "spread": _round(stdev(known)) if len(known) > 1 else None,
        "count": len(known),
    }


def _differences(methods: Sequence[Json]) -> list[Json]:
    """Compare the best method with each other one, paired over the trials of both."""
    scored = [method for method in methods if method["means"]]
    if not scored:
        return []
    best = max(scored, key=lambda method: method["mean"]["mean"])
    rows = []
    for other in scored:
        if other is best:
            continue
        trials = sorted(best["means"].keys() & other["means"].keys())
        ours, theirs = ([method["means"][trial] for trial in trials] for method in (best, other))
        difference = paired_difference(ours, theirs)
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
