"""How well clusters match true domains, and whether two methods differ by more than chance."""

import random
import string
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

__all__ = ["Difference", "chance_purity", "paired_difference", "purity", "sizes_by_domain"]

_SHUFFLES = 2000
_ROUNDING_ERROR = 1e-9


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


class Difference(NamedTuple):
    """A mean difference, its 95 % confidence interval, and p of a paired t-test."""

    mean: float
    low: float
    high: float
    p: float
    pairs: int


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference | None:
    """Run Student's paired two-sided t-test; return None if the differences have no spread.

    Equal differences, or fewer than two pairs, say nothing about chance: accuracies are counts of
    a few images.
    """
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    if len(differences) < 2 or stdev(differences) < _ROUNDING_ERROR:
        return None
    from scipy.stats import ttest_rel  # slow to import

    test = ttest_rel(ours, theirs)
    low, high = map(float, test.confidence_interval(0.95))
    return Difference(fmean(differences), low, high, float(test.pvalue), len(differences))
