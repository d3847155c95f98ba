"""What [training] adds to every method's loop: consistency and a class prior."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fedwca.core.class_prior import estimate_class_prior
from fedwca.core.losses import consistency, information_maximization
from fedwca.core.params import clone
from fedwca.data.augment import strong_view, weak_view
from fedwca.data.images import ClientData
from fedwca.methods import METHODS, Training, build_method
from fedwca.methods.inference import evaluate, measure_agreement
from fedwca.methods.training import Losses, Objective, Step, Targets, add_consistency, train
from fedwca.models import DomainModel
from tests.support.federation import final_models, run, same

NewModel = Callable[[], DomainModel]
TRAINING = Training(rounds=2, epochs=1, lr=0.01, batch_size=16)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- formulas -----------------------------------------------------------------------------------


def test_consistency_by_hand() -> None:
    """Two of four images are confident; their losses are log 2 and log 4, divided by four."""
    plain = torch.tensor([[0.96, 0.04], [0.95, 0.05], [0.94, 0.06], [0.5, 0.5]])
    logits = torch.tensor([[0.0, 0.0], [0.0, math.log(3)], [9.0, 0.0], [0.0, 9.0]])
    expected = (math.log(2) + math.log(4)) / 4
    assert consistency(logits, plain, 0.95).item() == pytest.approx(expected, rel=1e-5)
    assert consistency(logits, plain, 1.0).item() == 0


def test_an_equal_class_prior_adds_log_m_to_im() -> None:
    logits = torch.randn(20, 4, generator=rng(), dtype=torch.float64)
    equal = torch.full((4,), 0.25, dtype=torch.float64)
    difference = information_maximization(logits, equal) - information_maximization(logits)
    assert difference.item() == pytest.approx(math.log(4))


def test_im_with_a_prior_is_least_at_confident_predictions_in_its_shares() -> None:
    prior = torch.tensor([0.75, 0.25], dtype=torch.float64)
    sure = 100 * torch.eye(2, dtype=torch.float64)
    fitting, balanced = sure[[0, 0, 0, 1]], sure[[0, 0, 1, 1]]
    assert information_maximization(fitting, prior).item() == pytest.approx(0, abs=1e-9)
    # KL((½, ½) ‖ (¾, ¼)) = ½ log(4/3)
    assert information_maximization(balanced, prior).item() == pytest.approx(math.log(4 / 3) / 2)


def test_the_class_prior_of_confident_outputs_is_their_shares() -> None:
    outputs = torch.eye(3)[[0, 0, 0, 1]]
    prior = estimate_class_prior(outputs, uniform=0.1)
    expected = [0.9 * 0.75 + 0.1 / 3, 0.9 * 0.25 + 0.1 / 3, 0.1 / 3]
    assert prior.tolist() == pytest.approx(expected)


def test_the_class_prior_undoes_the_blur_of_calibrated_outputs() -> None:
    """A test with 80 % hits on either class, and true shares (0.9, 0.1).

    0.74 = 0.9·0.8 + 0.1·0.2 of the outputs say class 0, whose mean is 0.644; EM finds 0.9.
    """
    outputs = torch.tensor([[0.8, 0.2]]).repeat(74, 1)
    outputs = torch.cat([outputs, torch.tensor([[0.2, 0.8]]).repeat(26, 1)])
    assert estimate_class_prior(outputs, uniform=0)[0].item() == pytest.approx(0.9, abs=1e-3)


# --- views --------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", [weak_view, strong_view])
@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
def test_views_follow_the_generator_and_keep_the_shape(
    view: Callable[[torch.Tensor, torch.Generator], torch.Tensor], size: tuple[int, int]
) -> None:
    x = torch.rand(8, 3, *size, generator=rng())
    first = view(x, rng(1))
    assert first.shape == x.shape
    assert bool(first.isfinite().all())
    assert torch.equal(first, view(x, rng(1)))
    assert not torch.equal(first, view(x, rng(2)))


def test_views_change_images_independently_of_the_others_in_the_batch() -> None:
    x = torch.rand(4, 3, 16, 16, generator=rng())
    other = torch.cat([x[:3], torch.zeros(1, 3, 16, 16)])
    assert torch.equal(strong_view(x, rng(1))[:3], strong_view(other, rng(1))[:3])


# --- the loop -----------------------------------------------------------------------------------


def test_the_strong_view_learns_the_plain_views_label(
    new_model: NewModel, tiny_clients: list[ClientData]
) -> None:
    images = tiny_clients[0].train
    steps: list[Step] = []
    training = replace(TRAINING, consistency=2.0, consistency_threshold=0.4, lr=0.0)

    def loss(step: Step) -> Losses:
        steps.append(step)
        return {}

    objective = add_consistency(Objective(loss), training, None, rng(3))
    labels = torch.zeros(len(images), dtype=torch.int64)
    _, health = train(
        new_model(),
        images,
        lambda: Targets.plain(labels),
        replace(training, consistency=0.0),
        rng(),
        round=0,
        objective=objective,
    )
    assert all(step.views == () for step in steps)  # the method's own losses see their own views
    assert health["loss_consistency"] > 0  # type: ignore[operator]


def test_fixed_labels_are_those_of_the_rounds_first_model(
    new_model: NewModel, tiny_clients: list[ClientData]
) -> None:
    images = tiny_clients[0].train
    fixed = evaluate(new_model(), images).probabilities
    training = replace(TRAINING, consistency=1.0, consistency_threshold=0.0)
    objective = add_consistency(Objective(lambda step: {}), training, fixed, rng())
    strong = torch.randn(2, fixed.shape[1], generator=rng())
    rows = torch.tensor([5, 3])
    step = Step(rows, torch.empty(0), torch.empty(0), strong, rows, rows, (strong,))
    weight, value = objective.loss(step)["consistency"]
    assert weight == 1.0
    expected = F.cross_entropy(strong, fixed[rows].argmax(dim=1))
    torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "source_only"])
@pytest.mark.parametrize(
    "option",
    [
        {"consistency": 1.0, "consistency_threshold": 0.0},
        {"consistency": 1.0, "consistency_threshold": 0.0, "consistency_labels": "fixed"},
        {"class_prior": "estimated"},
    ],
)
def test_every_method_has_the_loops_options(
    name: str,
    option: dict[str, object],
    new_model: NewModel,
    tiny_clients: list[ClientData],
) -> None:
    def models(extra: dict[str, object]) -> dict[str, dict[str, torch.Tensor]]:
        settings = {"rounds": 1, "epochs": 1, "lr": 0.01, "batch_size": 16, "consistency": 0.0}
        method = build_method({"name": name}, {**settings, **extra})
        return final_models(run(method, new_model(), tiny_clients), method, tiny_clients)

    plain, once, again = models({}), models(option), models(option)
    for client in plain:
        assert same(once[client], again[client])
        if "class_prior" not in option or name not in ("ladd", "fedpcl"):  # they have no L_IM
            assert not same(once[client], plain[client])


def test_agreement_is_one_for_a_constant_model_and_uses_the_same_views_each_time(
    new_model: NewModel, tiny_clients: list[ClientData]
) -> None:
    images, model = tiny_clients[0].train, new_model()
    outputs = evaluate(model, images)
    first = measure_agreement(model, images, outputs)
    assert 0 < first < 1
    assert first == measure_agreement(model, images, outputs)
    before = clone(model.feature_weights())
    measure_agreement(model, images, outputs)
    assert same(before, clone(model.feature_weights()))
    with torch.no_grad():
        for parameter in model.bottleneck.parameters():
            parameter.zero_()
    assert measure_agreement(model, images, evaluate(model, images)) == 1


def test_a_client_alone_in_its_cluster_and_one_that_comes_later(
    new_model: NewModel, tiny_clients: list[ClientData]
) -> None:
    method = build_method(
        {"name": "fedwca", "clustering": "each", "temperature_a": 0.1},
        {"rounds": 4, "epochs": 1, "lr": 0.01, "batch_size": 16},
    )
    late = tiny_clients[1]
    log = run(method, new_model(), tiny_clients, lost={0: late.name})
    server = log.lines[-1]["server"]
    found = [server[f"cluster_of/{c.name}"] for c in tiny_clients]
    assert sorted(found) == [0, 1, 2, 3]
    assert server[f"cluster_of/{late.name}"] == 3
    for client in tiny_clients:
        weights = server[f"v/{client.name}"]
        assert len(weights) == 4
        assert sum(weights) == pytest.approx(1)
    soft = [len(r.values["alpha"]) for r in (a.reply for a in log.replies[-1].values())]
    assert soft == [4, 4, 4, 4]
