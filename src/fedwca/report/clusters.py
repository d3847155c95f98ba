"""How well clusters of clients match their true domains."""

import random
import string
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

__all__ = ["chance_purity", "purity", "sizes_by_domain"]

_SHUFFLES = 2000


def purity(clusters: Sequence[int], domains: Sequence[str]) -> float:
    """Return the share of clients whose domain is the most common one in their cluster."""
    pairs = Counter(zip(clusters, domains, strict=True))
    largest: dict[int, int] = {}
    for (cluster, _), count in pairs.items():
        largest[cluster] = max(largest.get(cluster, 0), count)
    return sum(largest.values()) / len(clusters)


def chance_purity(clusters: Sequence[int], domains: Sequence[str]) -> float:
    """Return the mean purity of random clusters of the same sizes (with a fixed seed)."""
    rng = random.Random(0)
    shuffled = list(domains)
    values = []
    for _ in range(_SHUFFLES):
        rng.shuffle(shuffled)
        values.append(purity(clusters, shuffled))
    return fmean(values)


def sizes_by_domain(clusters: Sequence[int], domains: Sequence[str]) -> str:
    """Format how many clients of each domain share a cluster, e.g. "6+2 | 8 | 8".

    A letter marks a cluster with clients of several domains: "3a | 3a | 1a+2".
    """
    domains_in: dict[int, set[str]] = {}
    for cluster, domain in zip(clusters, domains, strict=True):
        domains_in.setdefault(cluster, set()).add(domain)
    mixed = [cluster for cluster, members in domains_in.items() if len(members) > 1]
    letters = dict(zip(mixed, string.ascii_letters, strict=False))
    blocks = []
    for domain in dict.fromkeys(domains):
        counts = Counter(c for c, d in zip(clusters, domains, strict=True) if d == domain)
        blocks.append("+".join(f"{n}{letters.get(c, '')}" for c, n in counts.most_common()))
    return " | ".join(blocks)
