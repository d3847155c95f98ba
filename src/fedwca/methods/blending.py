"""The client's half of weighted cluster aggregation: judge received models, blend f_init."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedwca.core.params import State, mix
from fedwca.core.weights import alignment, softmax_weights
from fedwca.methods.inference import Outputs

__all__ = ["Blend", "View", "align", "balance"]

View = Callable[[Mapping[str, Tensor]], Outputs]  # what a model says of the client's images


class Blend(NamedTuple):
    """A blended model, the weights that made it, and the scores behind them."""

    model: State
    weights: Tensor
    scores: Tensor


def align(
    models: Sequence[State],
    classifier_weight: Tensor,
    view: View,
    weigh: Callable[[Tensor], Tensor],
) -> Blend:
    """f̄_k = Σ_c α_{k,c} f̃_c, with α from how well features align with the classifier's vectors."""
    scores = torch.tensor(
        [alignment(view(model).features, classifier_weight) for model in models],
        dtype=torch.float64,
    )
    alpha = weigh(scores)
    return Blend(mix(models, alpha), alpha, scores)


def balance(
    own: State,
    merged: State,
    scores: Tensor,
    temperature: float,
) -> Blend:
    """f_init = β0·f_own + β1·f̄_k, with β from the scores of both, as a rule their density."""
    beta = softmax_weights(scores, temperature)
    return Blend(mix([own, merged], beta), beta, scores)
