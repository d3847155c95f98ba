"""Test whether two methods differ by more than chance, paired over seeds."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

__all__ = ["Difference", "paired_difference"]

_ROUNDING_ERROR = 1e-9


class Difference(NamedTuple):
    """A mean difference, its 95 % confidence interval, and p of a paired t-test."""

    mean: float
    low: float
    high: float
    p: float
    pairs: int


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference | None:
    """Run Student's paired two-sided t-test; return None if the differences have no spread.

    With the differences d of n pairs: t = mean(d) / (s(d)/√n), with n - 1 degrees of freedom.
    Equal differences, or fewer than two pairs, say nothing about chance: accuracies are counts of
    a few images.
    """
    from scipy.stats import t as student  # slow to import

    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    if len(differences) < 2 or stdev(differences) < _ROUNDING_ERROR:
        return None
    mean, error = fmean(differences), stdev(differences) / math.sqrt(len(differences))
    degrees = len(differences) - 1
    margin = float(student.ppf(0.975, degrees)) * error
    p = 2 * float(student.sf(abs(mean) / error, degrees))
    return Difference(mean, mean - margin, mean + margin, p, len(differences))
