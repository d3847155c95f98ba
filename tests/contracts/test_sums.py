"""Methods that say that they need no model but means of groups: the registry is walked."""

from collections.abc import Callable

import pytest
import torch

from federation import run
from fedwca.core.params import State, clone, distance, mix
from fedwca.data.images import ClientData
from fedwca.engines.withheld import shown_of
from fedwca.methods import METHODS, Client, Method, Record, Training
from fedwca.methods.base import MODEL, Pooled
from fedwca.models import DomainModel

NewModel = Callable[[], DomainModel]
TRAINING = Training(rounds=2, epochs=1, lr=0.01, batch_size=16)


def make(name: str) -> Method:
    return METHODS[name](training=TRAINING)  # type: ignore[call-arg]


SUMMED = [name for name in METHODS if make(name).in_clear(Record(), {}) is not None]


def means(pooled: dict[Client, Pooled], replies: dict[Client, Record]) -> dict[Client, Record]:
    """Replies as they come of sums: each with the mean of its group."""

    def mean(group: int) -> State:
        members = {c: weight for c, (own, weight) in pooled.items() if own == group}
        shares = [weight / sum(members.values()) for weight in members.values()]
        return mix([replies[c].models["local"] for c in members], shares)

    return {
        c: Record({"local": mean(group)}, {**replies[c].values, "group": torch.tensor(group)})
        for c, (group, _) in pooled.items()
    }


@pytest.mark.parametrize("name", SUMMED)
def test_means_of_groups_and_what_is_shown_give_the_same_state(
    new_model: NewModel, tiny_clients: list[ClientData], name: str
) -> None:
    method, model = make(name), new_model()
    source = clone(model.feature_state())
    log = run(method, model, tiny_clients)
    for round, adapted in enumerate(log.replies):
        messages, before, after = log.messages[round], log.states[round], log.states[round + 1]
        replies = {client: a.reply for client, a in adapted.items()}
        seen = {}
        for client, reply in replies.items():
            assert [n for n, k in method.replies(messages[client]).items() if k == MODEL] == [
                "local"
            ]
            shown = shown_of(method, messages[client], source)
            assert len(shown) < len(source) / 2
            local = {n: reply.models["local"][n] if n in shown else source[n] for n in source}
            seen[client] = Record({"local": local}, reply.values)
        merged = method.aggregate(before, means(method.pooled(before, seen), replies))
        assert merged.models.keys() == after.models.keys()
        assert all(distance(merged.models[n], after.models[n]) <= 1e-6 for n in after.models)
        assert merged.values.keys() == after.values.keys()
        assert all(torch.equal(merged.values[n], after.values[n]) for n in after.values)


def test_these_methods_can_be_summed() -> None:
    assert set(SUMMED) == {
        *("fedavg", "fedprox", "fedscal", "fedwca", "fedwca_plus", "ladd", "ladd_plus")
    }
