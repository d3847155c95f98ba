"""Losses whose values and gradients are known without running them."""

import math

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from fedwca.core import distillation, information_maximization, prototype_contrast, proximal
from tests.support.drawn import exact, for_all, normal, seeds


def logits(rows: int, columns: int, seed: int, scale: float = 3.0) -> Tensor:
    return scale * normal(rows, columns, seed=seed, dtype=torch.float64)


def gradient(loss: Tensor, of: Tensor) -> Tensor:
    (result,) = torch.autograd.grad(loss, of)
    return result


# --- information maximisation ---------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 7, 10, 65])
def test_im_of_perfect_uniform_and_collapsed_predictions(classes: int) -> None:
    sure = 1000 * torch.eye(classes, dtype=torch.float64)
    assert information_maximization(sure).item() == pytest.approx(-math.log(classes), abs=1e-12)
    assert information_maximization(0 * sure).item() == pytest.approx(0, abs=1e-12)
    assert information_maximization(sure[:1].repeat(9, 1)).item() == pytest.approx(0, abs=1e-12)


def test_im_by_hand() -> None:
    # p = (.75, .25) and (.25, .75): each has entropy 2 log 2 - .75 log 3, their mean log 2.
    three = math.log(3)
    value = information_maximization(exact([three, 0], [0, three])).item()
    assert value == pytest.approx(math.log(2) - 0.75 * math.log(3), abs=1e-15)


@for_all(st.integers(1, 20), st.integers(1, 8), seeds)
def test_im_lies_between_minus_log_m_and_zero(n: int, m: int, seed: int) -> None:
    value = information_maximization(logits(n, m, seed)).item()
    assert -math.log(m) - 1e-12 <= value <= 1e-12


@for_all(st.integers(2, 6), st.integers(1, 5), seeds)
def test_im_of_small_batches_is_biased_upwards(batches: int, size: int, seed: int) -> None:
    # H(mean) is concave: the whole set's is at least the mean of the batches'.
    z = logits(batches * size, 4, seed)
    parts = [information_maximization(part).item() for part in z.split(size)]
    assert sum(parts) / batches >= information_maximization(z).item() - 1e-12


def test_im_of_a_batch_of_one_is_zero_with_zero_gradient() -> None:
    z = logits(1, 10, seed=0).requires_grad_()
    loss = information_maximization(z)
    assert loss.item() == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(gradient(loss, z), torch.zeros_like(z), atol=1e-12, rtol=0)


def test_im_has_a_finite_gradient_where_a_class_has_no_mass() -> None:
    # softmax gives exact zeros in float32 here; log 0 would poison the gradient
    z = torch.tensor([[5.0, 0.0, -1e4], [0.0, 5.0, -1e4]], requires_grad=True)
    assert (z.softmax(dim=1)[:, 2] == 0).all()
    loss = information_maximization(z)
    grad = gradient(loss, z)
    assert loss.isfinite()
    assert grad.isfinite().all()
    assert (grad[:, 2] == 0).all()
    assert (grad[:, :2] != 0).all()


def test_im_has_the_gradient_of_its_definition() -> None:
    z = logits(3, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(information_maximization, (z,))
    p = z.softmax(dim=1)
    # written with probabilities: mean H(p_i) - H(mean p_i)
    definition = -(p * p.log()).sum(dim=1).mean() + (p.mean(dim=0) * p.mean(dim=0).log()).sum()
    torch.testing.assert_close(information_maximization(z), definition)


# --- proximal term --------------------------------------------------------------------------


def test_proximal_value_and_gradient_by_hand() -> None:
    w = [exact(3.0, 0.0).requires_grad_(), exact([1.0]).requires_grad_()]
    anchor = [exact(1.0, 1.0), exact([4.0])]
    loss = proximal(w, anchor)
    assert loss.item() == 7.0  # ½·(2² + 1² + 3²)
    loss.backward()
    assert w[0].grad.tolist() == [2.0, -1.0]  # w - w'
    assert w[1].grad.tolist() == [[-3.0]]


def test_proximal_at_the_anchor_is_zero_and_pulls_nowhere() -> None:
    w = exact(1.0, 2.0).requires_grad_()
    loss = proximal([w], [w.detach().clone()])
    assert loss.item() == 0
    assert gradient(loss, w).tolist() == [0, 0]


def test_proximal_needs_an_anchor_for_every_parameter() -> None:
    with pytest.raises(ValueError, match="shorter"):
        proximal([exact(1.0), exact(2.0)], [exact(1.0)])


# --- contrast with prototypes ---------------------------------------------------------------

BOTH = torch.tensor([True, True])


def test_prototype_contrast_by_hand() -> None:
    # (3, 4) has cosines .6 and .8 with the axes; at τ = .5 these are logits 1.2 and 1.6.
    prototypes = exact([2, 0], [0, 5])
    loss = prototype_contrast(exact([3, 4]), torch.tensor([0]), prototypes, BOTH, 0.5)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(0.4)), abs=1e-12)
    # and the mean over samples: label 1 costs log(1 + e^-.4)
    twice = prototype_contrast(exact([3, 4], [6, 8]), torch.tensor([0, 1]), prototypes, BOTH, 0.5)
    mean = (math.log(1 + math.exp(0.4)) + math.log(1 + math.exp(-0.4))) / 2
    assert twice.item() == pytest.approx(mean, abs=1e-12)


def test_an_absent_class_takes_no_part_in_the_contrast() -> None:
    features = exact([3, 4]).requires_grad_()
    prototypes = exact([2, 0], [0, 0], [0, 5])
    present = torch.tensor([True, False, True])
    loss = prototype_contrast(features, torch.tensor([0]), prototypes, present, 0.5)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(0.4)), abs=1e-12)
    # If it did, its cosine of 0 would add e^(0 - 1.2).
    everyone = torch.tensor([True, True, True])
    more = prototype_contrast(features, torch.tensor([0]), prototypes, everyone, 0.5)
    assert more.item() == pytest.approx(math.log(1 + math.exp(0.4) + math.exp(-1.2)), abs=1e-12)
    assert gradient(loss, features).isfinite().all()


def test_with_one_class_present_there_is_nothing_to_contrast() -> None:
    present = torch.tensor([False, True])
    loss = prototype_contrast(
        logits(4, 2, 0), torch.ones(4, dtype=int), torch.eye(2).double(), present, 0.07
    )
    assert loss.item() == 0


def test_at_a_high_temperature_all_classes_are_equal() -> None:
    loss = prototype_contrast(
        exact([1, 0]), torch.tensor([0]), torch.eye(2).double(), BOTH, temperature=1e12
    )
    assert loss.item() == pytest.approx(math.log(2), abs=1e-9)


@for_all(seeds, st.floats(0.1, 10), st.floats(0.1, 10))
def test_prototype_contrast_ignores_lengths(seed: int, one: float, two: float) -> None:
    features, prototypes = logits(5, 3, seed), logits(2, 3, seed + 1)
    labels = torch.tensor([0, 1, 0, 1, 1])
    plain = prototype_contrast(features, labels, prototypes, BOTH, 0.1)
    scaled = prototype_contrast(one * features, labels, two * prototypes, BOTH, 0.1)
    torch.testing.assert_close(scaled, plain)


# --- distillation ---------------------------------------------------------------------------


def test_distillation_by_hand() -> None:
    teacher = exact([0, 2 * math.log(3)])  # halved: odds of 1 to 3, so the target is (.25, .75)
    uniform = distillation(exact([5, 5]), teacher)
    assert uniform.item() == pytest.approx(math.log(2) / 2, abs=1e-12)  # a mean over two classes
    agreeing = distillation(exact([0, math.log(3)]), teacher)
    entropy = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert agreeing.item() == pytest.approx(entropy / 2, abs=1e-12)
    # sharpness 0 knows nothing: mean of -log .25 and -log .75
    flat = distillation(exact([0, math.log(3)]), teacher, sharpness=0.0)
    assert flat.item() == pytest.approx(-(math.log(0.25) + math.log(0.75)) / 4, abs=1e-12)


def test_distillation_is_a_mean_over_samples_and_classes() -> None:
    teacher = exact([0, 2 * math.log(3)], [0, 0])
    student = exact([0, 0], [0, math.log(3)])
    # log 2 for the first, and -(log .25 + log .75)/2 for the second
    expected = (math.log(2) - (math.log(0.25) + math.log(0.75)) / 2) / 2 / 2
    assert distillation(student, teacher).item() == pytest.approx(expected, abs=1e-12)


def test_distillation_pulls_the_student_to_the_target() -> None:
    student = exact([0, 0]).requires_grad_()
    loss = distillation(student, exact([0, 2 * math.log(3)]))
    # (softmax(student) - target) / M = (.5 - .25, .5 - .75) / 2
    torch.testing.assert_close(gradient(loss, student), exact([0.125, -0.125]))


@for_all(seeds)
def test_no_student_beats_the_softened_teacher(seed: int) -> None:
    teacher, student = logits(4, 5, seed), logits(4, 5, seed + 1)
    best = distillation(0.5 * teacher, teacher)
    assert distillation(student, teacher) >= best - 1e-12
