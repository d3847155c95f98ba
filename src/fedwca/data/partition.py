"""Who holds which image: domains cut into clients, clients into train, validation and test."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedwca.errors import UserError

__all__ = ["Split", "split_domain"]

Indices = NDArray[np.int64]
TRAIN, TEST = 0.64, 0.20  # the paper's shares; validation is the rest, 0.16


class Split(NamedTuple):
    """Row numbers of one client's images."""

    train: Indices
    validation: Indices
    test: Indices


def split_domain(name: str, count: int, clients: int, seed: Sequence[int]) -> list[Split]:
    """Deal `count` images of a domain out to clients, i.i.d. and as equally as possible.

    With 4,250 images a client holds 2,720 / 680 / 850; with one image it trains on that one and
    has no test set.
    """
    if count < clients:
        raise UserError(
            f"domain {name!r} has {count} images for {clients} clients: "
            f"set data.clients_per_domain to at most {count}, or give it more images"
        )
    order = np.random.default_rng(list(seed)).permutation(count)
    return [_split(part) for part in np.array_split(order, clients)]


def _split(rows: Indices) -> Split:
    train = max(1, round(TRAIN * len(rows)))
    test = round(TEST * len(rows))
    return Split(rows[:train], rows[train : len(rows) - test], rows[len(rows) - test :])
