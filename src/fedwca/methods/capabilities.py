"""What only some methods can do: small protocols that engines ask for with `isinstance`."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from fedwca.core.params import Weights
from fedwca.methods.record import Client, Record

__all__ = [
    "AssignsNewcomers",
    "Discloses",
    "GroupMember",
    "LOCAL",
    "SupportsSums",
    "group_of",
    "replace_by_mean",
]

LOCAL = "local"  # name of the model in a reply that may be summed
_GROUP = "group"  # value of a reply that holds its group's mean


class GroupMember(NamedTuple):
    """The group of clients whose models are averaged, and a client's weight in the mean."""

    group: int
    weight: int


@runtime_checkable
class SupportsSums(Protocol):
    """A method whose server can work with means of groups instead of each client's model.

    An engine may then sum models under masks. `aggregate` gets the replies of the summed clients,
    each with the mean of its group as the model "local" (see `replace_by_mean`, `group_of`).
    """

    def settings_for_sums(self) -> list[str]:
        """Return the settings to change before means suffice; empty if they do already."""
        ...

    def visible_weights(self, message: Record, weights: Weights) -> list[str]:
        """Return which weights of the reply's model the server must see of each client."""
        ...

    def assign_groups(
        self, state: Record, replies: Mapping[Client, Record]
    ) -> dict[Client, GroupMember]:
        """Return each client's group, from replies in which only visible weights are real."""
        ...


@runtime_checkable
class AssignsNewcomers(Protocol):
    """A method whose server must know a client before it can send it more than the source model."""

    def assign_newcomer(self, state: Record, client: Client, reply: Record) -> Record:
        """Return the state with the newcomer in it, from its first reply; no model changes."""
        ...


@runtime_checkable
class Discloses(Protocol):
    """A method whose replies may reveal more about a client's images than weights do."""

    def disclosures(self) -> dict[str, str | None]:
        """Return what replies reveal, and the setting that avoids it, or None if none does.

        With [privacy] on, a method with any disclosure is refused.
        """
        ...


def replace_by_mean(reply: Record, mean: Weights, group: int) -> Record:
    """Return the reply with its group's mean as its model; integer buffers stay its own."""
    integers = {n: t for n, t in reply.models[LOCAL].items() if not t.is_floating_point()}
    return Record({LOCAL: {**mean, **integers}}, {**reply.values, _GROUP: torch.tensor(group)})


def group_of(reply: Record) -> int | None:
    """Return the group whose mean the reply holds; None if it holds its client's own model."""
    return int(reply.values[_GROUP]) if _GROUP in reply.values else None
