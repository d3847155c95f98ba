"""The local loop: batches, losses, labels, and what BatchNorm sees."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedwca.core.losses import information_maximization
from fedwca.core.params import Weights, clone, is_batch_norm_statistic
from fedwca.data.images import ClientData, UnlabeledImages
from fedwca.methods.inference import evaluate, load, recalibrate, remember_statistics
from fedwca.methods.optimizer import make_sgd, set_rate
from fedwca.methods.record import Record
from fedwca.methods.training import (
    Objective,
    Step,
    Targets,
    Training,
    _batch,
    _batches,
    shot_loss,
    train,
)
from fedwca.models import DomainModel
from tests.support.drawn import rng

TRAINING = Training(rounds=2, epochs=2, lr=0.01, batch_size=16)
CPU = torch.device("cpu")


@pytest.fixture
def images(tiny_clients: list[ClientData]) -> UnlabeledImages:
    return tiny_clients[0].train


@pytest.fixture
def model(new_model: Callable[[], DomainModel]) -> DomainModel:
    return new_model()


def train_on(
    model: DomainModel,
    images: UnlabeledImages,
    labels: torch.Tensor | None = None,
    training: Training = TRAINING,
    **options: Any,
) -> tuple[Weights, dict[str, float]]:
    """Train for a round, on labels of one class unless others are given."""
    none = torch.zeros(len(images), dtype=torch.int64)
    targets = Targets.plain(none if labels is None else labels)
    return train(model, images, lambda: targets, training, rng(), round=0, **options)


def test_batches_cover_every_image_once_and_skip_a_single_one() -> None:
    rows = list(_batches(33, 16, rng()))
    assert [len(r) for r in rows] == [16, 16]
    rows = list(_batches(34, 16, rng()))
    assert [len(r) for r in rows] == [16, 16, 2]
    assert sorted(torch.cat(rows).tolist()) == list(range(34))
    assert list(_batches(1, 16, rng())) == []


def test_a_batch_holds_its_images_then_the_mixed_ones(images: UnlabeledImages) -> None:
    # rows 0..4: matched, matched, mixed with row 7, without partner (left out), mixed with row 9
    targets = Targets(
        labels=torch.tensor([0, 1, 2, 0, 1, 0, 0, 2, 0, 1]),
        partner=torch.tensor([-1, -1, 7, -1, 9, -1, -1, -1, -1, -1]),
        used=torch.tensor([True, True, True, False, True, True, True, True, True, True]),
        share=0.55,
    )
    rows = torch.tensor([4, 3, 2, 0])
    _, x, wanted, labels = _batch(images, targets, rows, rng(), CPU)
    own = images.batch(rows)
    assert torch.equal(x[:4], own)
    mixed = 0.45 * images.batch(torch.tensor([4, 2])) + 0.55 * images.batch(torch.tensor([9, 7]))
    torch.testing.assert_close(x[4:], mixed)
    assert wanted.tolist() == [3, 4, 5]  # row 0 as it is, then the two mixed images
    assert labels.tolist() == [0, 1, 2]


def test_without_mismatch_the_loss_is_shots(model: DomainModel, images: UnlabeledImages) -> None:
    labels = torch.arange(len(images)) % 3
    rows = torch.arange(10)
    _, x, wanted, target = _batch(images, Targets.plain(labels), rows, rng(), CPU)
    losses = shot_loss(Step(rows, x, *model(x), wanted, target), TRAINING)
    (_, im), (_, ce) = losses["im"], losses["ce"]
    _, logits = model(images.batch(rows))
    torch.testing.assert_close(im, information_maximization(logits))
    torch.testing.assert_close(ce, F.cross_entropy(logits, labels[:10]))


def test_without_any_usable_label_only_information_is_maximised(
    model: DomainModel, images: UnlabeledImages
) -> None:
    nothing = Targets.plain(torch.zeros(len(images), dtype=torch.int64))
    nothing = nothing._replace(used=torch.zeros(len(images), dtype=torch.bool))
    _, x, wanted, target = _batch(images, nothing, torch.arange(8), rng(), CPU)
    step = Step(torch.arange(8), x, *model(x), wanted, target)
    assert float(step.cross_entropy()) == 0
    _, losses = train(model, images, lambda: nothing, TRAINING, rng(), round=0)
    assert losses["loss_ce"] == 0
    assert losses["loss_im"] != 0


@pytest.mark.parametrize(("fixed", "times"), [(True, 1), (False, 2)])
def test_labels_are_made_once_a_round_or_once_an_epoch(
    model: DomainModel, images: UnlabeledImages, fixed: bool, times: int
) -> None:
    calls = []

    def label() -> Targets:
        calls.append(1)
        return Targets.plain(torch.zeros(len(images), dtype=torch.int64))

    train(model, images, label, TRAINING, rng(), round=0, fixed_labels=fixed)
    assert len(calls) == times


def test_one_step_is_sgd_by_hand(
    new_model: Callable[[], DomainModel], images: UnlabeledImages
) -> None:
    """One batch, no momentum, no dropout: w - lr·(∇L + decay·w)."""
    model, twin = new_model(), new_model()
    for module in (*model.modules(), *twin.modules()):
        if isinstance(module, torch.nn.Dropout | torch.nn.Dropout2d):
            module.p = 0.0
    labels = torch.arange(len(images)) % 3
    plain = {"momentum": 0, "nesterov": False, "weight_decay": 0.01, "ce_weight": 0.3}
    training = Training(rounds=1, epochs=1, lr=0.1, batch_size=1000, **plain)
    twin.train()
    _, logits = twin(images.batch(torch.arange(len(images))))
    (information_maximization(logits) + 0.3 * F.cross_entropy(logits, labels)).backward()
    weight = twin.backbone.conv1.weight
    expected = weight - 0.1 * (weight.grad + 0.01 * weight)
    trained, _ = train_on(model, images, labels, training)
    torch.testing.assert_close(trained["backbone.conv1.weight"], expected.detach())


def test_training_leaves_the_global_random_state_alone(
    model: DomainModel, images: UnlabeledImages
) -> None:
    before = torch.get_rng_state()
    train_on(model, images)
    assert torch.equal(before, torch.get_rng_state())


def test_another_objective_is_minimised_instead(
    model: DomainModel, images: UnlabeledImages
) -> None:
    start, name = clone(model.feature_weights()), "bottleneck.linear.weight"
    weight = model.bottleneck.linear.weight
    pull = Objective(lambda step: {"pull": (10.0, weight.square().sum())})
    pulled, losses = train_on(model, images, objective=pull)
    assert pulled[name].norm() < 0.5 * start[name].norm()
    assert list(losses) == ["loss_pull"]


def test_a_frozen_backbone_does_not_change_and_is_trainable_afterwards(
    model: DomainModel, images: UnlabeledImages
) -> None:
    start = clone(model.feature_weights())
    trained, _ = train_on(model, images, torch.arange(len(images)) % 3, frozen_backbone=True)
    for name, tensor in trained.items():
        assert torch.equal(tensor, start[name]) == name.startswith("backbone."), name
    assert all(p.requires_grad for p in model.backbone.parameters())


def test_an_objective_without_gradient_changes_no_weight(
    model: DomainModel, images: UnlabeledImages
) -> None:
    start = clone(model.feature_weights())
    trained, _ = train_on(model, images, objective=Objective(lambda step: {}))
    for name, tensor in trained.items():
        if not is_batch_norm_statistic(name):
            assert torch.equal(tensor, start[name]), name


def test_shots_decay_and_a_slower_backbone(model: DomainModel) -> None:
    training = replace(TRAINING, schedule="shot_decay", backbone_lr=0.1, lr=1.0)
    optimizer = make_sgd(model.backbone.parameters(), model.bottleneck.parameters(), training)
    set_rate(optimizer, training, 0.5)
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates == pytest.approx([0.1 * 6**-0.75, 6**-0.75])  # 1 + 10 · ½ = 6


def test_recalibration_gives_the_clients_own_statistics(
    model: DomainModel, images: UnlabeledImages
) -> None:
    norm = model.bottleneck.norm
    before = clone(model.state_dict())
    with torch.no_grad():
        inputs = model.bottleneck.linear(model.backbone(images.batch(torch.arange(len(images)))))
    recalibrate(model, images)
    torch.testing.assert_close(norm.running_mean, inputs.mean(dim=0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(norm.running_var, inputs.var(dim=0), atol=1e-4, rtol=1e-3)
    assert norm.momentum == 0.1
    assert not model.training
    changed = [n for n, t in model.state_dict().items() if not torch.equal(t, before[n])]
    assert all("running_" in n or "num_batches" in n for n in changed)


def test_a_single_image_keeps_the_received_statistics(
    model: DomainModel, images: UnlabeledImages
) -> None:
    before = clone(model.state_dict())
    recalibrate(model, UnlabeledImages(images.pixels, images.index[:1], images.transform))
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_local_statistics_replace_the_received_ones(
    model: DomainModel, images: UnlabeledImages
) -> None:
    received = clone(model.feature_weights())
    remembered = remember_statistics(received, "local").models["batch_norm"]
    own = {name: tensor + 1 for name, tensor in remembered.items()}
    kinds = {"running_mean", "running_var", "num_batches_tracked"}
    assert {name.rsplit(".", 1)[1] for name in own} == kinds
    memory = Record({"batch_norm": own})
    load(model, received, images, "local", memory)
    for name, tensor in model.feature_weights().items():
        assert torch.equal(tensor, own.get(name, received[name]))
    load(model, received, images, "blend", memory)
    assert all(torch.equal(t, received[n]) for n, t in model.feature_weights().items())


def test_evaluation_gives_one_row_an_image(model: DomainModel, images: UnlabeledImages) -> None:
    outputs = evaluate(model, images)
    assert outputs.features.shape == (len(images), 16)
    torch.testing.assert_close(outputs.probabilities.sum(dim=1), torch.ones(len(images)))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_fused_step_is_sgd_s(momentum: float) -> None:
    rates = replace(TRAINING, momentum=momentum, backbone_lr=0.1)

    def trained(fused: bool) -> torch.Tensor:
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten())
        backbone = backbone.to(memory_format=torch.channels_last)
        rest = nn.Linear(80, 4)
        optimizer = make_sgd(backbone.parameters(), rest.parameters(), rates)
        for group in optimizer.param_groups:
            assert group["fused"]
            group["fused"] = fused
        set_rate(optimizer, rates, 0.0)
        for _ in range(5):
            optimizer.zero_grad()
            rest(backbone(torch.ones(8, 3, 6, 6))).square().sum().backward()
            optimizer.step()
        parameters = [*backbone.parameters(), *rest.parameters()]
        return torch.cat([p.detach().flatten() for p in parameters])

    torch.testing.assert_close(trained(True), trained(False), rtol=1e-6, atol=1e-7)
