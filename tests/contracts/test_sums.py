"""Methods that say that they need no model but means of groups: the registry is walked."""

from dataclasses import replace

import pytest
import torch

from fedwca._support.text import parse_toml
from fedwca.core.params import Weights, distance, mix
from fedwca.engines.secure_sum.masked_reply import visible_weights
from fedwca.methods import METHODS, Client, Method, Record, Training
from fedwca.methods.capabilities import GroupMember, SupportsSums, replace_by_mean
from fedwca.methods.record import MODEL
from tests.support.federation import TinyProblem

TRAINING = Training(rounds=2, epochs=1, lr=0.01, batch_size=16)


def build(kind: type[Method]) -> Method:
    """Build a method with the settings that it asks for before it can be summed."""
    method = kind(training=TRAINING)
    asked = method.settings_for_sums() if isinstance(method, SupportsSums) else []
    return replace(method, **parse_toml("\n".join(asked)).get("method", {}))


BUILT = {name: build(kind) for name, kind in METHODS.items()}
SUMMED = {name: method for name, method in BUILT.items() if isinstance(method, SupportsSums)}


def replace_by_means(
    members: dict[Client, GroupMember], replies: dict[Client, Record]
) -> dict[Client, Record]:
    """Return the replies as they come out of sums: each with the mean of its group."""

    def mean(group: int) -> Weights:
        weights = {c: weight for c, (own, weight) in members.items() if own == group}
        shares = [weight / sum(weights.values()) for weight in weights.values()]
        return mix([replies[c].models["local"] for c in weights], shares)

    return {c: replace_by_mean(replies[c], mean(g), g) for c, (g, _) in members.items()}


@pytest.mark.parametrize("method", SUMMED.values(), ids=list(SUMMED))
def test_means_of_groups_and_what_is_shown_give_the_same_state(
    tiny: TinyProblem, method: SupportsSums
) -> None:
    assert not method.settings_for_sums()
    source = tiny.source()
    log = tiny.run(method)
    for round, adapted in enumerate(log.replies):
        messages, before, after = log.messages[round], log.states[round], log.states[round + 1]
        replies = {client: a.reply for client, a in adapted.items()}
        seen = {}
        for client, reply in replies.items():
            models = [n for n, k in method.replies(messages[client]).items() if k == MODEL]
            assert models == ["local"]
            visible = visible_weights(method, messages[client], source)
            assert len(visible) < len(source) / 2
            local = {n: reply.models["local"][n] if n in visible else source[n] for n in source}
            seen[client] = Record({"local": local}, reply.values)
        members = method.assign_groups(before, seen)
        merged = method.aggregate(before, replace_by_means(members, replies))
        assert merged.models.keys() == after.models.keys()
        assert all(distance(merged.models[n], after.models[n]) <= 1e-6 for n in after.models)
        assert merged.values.keys() == after.values.keys()
        assert all(torch.equal(merged.values[n], after.values[n]) for n in after.values)


def test_these_methods_can_be_summed() -> None:
    means_of_all, clustered = {"fedavg", "fedprox", "fedscal"}, {"ladd", "ladd_plus"}
    assert {*SUMMED} == means_of_all | clustered | {"fedwca", "fedwca_plus"}
