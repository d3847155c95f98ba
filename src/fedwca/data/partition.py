"""Who holds which image: domains cut into clients, clients into train, validation and test."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedwca.data.raw import UNLABELED
from fedwca.errors import UserError

__all__ = ["Partition", "Split", "split_domain"]

Indices = NDArray[np.int64]
TRAIN, TEST = 0.64, 0.20  # the paper's shares; validation is the rest, 0.16


class Split(NamedTuple):
    """Row numbers of one client's images."""

    train: Indices
    validation: Indices
    test: Indices


@dataclass(frozen=True)
class Partition:
    """How a domain is dealt out; by default as in the paper, i.i.d. and in equal parts.

    Attributes:
        clients: how many clients a domain has.
        label_dirichlet: concentration of a Dirichlet draw of each class's shares over clients: the
            smaller, the fewer classes a client holds. 0: no label skew.
        size_dirichlet: likewise for the sizes of clients. 0: equal sizes.
        images_per_client: train on no more than so many images of a client; 0: all. Validation
            and test sets stay whole, so that a quick run is scored as well as a long one.
    """

    clients: int
    label_dirichlet: float = 0.0
    size_dirichlet: float = 0.0
    images_per_client: int = 0


def split_domain(name: str, labels: Indices, plan: Partition, seed: Sequence[int]) -> list[Split]:
    """Deal the images of a domain, of which these are the labels, out to clients.

    With 4,250 images a client holds 2,720 / 680 / 850; with one image it trains on that one and
    has no test set. Where nothing has a label, nothing can be scored, and all is for training.
    """
    if len(labels) < plan.clients:
        raise UserError(
            f"domain {name!r} has {len(labels)} images for {plan.clients} clients: "
            f"set data.clients_per_domain to at most {len(labels)}, or give it more images"
        )
    unlabeled = bool((labels == UNLABELED).all())
    if plan.label_dirichlet and unlabeled:
        raise UserError(
            f"domain {name!r} has no labels to skew: set data.label_dirichlet to 0, "
            "or give it labels"
        )
    parts = _dealt(labels, plan, np.random.default_rng(list(seed)))
    splits = [_all_for_training(rows) if unlabeled else _split(rows) for rows in parts]
    most = plan.images_per_client or None
    return [Split(split.train[:most], split.validation, split.test) for split in splits]


def _split(rows: Indices) -> Split:
    train = max(1, round(TRAIN * len(rows)))
    test = round(TEST * len(rows))
    return Split(rows[:train], rows[train : len(rows) - test], rows[len(rows) - test :])


def _all_for_training(rows: Indices) -> Split:
    return Split(rows, rows[:0], rows[:0])


def _dealt(labels: Indices, plan: Partition, rng: np.random.Generator) -> list[Indices]:
    """The rows of each client, in random order."""
    order = rng.permutation(len(labels))
    if not plan.label_dirichlet and not plan.size_dirichlet:
        return np.array_split(order, plan.clients)
    even = np.ones(plan.clients)
    sizes = rng.dirichlet(plan.size_dirichlet * even) if plan.size_dirichlet else even / even.sum()
    if not plan.label_dirichlet:
        return _nobody_empty(_cut(order, sizes))
    hands: list[list[Indices]] = [[] for _ in range(plan.clients)]
    for label in np.unique(labels):
        # The mean of this draw is `sizes`, so that both skews can be had at once.
        shares = rng.dirichlet(np.maximum(plan.label_dirichlet * plan.clients * sizes, 1e-6))
        for hand, rows in zip(hands, _cut(order[labels[order] == label], shares), strict=True):
            hand.append(rows)
    return _nobody_empty([rng.permutation(np.concatenate(hand)) for hand in hands])


def _cut(rows: Indices, shares: NDArray[np.float64]) -> list[Indices]:
    return np.split(rows, np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(int))


def _nobody_empty(parts: list[Indices]) -> list[Indices]:
    """Every client needs an image: who has none gets one of who has most."""
    for place, part in enumerate(parts):
        if len(part) == 0:
            rich = max(range(len(parts)), key=lambda other: len(parts[other]))
            parts[place], parts[rich] = parts[rich][:1], parts[rich][1:]
    return parts
