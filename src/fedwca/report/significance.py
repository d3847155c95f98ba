"""Is the difference between two methods more than chance? Paired over seeds."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

__all__ = ["Difference", "paired_difference"]


_ROUNDING = 1e-9  # differences that come of floating point alone


class Difference(NamedTuple):
    """A mean difference, its 95 % confidence interval, and p of a paired t-test."""

    mean: float
    low: float
    high: float
    p: float
    pairs: int


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference | None:
    """Student's paired t-test, two-sided; None where there is no spread to test against.

    With the differences d of n pairs: t = mean(d) / (s(d)/√n), with n - 1 degrees of freedom.
    Pairs that all differ by the same, or fewer than two of them, tell nothing of chance: accuracies
    are counts of a few images, and such a tie is no proof.
    """
    from scipy.stats import t as student  # here, since it takes a second to import

    gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
    if len(gaps) < 2 or stdev(gaps) < _ROUNDING:
        return None
    mean, error = fmean(gaps), stdev(gaps) / math.sqrt(len(gaps))
    freedom = len(gaps) - 1
    reach = float(student.ppf(0.975, freedom)) * error
    p = 2 * float(student.sf(abs(mean) / error, freedom))
    return Difference(mean, mean - reach, mean + reach, p, len(gaps))
