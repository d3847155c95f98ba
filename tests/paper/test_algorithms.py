"""Algorithms 1 and 2, step by step: which model, which images and which round a number is of."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedwca.core.losses import information_maximization
from fedwca.core.params import Weights, clone, mix
from fedwca.core.pseudo_label import prototype_labels
from fedwca.core.snd import soft_neighborhood_density
from fedwca.core.weights import benefit, soft_mixture
from fedwca.data.images import ClientData
from fedwca.methods import Client, Record, Training
from fedwca.methods.fedwca import FedWCA
from fedwca.methods.inference import Outputs, evaluate, load
from fedwca.methods.optimizer import make_sgd
from fedwca.methods.training import Step, shot_loss
from fedwca.models import DomainModel

NewModel = Callable[[], DomainModel]
TRAINING = Training(rounds=4, epochs=1, lr=0.01, batch_size=16)


def moved(model: DomainModel, seed: int) -> dict[str, torch.Tensor]:
    """Return the weights of a model that has gone astray in its own direction."""
    rng = torch.Generator().manual_seed(seed)
    return {
        name: t + 0.05 * torch.randn(t.shape, generator=rng) if name.endswith("weight") else t
        for name, t in clone(model.feature_weights()).items()
    }


def two_clusters(model: DomainModel) -> Record:
    """Return a message with f_{c_k} and two other soft models."""
    models = {"cluster": moved(model, 0), "soft/0": moved(model, 1), "soft/1": moved(model, 2)}
    return Record(models, {"round": torch.tensor(1)})


def outputs_of(model: DomainModel, weights: Weights, client: ClientData) -> Outputs:
    load(model, weights, client.train, "blend")
    return evaluate(model, client.train)


def test_soft_models_use_the_alpha_and_beta_of_the_same_round(new_model: NewModel) -> None:
    method = FedWCA(TRAINING)
    weights = clone(new_model().feature_weights())
    clients = [Client("a", "x"), Client("b", "y")]
    state = Record(
        {"source": weights, "cluster/0": weights, "cluster/1": weights},
        {
            "round": torch.tensor(2),
            "cluster_of/a": torch.tensor(0),
            "cluster_of/b": torch.tensor(1),
            "S": torch.eye(2).double(),
            **{f"alpha/{c.name}": torch.tensor([0.5, 0.5]).double() for c in clients},
            **{f"beta/{c.name}": torch.tensor([0.5, 0.5]).double() for c in clients},
        },
    )
    alphas = torch.tensor([[0.9, 0.1], [0.3, 0.7]]).double()
    betas = torch.tensor([[0.2, 0.8], [0.6, 0.4]]).double()
    replies = {
        client: Record({"local": weights}, {"alpha": alphas[k], "beta": betas[k]})
        for k, client in enumerate(clients)
    }
    after = method.aggregate(state, replies)
    A, B = benefit(alphas, betas, torch.tensor([0, 1]))
    torch.testing.assert_close(after.values["S"], soft_mixture(A, B))


def test_the_second_labels_and_the_first_density_are_of_the_cluster_model(
    new_model: NewModel, tiny_clients: list[ClientData], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, model = tiny_clients[0], new_model()
    message = two_clusters(model)
    own = outputs_of(model, message.models["cluster"], client)
    seen = []
    original = FedWCA._label

    def spy(self: FedWCA, init: Outputs, own_labels: object, *rest: object) -> object:
        seen.append((init, own_labels))
        return original(self, init, own_labels, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(FedWCA, "_label", spy)
    rng = torch.Generator().manual_seed(0)
    adapted = FedWCA(TRAINING).adapt(model, client.train, message, Record(), rng)
    ((init, labels),) = seen
    expected = prototype_labels(own.features, own.probabilities)
    assert torch.equal(labels.labels, expected.labels)  # type: ignore[attr-defined]
    torch.testing.assert_close(labels.similarity, expected.similarity)  # type: ignore[attr-defined]

    alpha, beta = adapted.reply.values["alpha"], adapted.reply.values["beta"]
    f_bar = mix([message.models["soft/0"], message.models["soft/1"]], alpha)
    f_init = mix([message.models["cluster"], f_bar], beta)
    model = new_model()
    torch.testing.assert_close(init.logits, outputs_of(model, f_init, client).logits)
    assert not torch.allclose(init.logits, own.logits)
    densities = [
        soft_neighborhood_density(outputs.probabilities)
        for outputs in (own, outputs_of(model, f_bar, client))
    ]
    assert adapted.health["beta_scores"] == pytest.approx(densities)


def test_a_client_is_evaluated_with_its_cluster_model(new_model: NewModel) -> None:
    model = new_model()
    models = {
        name.replace("cluster", "cluster/0"): m for name, m in two_clusters(model).models.items()
    }
    state = Record(models, {"round": torch.tensor(2), "cluster_of/a": torch.tensor(0)})
    assert FedWCA(TRAINING).offered(state, Client("a", "x")) is models["cluster/0"]


def test_information_is_maximised_over_the_images_and_not_the_mixed_ones() -> None:
    logits = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    rows, wanted = torch.arange(4), torch.tensor([0, 4, 5, 6])
    step = Step(rows, torch.empty(0), torch.empty(0), logits, wanted, torch.tensor([0, 1, 2, 0]))
    (_, im), (_, ce) = shot_loss(step, TRAINING)["im"], shot_loss(step, TRAINING)["ce"]
    torch.testing.assert_close(im, information_maximization(logits[:4]))
    torch.testing.assert_close(ce, F.cross_entropy(logits[wanted], step.target))


def test_the_optimizer_takes_nesterov_s_step() -> None:
    """Gradient 1, momentum 0.9: the first step is lr·1.9, the second lr·(1 + 0.9·1.9)."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer = make_sgd([], [weight], Training(lr=0.1, weight_decay=0.0))
    for expected in (-0.19, -0.19 - 0.271):
        weight.grad = torch.ones(1)
        optimizer.step()
        assert weight.item() == pytest.approx(expected)
