"""How well clusters of clients match their true domains."""

import random
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

__all__ = ["chance_purity", "purity"]

_SHUFFLES = 2000


def purity(clusters: Sequence[int], domains: Sequence[str]) -> float:
    """Share of clients whose domain is the commonest of their cluster."""
    pairs = Counter(zip(clusters, domains, strict=True))
    best: dict[int, int] = {}
    for (cluster, _), count in pairs.items():
        best[cluster] = max(best.get(cluster, 0), count)
    return sum(best.values()) / len(clusters)


def chance_purity(clusters: Sequence[int], domains: Sequence[str]) -> float:
    """Mean purity of clusters of the same sizes, filled at random (seeded)."""
    rng = random.Random(0)
    shuffled = list(domains)
    values = []
    for _ in range(_SHUFFLES):
        rng.shuffle(shuffled)
        values.append(purity(clusters, shuffled))
    return fmean(values)
