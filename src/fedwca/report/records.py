"""Results as flat records: one for each round and client."""

from typing import Any

from fedwca.report.runs import RunView

__all__ = ["flat_records"]

_SCORES = ("domain", "accuracy", "correct", "total", "confidence")


def flat_records(run: RunView) -> list[dict[str, Any]]:
    """All that is told of each client in each round; the same keys in all, None where unknown.

    `confidence` is of the model that the client uses, on the images that it is scored on;
    `init_confidence` of f_init on those that it adapts on.
    """
    records = [
        _record(line, client)
        for line in run.lines
        for client in dict.fromkeys([*line.get("clients", {}), *line.get("health", {})])
    ]
    keys = dict.fromkeys(key for record in records for key in record)
    return [{key: record.get(key) for key in keys} for record in records]


def _record(line: dict[str, Any], client: str) -> dict[str, Any]:
    score = line.get("clients", {}).get(client, {})
    server = line.get("server", {})
    health = dict(line.get("health", {}).get(client, {}))
    if "confidence" in health:
        health["init_confidence"] = health.pop("confidence")
    record = {
        "round": line["round"],
        "client": client,
        **{name: score.get(name) for name in _SCORES},
        "cluster": server.get(f"cluster_of/{client}"),
        "weights": server.get(f"v/{client}"),
    }
    return {**record, **health, **record}  # what a site calls its numbers hides none of ours
