"""Split domains into clients, and clients into train, validation and test sets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedwca._support.errors import UserError
from fedwca.data.images import UNLABELED

__all__ = ["Partition", "Split", "split_domain"]

Rows = NDArray[np.int64]
TRAIN, TEST = 0.64, 0.20  # the paper's shares; validation is the rest, 0.16


class Split(NamedTuple):
    """Row numbers of one client's images."""

    train: Rows
    validation: Rows
    test: Rows


@dataclass(frozen=True)
class Partition:
    """How to split a domain into clients; by default as in the paper, i.i.d. and equally large.

    Attributes:
        clients: number of clients per domain.
        label_dirichlet: concentration of the Dirichlet draw of each class's shares over clients;
            the smaller, the fewer classes a client holds. 0: no label skew.
        size_dirichlet: the same for the sizes of clients. 0: equal sizes.
        images_per_client: limit on the images that a client trains on; 0: all.
            Validation and test sets stay whole, so that quick and long runs are evaluated alike.
    """

    clients: int
    label_dirichlet: float = 0.0
    size_dirichlet: float = 0.0
    images_per_client: int = 0


def split_domain(name: str, labels: Rows, partition: Partition, seed: Sequence[int]) -> list[Split]:
    """Return each client's rows of a domain whose images have these labels.

    A client with 4,250 images gets 2,720 / 680 / 850; one with a single image trains on it and
    has no test set. In a domain without any label, all images are for training.
    """
    if len(labels) < partition.clients:
        raise UserError(
            f"domain {name!r} has {len(labels)} images for {partition.clients} clients; "
            f"set data.clients_per_domain to at most {len(labels)}, or add images"
        )
    unlabeled = bool((labels == UNLABELED).all())
    if partition.label_dirichlet and unlabeled:
        raise UserError(
            f"domain {name!r} has no labels to skew; set data.label_dirichlet to 0, or add labels"
        )
    parts = _assign_rows(labels, partition, np.random.default_rng(list(seed)))
    splits = [Split(rows, rows[:0], rows[:0]) if unlabeled else _split(rows) for rows in parts]
    most = partition.images_per_client or None
    return [Split(split.train[:most], split.validation, split.test) for split in splits]


def _split(rows: Rows) -> Split:
    train = max(1, round(TRAIN * len(rows)))
    test = round(TEST * len(rows))
    return Split(rows[:train], rows[train : len(rows) - test], rows[len(rows) - test :])


def _assign_rows(labels: Rows, partition: Partition, rng: np.random.Generator) -> list[Rows]:
    """Return the rows of each client, in random order."""
    order = rng.permutation(len(labels))
    if not partition.label_dirichlet and not partition.size_dirichlet:
        return np.array_split(order, partition.clients)
    equal = np.ones(partition.clients)
    sizes = equal / equal.sum()
    if partition.size_dirichlet:
        sizes = rng.dirichlet(partition.size_dirichlet * equal)
    if not partition.label_dirichlet:
        return _fill_empty_parts(_cut(order, sizes))
    parts: list[list[Rows]] = [[] for _ in range(partition.clients)]
    for label in np.unique(labels):
        # The mean of this draw is `sizes`, so that both skews can be combined.
        concentration = partition.label_dirichlet * partition.clients * sizes
        shares = rng.dirichlet(np.maximum(concentration, 1e-6))
        for part, rows in zip(parts, _cut(order[labels[order] == label], shares), strict=True):
            part.append(rows)
    return _fill_empty_parts([rng.permutation(np.concatenate(part)) for part in parts])


def _cut(rows: Rows, shares: NDArray[np.float64]) -> list[Rows]:
    return np.split(rows, np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(int))


def _fill_empty_parts(parts: list[Rows]) -> list[Rows]:
    """Give every empty part one row of the largest: every client needs an image."""
    for place, part in enumerate(parts):
        if len(part) == 0:
            largest = max(range(len(parts)), key=lambda other: len(parts[other]))
            parts[place], parts[largest] = parts[largest][:1], parts[largest][1:]
    return parts
