"""Merge the models of several replies: mean, median, trimmed mean or mean of clipped updates."""

from collections.abc import Sequence
from typing import Literal

from fedwca.core.params import Weights, mix
from fedwca.core.robust import clipped_mean, coordinate_median, trimmed_mean
from fedwca.methods.record import Record

__all__ = ["Aggregation", "Weighting", "merge_models", "weight_of"]

Aggregation = Literal["mean", "median", "trimmed_mean", "clipped"]
Weighting = Literal["samples", "plain"]
_TRIMMED = 0.2  # at either end: excludes one dishonest client of three to five, two of six to ten


def merge_models(
    replies: Sequence[Record], weighting: Weighting, aggregation: Aggregation, before: Weights
) -> Weights:
    """Merge the replies' models "local"; return `before` if there is no reply.

    All aggregations but "mean" hold every model in memory at once.

    Args:
        weighting: used by "mean" and "clipped"; the others weight all clients equally.
        before: the model that the merged one replaces; "clipped" clips the updates of it.
    """
    if not replies:
        return before
    counts = [weight_of(reply, weighting) for reply in replies]
    weights = [count / sum(counts) for count in counts]
    models = (reply.models["local"] for reply in replies)
    if aggregation == "median":
        return coordinate_median(list(models))
    if aggregation == "trimmed_mean":
        return trimmed_mean(list(models), _TRIMMED)
    if aggregation == "clipped":
        return clipped_mean(list(models), weights, before)
    return mix(models, weights)


def weight_of(reply: Record, weighting: Weighting) -> int:
    """Return the weight of a reply in a mean: its number of samples, or 1."""
    return int(reply.values["samples"]) if weighting == "samples" else 1
