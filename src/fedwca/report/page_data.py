"""What the report page shows, as plain data: of one run, or of several side by side."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedwca.files import open_file, read_optional
from fedwca.report.clusters import chance_purity, purity
from fedwca.report.runs import RunView
from fedwca.report.significance import paired_difference
from fedwca.report.tables import by_variant, planned_rounds

__all__ = ["comparison_data", "run_data"]

Json = dict[str, Any]
_LOG_LINES = 200


def run_data(view: RunView, *, images: bool = True) -> Json:
    """All that the page of one run shows."""
    held = _mappings(read_optional(view.path / "clients.json").get("clients"))
    names = _names(view)
    return {
        "kind": "run",
        "name": view.name,
        "method": view.method,
        "settings": view.settings,
        "seed": view.seed,
        "done": view.done,
        "rounds_done": view.rounds,
        "rounds_planned": planned_rounds(view),
        "clients": [_client(view, name, held.get(name, {})) for name in names],
        "purity": _purity(view),
        "rounds": [line["round"] for line in view.lines],
        "series": _series(view, names),
        "weights": _weights(view, names),
        "costs": _costs(view),
        "examples": _pictures(view.path / "examples.json") if images else {},
        "sites": _mappings(read_optional(view.path / "sites.json")),
        "log": _log(view.path / "log.txt"),
    }


def _names(view: RunView) -> list[str]:
    """All clients that any line speaks of, in the order of their first."""
    return list(dict.fromkeys(chain.from_iterable(line["clients"] for line in view.lines)))


def _client(view: RunView, name: str, held: Json) -> Json:
    scored = [line["clients"][name] for line in view.lines if name in line["clients"]]
    last = scored[-1]
    return {
        "name": name,
        "domain": last.get("domain", ""),
        "cluster": view.clusters.get(name),
        "images": len(held["train"]) if isinstance(held.get("train"), list) else None,
        "accuracy": _short(last.get("accuracy")),
        "first_accuracy": _short(scored[0].get("accuracy")),
        "confidence": _short(last.get("confidence")),
    }


def _purity(view: RunView) -> Json | None:
    """How well clusters match domains, where these are known."""
    domains = view.domains
    # Where every client is a domain of its own, any clustering is as pure as any other.
    if not any(domains.values()) or len(set(domains.values())) == len(domains):
        return None
    found, truth = [view.clusters[name] for name in domains], list(domains.values())
    return {"purity": purity(found, truth), "chance": chance_purity(found, truth)}


def _series(view: RunView, names: Sequence[str]) -> Json:
    """By name of the quantity, by client: a value for each line, None where there is none."""
    scores = {
        quantity: {
            name: [_short(line["clients"].get(name, {}).get(quantity)) for line in view.lines]
            for name in names
        }
        for quantity in ("accuracy", "confidence")
    }
    health = {
        quantity: {
            name: [_number(line.get("health", {}).get(name, {}), quantity) for line in view.lines]
            for name in names
        }
        for quantity in _health_names(view)
    }
    everything = {**scores, **{k: v for k, v in health.items() if k != "confidence"}}
    return {k: by for k, by in everything.items() if _known(chain.from_iterable(by.values()))}


def _health_names(view: RunView) -> list[str]:
    """Numbers that clients tell, those that are lists by their first entry's meaning."""
    found: dict[str, None] = {}
    for line in view.lines:
        for told in line.get("health", {}).values():
            for key, value in told.items():
                if not isinstance(value, list):
                    found[key] = None
            if "beta_scores" in told:
                found["density"] = None
    return list(found)


def _number(told: Json, quantity: str) -> float | None:
    # SND of the own cluster's model, which β compares with that of the blend.
    scores = told.get("beta_scores")
    density = scores[0] if isinstance(scores, list) and scores else None  # a site may say anything
    return _short(density if quantity == "density" else told.get(quantity))


def _weights(view: RunView, names: Sequence[str]) -> Json | None:
    """v_k of every client, for each round that has any."""
    rounds = []
    for line in view.lines:
        found = {n: line["server"][f"v/{n}"] for n in names if f"v/{n}" in line.get("server", {})}
        if found:
            values = {name: [_short(v) for v in row] for name, row in found.items()}
            rounds.append({"round": line["round"], "values": values})
    return {"rounds": rounds} if rounds else None


def _costs(view: RunView) -> Json:
    lines = [line for line in view.lines if line.get("seconds") is not None]
    return {
        "rounds": [line["round"] for line in lines],
        "seconds": [_short(line["seconds"]) for line in lines],
        "bytes_down": [line.get("bytes_down", 0) for line in lines],
        "bytes_up": [line.get("bytes_up", 0) for line in lines],
    }


def comparison_data(views: Sequence[RunView]) -> Json:
    """Several runs side by side, apart for each benchmark and source."""
    groups: dict[tuple[str, str], list[RunView]] = {}
    for view in views:
        data = view.settings["data"]
        groups.setdefault((data["benchmark"], data["source"]), []).append(view)
    return {
        "kind": "comparison",
        "runs": [_run_line(view) for view in views],
        "groups": [_group(key, members) for key, members in groups.items()],
    }


def _run_line(view: RunView) -> Json:
    return {
        "name": view.name,
        "method": view.method,
        "seed": view.seed,
        "rounds": view.rounds,
        "planned": planned_rounds(view),
        "done": view.done,
        "accuracy": _short(view.accuracy),
    }


def _group(key: tuple[str, str], views: list[RunView]) -> Json:
    benchmark, source = key
    methods = [_method(name, same) for name, same in by_variant(views)]
    domains = dict.fromkeys(d for v in views for d in v.last.get("accuracy", {}).get("domains", {}))
    return {
        "benchmark": benchmark,
        "source": source,
        "domains": list(domains),
        "methods": methods,
        "differences": _differences(methods),
    }


def _method(name: str, views: list[RunView]) -> Json:
    lasts = [v.last.get("accuracy", {}).get("domains", {}) for v in views]
    domains = list(dict.fromkeys(chain.from_iterable(lasts)))
    return {
        "name": name,
        "seeds": [v.seed for v in views],
        "rounds": sorted({v.rounds for v in views}),
        "done": all(v.done for v in views),
        "means": {v.seed: v.accuracy for v in views if v.accuracy is not None},
        "mean": _spread([v.accuracy for v in views]),
        "domains": {d: _spread([last.get(d) for last in lasts]) for d in domains},
        "curve": _curve(views),
    }


def _curve(views: Sequence[RunView]) -> list[Json]:
    """Mean accuracy by round, over the seeds that have the round."""
    by_round: dict[int, list[float | None]] = {}
    for view in views:
        for line in view.lines:
            by_round.setdefault(line["round"], []).append(line.get("accuracy", {}).get("mean"))
    return [{"round": r, **_spread(values)} for r, values in sorted(by_round.items())]


def _spread(values: Iterable[float | None]) -> Json:
    known = _known(values)
    return {
        "mean": _short(fmean(known)) if known else None,
        "spread": _short(stdev(known)) if len(known) > 1 else None,
        "count": len(known),
    }


def _differences(methods: Sequence[Json]) -> list[Json]:
    """The best method against each other one, paired over the seeds that both have."""
    scored = [method for method in methods if method["mean"]["mean"] is not None]
    if len(scored) < 2:
        return []
    best = max(scored, key=lambda method: method["mean"]["mean"])
    rows = []
    for other in scored:
        seeds = sorted(best["means"].keys() & other["means"].keys())
        if other is best or len(seeds) < 2:
            continue
        pairs = ([m["means"][seed] for seed in seeds] for m in (best, other))
        found = paired_difference(*pairs)
        if found is not None:
            told = {key: _short(value) for key, value in found._asdict().items()}
            rows.append({"best": best["name"], "other": other["name"], **told})
    return rows


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _short(value: Any) -> float | None:
    """Four digits are more than any plot or table shows."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.4g}")


def _mappings(content: Any) -> dict[str, Json]:
    """The entries of a file that are what they should be; a damaged one is left out."""
    if not isinstance(content, dict):
        return {}
    return {name: part for name, part in content.items() if isinstance(part, dict)}


def _pictures(path: Path) -> dict[str, list[str]]:
    clients = read_optional(path).get("clients")
    if not isinstance(clients, dict):
        return {}
    lists = {name: part for name, part in clients.items() if isinstance(part, list)}
    return {name: [p for p in part if isinstance(p, str)] for name, part in lists.items()}


def _log(path: Path) -> list[str]:
    try:
        with open_file(path) as file:
            return file.read().decode("utf-8", "replace").splitlines()[-_LOG_LINES:]
    except OSError:
        return []
