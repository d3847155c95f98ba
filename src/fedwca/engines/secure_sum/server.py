"""The server's part of secure sums: each group's mean model, without seeing any single model."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedwca.core.params import Weights
from fedwca.engines.codec import WireError
from fedwca.engines.secure_sum.fixed_point import decode, vector_length
from fedwca.engines.secure_sum.masked_reply import bytes_to_tensor, tensor_to_bytes
from fedwca.engines.secure_sum.protocol import PublicKeys, Vector, unmask_sum
from fedwca.methods.base import Record
from fedwca.methods.capabilities import GroupMember

__all__ = ["STEPS", "SecureSums", "Step"]

logger = logging.getLogger(__name__)

Step = Literal["share", "mask", "unmask"]
STEPS: tuple[Step, ...] = ("share", "mask", "unmask")


@dataclass
class _Group:
    """Sites that are summed together, and how far they have come.

    Masked vectors are added up as they arrive: one vector is kept, however many sites there are.
    """

    weights: dict[str, int] = field(default_factory=dict)
    keys: dict[str, PublicKeys] = field(default_factory=dict)
    boxes: dict[str, dict[str, bytes]] = field(default_factory=dict)  # by sender, then receiver
    masked: list[str] = field(default_factory=list)  # whose vectors are in the sum
    sum: Vector = field(default_factory=lambda: np.zeros(1, dtype=np.uint64))
    shares: dict[str, dict[str, bytes]] = field(default_factory=dict)  # by helper, then owner

    @property
    def total_weight(self) -> int:
        return sum(self.weights.values())


class SecureSums:
    """The sums of a round: each step has a message for each site, and a reply.

    Args:
        members: the group of each site that withheld its model.
        keys: the public keys that came with each site's reply.
        template: weights of the model.
        min_summed: how many sites a sum must have.
        round: for the log.
    """

    def __init__(
        self,
        members: Mapping[str, GroupMember],
        keys: Mapping[str, PublicKeys],
        template: Weights,
        min_summed: int,
        round: int,
    ) -> None:
        self._template, self._min_summed, self._round = template, min_summed, round
        groups: dict[int, _Group] = {}
        for name, (number, weight) in members.items():
            group = groups.setdefault(number, _Group())
            group.weights[name], group.keys[name] = weight, keys[name]
        self._groups = []
        for group in groups.values():
            if len(group.keys) < min_summed:
                self._log_no_sum(group, f"fewer than deploy.least_summed = {min_summed} sites")
            else:
                self._groups.append(group)
        self._group_of = {name: group for group in self._groups for name in group.keys}

    def messages(self, step: Step) -> dict[str, Record]:
        """Return the message of a step for each site that is still in a sum."""
        if step == "share":
            return {name: self._share_message(group) for name, group in self._group_of.items()}
        if step == "mask":
            shared = {n: g for n, g in self._group_of.items() if n in g.boxes}
            return {name: self._mask_message(name, group) for name, group in shared.items()}
        summed = {n: g for g in self._groups if len(g.masked) >= self._min_summed for n in g.masked}
        return {name: self._unmask_message(group) for name, group in summed.items()}

    def reply_names(self, step: Step, site: str) -> Collection[str]:
        """Return the names of the values that a site's reply must hold."""
        group = self._group_of[site]
        if step == "share":
            return [name for name in group.keys if name != site]
        return ["masked"] if step == "mask" else list(group.boxes)

    def accept(self, step: Step, site: str, reply: Record) -> None:
        """Accept a site's reply; WireError if it is invalid."""
        group = self._group_of[site]
        if step == "share":
            boxes = {name: tensor_to_bytes(box) for name, box in reply.values.items()}
            if not all(boxes.values()):
                raise WireError("the reply has no share for another site of the sum")
            group.boxes[site] = boxes
        elif step == "mask":
            vector = reply.values["masked"]
            if vector.dtype != torch.int64 or vector.shape != (vector_length(self._template),):
                raise WireError("the masked vector does not have the model's length")
            group.sum = group.sum + vector.numpy().view(np.uint64)
            group.masked.append(site)
        else:
            shares = {name: tensor_to_bytes(share) for name, share in reply.values.items()}
            group.shares[site] = shares

    def means(self, check: Callable[[Weights], None]) -> dict[str, Weights]:
        """Return its group's mean for each summed site; none if too few sites completed the steps.

        A mean that `check` raises a ValueError for is dropped: a site has falsified the
        sum, and it cannot be known which one.
        """
        means: dict[str, Weights] = {}
        for group in self._groups:
            try:
                mean = self._mean(group)
                check(mean)
            except ValueError as error:
                self._log_no_sum(group, str(error))
                continue
            if missing := sorted(group.keys.keys() - set(group.masked)):
                names = ", ".join(group.keys), ", ".join(missing)
                logger.info("round %d: the sum over %s lacks %s", self._round, *names)
            means.update(dict.fromkeys(group.masked, mean))
        return means

    def _mean(self, group: _Group) -> Weights:
        total = unmask_sum(group.sum, group.masked, group.boxes, group.keys, group.shares)
        summed_weight = sum(group.weights[name] for name in group.masked)
        return decode(total, summed_weight, group.total_weight, self._template)

    def _share_message(self, group: _Group) -> Record:
        """Every site gets the keys of all, and encrypts shares of its secrets for the others."""
        values = {
            f"{kind}/{name}": bytes_to_tensor(key)
            for name, public in group.keys.items()
            for kind, key in public._asdict().items()
        }
        return Record({}, values)

    def _mask_message(self, site: str, group: _Group) -> Record:
        """A site that has shared gets the others' shares, and sends its masked weights."""
        boxes: dict[str, Tensor] = {
            f"box/{name}": bytes_to_tensor(box[site])
            for name, box in group.boxes.items()
            if name != site
        }
        weight, total = torch.tensor(group.weights[site]), torch.tensor(group.total_weight)
        return Record({}, {**boxes, "weight": weight, "total": total})

    def _unmask_message(self, group: _Group) -> Record:
        """A site that is summed helps to remove the masks from the sum."""
        return Record({}, {f"summed/{name}": torch.tensor(1) for name in group.masked})

    def _log_no_sum(self, group: _Group, reason: str) -> None:
        names = ", ".join(group.keys)
        logger.info("round %d: no sum over %s: %s", self._round, names, reason)
