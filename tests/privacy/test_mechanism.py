"""Where noise comes from, and that nothing slips past it."""

from collections.abc import Callable

import pytest
import torch

from fedwca._support.errors import UserError
from fedwca.core.params import clone
from fedwca.core.privacy import noised_update
from fedwca.data.images import ClientData
from fedwca.engines.client_runtime import ClientRuntime
from fedwca.methods import Adaptation, Record, Training
from fedwca.methods.fedamp import FedAMP
from fedwca.methods.fedavg import FedAvg
from fedwca.models import DomainModel
from fedwca.privacy.mechanism import Privacy, draw_from_seed, privatize
from tests.support.federation import same

NewModel = Callable[[], DomainModel]
TRAINING = Training(rounds=2, epochs=1, lr=0.01, batch_size=16)
PRIVACY = Privacy(clip=0.5, noise_multiplier=1.0)


def adapted(
    method: FedAvg | FedAMP, model: DomainModel, client: ClientData, *how: object, round: int = 0
) -> Adaptation:
    site = ClientRuntime(model, method, {client.name: client}, 0, *how)  # type: ignore[arg-type]
    source = clone(model.feature_weights())
    message = method.send(method.init(source), client)  # type: ignore[arg-type]
    return site.adapt(client.name, round, message, Record())


def test_a_simulation_can_be_repeated_and_a_site_cannot(
    new_model: NewModel, tiny_clients: list[ClientData]
) -> None:
    method, client = FedAvg(TRAINING, mean="plain"), tiny_clients[0]
    plain = adapted(method, new_model(), client).reply.models["local"]
    noise = draw_from_seed(0, 0, client.name)
    expected = noised_update(plain, new_model().feature_weights(), 0.5, 1.0, noise)
    for _ in range(2):
        seeded = adapted(method, new_model(), client, PRIVACY, True).reply.models["local"]
        assert same(seeded, expected)
    first, second = (
        adapted(method, new_model(), client, PRIVACY).reply.models["local"] for _ in range(2)
    )
    assert not any(
        torch.equal(first[n], second[n]) or torch.equal(first[n], seeded[n])
        for n in first
        if n.endswith("weight")
    )


@pytest.mark.parametrize("other", [(1, 0, "a"), (0, 1, "a"), (0, 0, "b")])
def test_noise_depends_on_seed_round_and_client(other: tuple[int, int, str]) -> None:
    assert draw_from_seed(0, 0, "a")(64) == draw_from_seed(0, 0, "a")(64)
    assert draw_from_seed(0, 0, "a")(64) != draw_from_seed(*other)(64)


def test_a_clients_memory_has_no_noise(new_model: NewModel, tiny_clients: list[ClientData]) -> None:
    method, client = FedAMP(TRAINING), tiny_clients[0]
    plain = adapted(method, new_model(), client)
    private = adapted(method, new_model(), client, PRIVACY, True)
    assert same(private.memory.models["own"], plain.memory.models["own"])
    assert not same(private.reply.models["local"], plain.reply.models["local"])
    assert private.health == {}


@pytest.mark.parametrize(
    "reply",
    [
        Record({"local": {}, "second": {}}),
        Record({"local": {}}, {"samples": torch.tensor(9), "alpha": torch.ones(1)}),
        Record({}, {"prototypes": torch.ones(3)}),
    ],
)
def test_a_reply_with_more_than_a_model_is_refused(reply: Record) -> None:
    with pytest.raises(UserError, match="does not protect"):
        privatize(Adaptation(reply, Record(), {}), Record(), PRIVACY, draw_from_seed(0, 0, "a"))
