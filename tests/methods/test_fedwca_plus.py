"""FedWCA+: the shared model, its movement, and clusters that are found anew."""

from collections.abc import Callable, Mapping

import pytest
import torch

from fedwca.core.params import distance, extrapolate, mix
from fedwca.core.weights import stability_weights
from fedwca.data.images import ClientData
from fedwca.methods import Client, Record, build_method
from fedwca.methods.clustered import cluster_clients
from fedwca.methods.fedwca_plus import FedWCAPlus
from fedwca.models import DomainModel
from tests.support.federation import run

CLIENTS = [Client(name, "") for name in "abcd"]
NEWCOMER = Client("e", "")


# --- formulas -----------------------------------------------------------------------------------


def test_stability_weights_by_hand() -> None:
    stabilities, clusters = torch.tensor([0.5, 0.5, 1.0]), torch.tensor([0, 0, 1])
    assert stability_weights(stabilities, clusters, 2, 1.0).tolist() == [0.5, 0.5]
    assert stability_weights(stabilities, clusters, 2, 2.0).tolist() == pytest.approx(
        [1 / 3, 2 / 3]
    )
    assert stability_weights(stabilities, clusters, 2, 0.0).tolist() == pytest.approx(
        [2 / 3, 1 / 3]
    )
    assert stability_weights(torch.zeros(3), clusters, 3, 4.0).tolist()[2] == 0


def test_extrapolate_by_hand() -> None:
    def model(weight: float, mean: float, count: int) -> dict[str, torch.Tensor]:
        statistics = {"bn.running_mean": torch.tensor(mean), "count": torch.tensor(count)}
        return {"w": torch.tensor(weight), **statistics}

    moved = extrapolate(model(4.0, 1.0, 5), model(3.0, 9.0, 9), model(1.0, 7.0, 7), 0.5)
    assert moved == model(4.0 + 0.5 * (3.0 - 1.0), 1.0, 5)


# --- server -------------------------------------------------------------------------------------


def reply(update: list[float], start: Record, stability: float = 1.0) -> Record:
    local = {"w": start.models["start"]["w"] + torch.tensor(update)}
    values = {"samples": torch.tensor(10), "stability": torch.tensor(stability).double()}
    return Record({"local": local}, values)


def clusters(state: Record) -> list[int]:
    return [int(state.values[f"cluster_of/{c.name}"]) for c in CLIENTS]


def after(method: FedWCAPlus, state: Record, updates: Mapping[Client, list[float]]) -> Record:
    return method.aggregate(state, {c: reply(u, state) for c, u in updates.items()})


EAST, NORTH = [1.0, 0.1], [0.1, 1.0]
TWO_DOMAINS = dict(zip(CLIENTS, (EAST, EAST, NORTH, NORTH), strict=True))
SOURCE = {"w": torch.tensor([100.0, 0.0])}


def test_updates_show_what_weights_hide() -> None:
    """Far from the origin, models that moved to the left and right have the same direction."""
    replies = {
        client: Record({"local": {"w": SOURCE["w"] + torch.tensor(update)}})
        for client, update in zip(
            CLIENTS, ([9.0, 0.1], [-9.0, 0.11], [8.0, -0.1], [-8.0, -0.11]), strict=True
        )
    }
    assert [*cluster_clients("finch", replies, "all").values()] == [0, 0, 1, 1]
    assert [*cluster_clients("finch", replies, "all", SOURCE).values()] == [0, 1, 0, 1]


def test_clusters_are_found_anew_when_all_clients_take_part() -> None:
    method = FedWCAPlus()
    first = after(method, method.init(SOURCE), TWO_DOMAINS)
    assert clusters(first) == [0, 0, 1, 1]
    crossed = dict(zip(CLIENTS, (EAST, NORTH, EAST, NORTH), strict=True))
    assert clusters(after(method, first, crossed)) == [0, 1, 0, 1]
    assert clusters(after(FedWCAPlus(renew_clusters=False), first, crossed)) == [0, 0, 1, 1]
    without_d = {client: update for client, update in crossed.items() if client.name != "d"}
    assert clusters(after(method, first, without_d)) == [0, 0, 1, 1]
    one = after(method, first, dict.fromkeys(CLIENTS, EAST))
    assert {name for name in one.models if name.startswith("cluster/")} == {"cluster/0"}


def test_few_clients_are_a_cluster_each() -> None:
    method = FedWCAPlus()
    state = after(method, method.init(SOURCE), dict.fromkeys(CLIENTS[:3], EAST))
    assert [int(v) for n, v in state.values.items() if n.startswith("cluster_of/")] == [0, 1, 2]
    alone = method.aggregate(state, {CLIENTS[3]: reply(NORTH, state)})
    assert clusters(alone)[:3] == [0, 1, 2]


def test_a_newcomer_joins_the_cluster_of_its_update() -> None:
    method = FedWCAPlus()
    state = after(method, method.init(SOURCE), TWO_DOMAINS)
    state = after(method, state, TWO_DOMAINS)
    assert "cluster" not in method.send(state, NEWCOMER).values
    for update, cluster in ((EAST, 0), (NORTH, 1)):
        joined = method.assign_newcomer(state, NEWCOMER, reply(update, state))
        assert int(joined.values["cluster_of/e"]) == cluster
        assert joined.models is state.models


def test_a_client_deploys_its_cluster_or_the_shared_model() -> None:
    method, shared = FedWCAPlus(), FedWCAPlus(deploy="shared")
    state = method.init(SOURCE)
    assert method.offered(state, CLIENTS[0]) is SOURCE
    state = after(method, state, TWO_DOMAINS)
    assert method.offered(state, CLIENTS[3]) is state.models["cluster/1"]
    assert method.offered(state, NEWCOMER) is state.models["start"]
    assert shared.offered(state, CLIENTS[3]) is state.models["start"]


def test_only_clients_that_take_part_move_the_shared_model() -> None:
    method = FedWCAPlus(momentum=0.0)
    state = after(method, method.init(SOURCE), TWO_DOMAINS)
    moved = method.aggregate(state, {CLIENTS[2]: reply([5.0, 5.0], state)})
    expected = state.models["start"]["w"] + 5
    assert torch.equal(moved.models["start"]["w"], expected)
    assert moved.models["cluster/0"] is state.models["cluster/0"]
    kept = method.aggregate(state, {})
    assert kept.models == state.models


# --- both ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("trust", "momentum"), [(2.0, 0.5), (0.0, 0.0)])
def test_clients_start_from_clusters_weighted_by_stability(
    trust: float,
    momentum: float,
    new_model: Callable[[], DomainModel],
    tiny_clients: list[ClientData],
) -> None:
    method = build_method(
        {"name": "fedwca_plus", "clustering": "domain", "trust": trust, "momentum": momentum},
        {"rounds": 3, "epochs": 1, "lr": 0.01, "batch_size": 16},
    )
    log = run(method, new_model(), tiny_clients)
    clients = [Client(c.name, c.domain) for c in tiny_clients]
    replies = [log.replies[1][client].reply for client in clients]
    trusts = [float(r.values.get("stability", torch.tensor(1.0))) ** trust for r in replies]
    assert all(("stability" in r.values) == (trust > 0) for r in replies)
    first = (trusts[0] + trusts[1]) / sum(trusts)
    after = log.states[2].models
    merged = mix([after["cluster/0"], after["cluster/1"]], [first, 1 - first])
    now, before = (log.messages[round][clients[0]].models["start"] for round in (1, 0))
    start = extrapolate(merged, now, before, momentum)
    for client in clients:
        sent = log.messages[2][client].models
        assert sent.keys() == {"start"}
        assert distance(sent["start"], start) < 1e-6
