"""From evaluations to the numbers of one result line."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from fedwca.engines.base import Evaluation
from fedwca.methods.base import Client

__all__ = ["accuracy_of", "client_scores"]


def client_scores(evaluations: Mapping[Client, Evaluation]) -> dict[str, dict[str, Any]]:
    """Every client's numbers; accuracy is None where there are no labels."""
    return {
        client.name: {
            "domain": client.domain,
            "accuracy": e.correct / e.total if e.total else None,
            "correct": e.correct,
            "total": e.total,
            "confidence": e.confidence,
        }
        for client, e in evaluations.items()
    }


def accuracy_of(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Mean accuracy over clients, each client equal, in all and by domain.

    A site whose domain nobody knows stands for itself.
    """
    known = [
        (s["domain"] or name, s["accuracy"])
        for name, s in scores.items()
        if s["accuracy"] is not None
    ]
    domains = dict.fromkeys(domain for domain, _ in known)
    return {
        "mean": fmean(a for _, a in known) if known else None,
        "domains": {d: fmean(a for other, a in known if other == d) for d in domains},
    }
