"""How well clusters of clients match their true domains."""

import random
import string
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

__all__ = ["chance_purity", "purity", "sizes_by_domain"]

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


def sizes_by_domain(clusters: Sequence[int], domains: Sequence[str]) -> str:
    """How many clients of each domain share a cluster, as "6+2 | 8 | 8".

    A cluster that holds clients of several domains has a letter: "3a | 3a | 1a+2".
    """
    where: dict[int, set[str]] = {}
    for cluster, domain in zip(clusters, domains, strict=True):
        where.setdefault(cluster, set()).add(domain)
    mixed = [cluster for cluster, found in where.items() if len(found) > 1]
    letters = dict(zip(mixed, string.ascii_letters, strict=False))
    blocks = []
    for domain in dict.fromkeys(domains):
        counts = Counter(c for c, d in zip(clusters, domains, strict=True) if d == domain)
        blocks.append("+".join(f"{n}{letters.get(c, '')}" for c, n in counts.most_common()))
    return " | ".join(blocks)
