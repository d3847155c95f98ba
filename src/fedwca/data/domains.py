"""Domains as the rest of the program sees them: decoded, and dealt out to clients."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwca.data.augment import Transform
from fedwca.data.images import ClientData, LabeledImages, UnlabeledImages
from fedwca.data.partition import Partition, Split, split_domain
from fedwca.data.raw import UNLABELED
from fedwca.errors import UserError, did_you_mean

__all__ = ["Benchmark", "Domain"]


@dataclass(frozen=True)
class Domain:
    """The images of one domain, and what is known of their files.

    Attributes:
        images: uint8 [N, H, W, 3], usually a memory map.
        labels: int64 [N], UNLABELED where there is none.
        digest: tells whether the content is still what it was.
        files: names of the N files, where each image is a file of its own; else empty.
        broken: names of images that could not be read, and why; they are not among the N.
        smallest, largest: width and height before resizing, each the extreme over all images.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    digest: str = ""
    files: tuple[str, ...] = ()
    broken: tuple[tuple[str, str], ...] = ()
    smallest: tuple[int, int] = (0, 0)
    largest: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Benchmark:
    """Domains of one classification task, and how their pixels become network input.

    `warnings` are sentences for the user on what is missing or could not be read.
    """

    name: str
    classes: tuple[str, ...]
    domains: Mapping[str, Domain]
    transform: Transform
    warnings: tuple[str, ...] = ()

    @property
    def digests(self) -> dict[str, str]:
        """What tells whether the domains' content is still what it was."""
        return {name: domain.digest for name, domain in self.domains.items()}

    def source(self, domain: str) -> LabeledImages:
        """All images of the source domain, with labels."""
        found = self._domain(domain)
        rows = np.flatnonzero(found.labels != UNLABELED)
        if len(rows) == 0:
            raise UserError(
                f"domain {domain!r} has no labels, so no source model can be trained on it: "
                "choose a labeled domain as data.source"
            )
        return self._labeled(found, rows)

    def clients(self, source: str, plan: Partition, seed: int) -> list[ClientData]:
        """Clients of every domain but the source; of every domain if the source is ""."""
        if source:
            self._domain(source)
        clients = []
        for number, (name, domain) in enumerate(self.domains.items()):
            if name == source:
                continue
            splits = split_domain(name, domain.labels, plan, (seed, number))
            for place, split in enumerate(splits):
                # Who gives one folder for each client knows the clients by these names.
                called = f"{name}/{place}" if plan.clients > 1 else name
                clients.append(self._client(called, name, domain, split))
        if not clients:
            raise UserError(
                f"benchmark {self.name!r} has no domain beside the source {source!r}: "
                "add at least one target domain"
            )
        return clients

    def _client(self, called: str, name: str, domain: Domain, split: Split) -> ClientData:
        return ClientData(
            name=called,
            domain=name,
            train=UnlabeledImages(domain.images, split.train, self.transform),
            validation=self._scored(domain, split.validation),
            test=self._scored(domain, split.test),
        )

    def _domain(self, name: str) -> Domain:
        if name not in self.domains:
            choice = f"set data.source to one of {', '.join(self.domains)}"
            raise UserError(
                f"benchmark {self.name!r} has no domain {name!r}: "
                f"{did_you_mean(name, self.domains, choice)}"
            )
        return self.domains[name]

    def _labeled(self, domain: Domain, rows: NDArray[np.int64]) -> LabeledImages:
        images = UnlabeledImages(domain.images, rows, self.transform)
        return LabeledImages(images, domain.labels[rows])

    def _scored(self, domain: Domain, rows: NDArray[np.int64]) -> LabeledImages | None:
        rows = rows[domain.labels[rows] != UNLABELED]
        return self._labeled(domain, rows) if len(rows) else None
