"""Is the difference between two methods more than chance? Paired over seeds."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

__all__ = ["Difference", "paired_difference"]


class Difference(NamedTuple):
    """A mean difference, its 95 % confidence interval, and p of a paired t-test."""

    mean: float
    low: float
    high: float
    p: float
    pairs: int


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference | None:
    """Student's paired t-test, two-sided; None with fewer than two pairs, which allow no test.

    With the differences d of n pairs: t = mean(d) / (s(d)/√n), with n - 1 degrees of freedom.
    """
    from scipy.stats import t as student  # here, since it takes a second to import

    gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
    if len(gaps) < 2:
        return None
    mean, error = fmean(gaps), stdev(gaps) / math.sqrt(len(gaps))
    freedom = len(gaps) - 1
    if error == 0:  # all pairs differ by the same: certain, if by anything at all
        return Difference(mean, mean, mean, float(mean == 0), len(gaps))
    reach = float(student.ppf(0.975, freedom)) * error
    p = 2 * float(student.sf(abs(mean) / error, freedom))
    return Difference(mean, mean - reach, mean + reach, p, len(gaps))
