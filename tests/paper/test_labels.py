"""Pseudo-labels: prototypes, the choice between two models, and partners for mixup."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from fedwca.core import (
    PrototypeLabels,
    confidence_labels,
    mixup_partners,
    prototype_labels,
    reconcile,
)
from fedwca.core.pseudo_label import LabelRule
from tests.support.drawn import for_all, rng, seeds

spaces = st.sampled_from(["unit", "raw"])
both_spaces = pytest.mark.parametrize("space", ["unit", "raw"])


def at(*degrees: float) -> Tensor:
    angle = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def blobs(seed: int, per_class: int = 8, classes: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Features around orthogonal axes, shuffled; right but unsure predictions; the truth."""
    generator = rng(seed)
    truth = torch.arange(classes).repeat(per_class)
    truth = truth[torch.randperm(len(truth), generator=generator)]
    noise = torch.randn(len(truth), 6, generator=generator)
    features = 5 * torch.eye(6)[truth] + 0.3 * noise
    probabilities = (2 * torch.eye(classes)[truth]).softmax(dim=1)
    return features, probabilities, truth


def scattered(seed: int, samples: int = 20, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Features and predictions that have nothing to do with each other."""
    generator = rng(seed)
    features = torch.randn(samples, 5, generator=generator)
    return features, torch.randn(samples, classes, generator=generator).softmax(dim=1)


# --- prototypes -----------------------------------------------------------------------------


def test_prototype_labels_by_hand() -> None:
    features = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    probabilities = torch.tensor([[1.0, 0.0], [0.25, 0.75], [0.0, 1.0]])
    result = prototype_labels(features, probabilities, "raw")
    # Labels 0, 1, 1; prototypes (1, 0) and ((.6, .8) + (0, 1))/2 = (.3, .9), of length √.9
    assert result.labels.tolist() == [0, 1, 1]
    prototypes = torch.tensor([[1.0, 0.0], [0.3, 0.9]], dtype=torch.float64)
    torch.testing.assert_close(result.prototypes, prototypes, atol=1e-7, rtol=0)
    # (.6·.3 + .8·.9)/√.9 = .9/√.9 = √.9 for both samples of class 1
    expected = torch.tensor([1, math.sqrt(0.9), math.sqrt(0.9)], dtype=torch.float64)
    torch.testing.assert_close(result.similarity, expected, atol=1e-7, rtol=0)
    assert result.separation == pytest.approx(0.3 / math.sqrt(0.9), abs=1e-7)


def test_unit_space_appends_a_one_and_averages_unit_vectors() -> None:
    features = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    result = prototype_labels(features, torch.eye(2))
    # (0, 0, 1) has length 1; (3, 4, 1) has length √26
    root = math.sqrt(26)
    expected = torch.tensor([[0, 0, 1], [3 / root, 4 / root, 1 / root]], dtype=torch.float64)
    torch.testing.assert_close(result.prototypes, expected)
    torch.testing.assert_close(result.similarity, torch.ones(2, dtype=torch.float64))
    assert result.separation == pytest.approx(1 / root, abs=1e-12)


def test_labels_are_refined_once_with_one_hot_labels() -> None:
    features = at(*[0] * 5, *[90] * 5, 52)
    probabilities = torch.tensor([[1, 0]] * 5 + [[0.4, 0.6]] * 5 + [[0.6, 0.4]])
    result = prototype_labels(features, probabilities, "raw")
    # First pass: prototypes 5·(1,0) + 2·(0,1) + .6·(52°) at 24.7° and 3·(0,1) + .4·(52°) at 85.8°;
    # the middle is 55.2°, so 52° takes label 0. Second pass: 5·(1,0) + (52°) at 8.0° and 90°; the
    # middle is 49.0°, so it takes label 1.
    assert result.labels.tolist() == [0] * 5 + [1] * 6
    torch.testing.assert_close(result.prototypes[0], (5 * at(0) + at(52))[0] / 6)
    torch.testing.assert_close(result.prototypes[1], at(90)[0])


def test_a_sample_follows_the_nearest_prototype_and_not_its_own_confidence() -> None:
    features = at(0, 0, 2, 90, 90)
    probabilities = torch.tensor([[1, 0], [1, 0], [0.45, 0.55], [0, 1], [0, 1]])
    assert confidence_labels(probabilities).tolist() == [0, 0, 1, 1, 1]
    assert prototype_labels(features, probabilities, "raw").labels.tolist() == [0, 0, 0, 1, 1]


@for_all(seeds, spaces)
def test_separated_blobs_are_labelled_as_such(seed: int, space: str) -> None:
    features, probabilities, truth = blobs(seed)
    # A third of the predictions says the next class instead.
    probabilities[::3] = probabilities[::3].roll(1, dims=1)
    assert torch.equal(prototype_labels(features, probabilities, space).labels, truth)


@for_all(seeds, spaces)
def test_the_order_of_samples_does_not_matter(seed: int, space: str) -> None:
    features, probabilities = scattered(seed)
    order = torch.randperm(len(features), generator=rng(seed))
    straight = prototype_labels(features, probabilities, space)
    shuffled = prototype_labels(features[order], probabilities[order], space)
    assert torch.equal(shuffled.labels, straight.labels[order])
    torch.testing.assert_close(shuffled.similarity, straight.similarity[order])
    torch.testing.assert_close(shuffled.prototypes, straight.prototypes)
    assert shuffled.separation == pytest.approx(straight.separation, abs=1e-12)


@for_all(seeds, spaces, st.permutations(range(4)))
def test_renaming_classes_renames_labels(seed: int, space: str, names: list[int]) -> None:
    features, probabilities = scattered(seed)
    straight = prototype_labels(features, probabilities, space)
    renamed = prototype_labels(features, probabilities[:, names], space)
    # New class j is old class names[j].
    assert torch.equal(torch.tensor(names)[renamed.labels], straight.labels)
    torch.testing.assert_close(renamed.prototypes, straight.prototypes[names])
    assert renamed.separation == pytest.approx(straight.separation, abs=1e-12)


@for_all(seeds, st.floats(0.01, 100))
def test_scaling_raw_features_changes_no_cosine(seed: int, scale: float) -> None:
    features, probabilities = scattered(seed)
    features = features.double()
    straight = prototype_labels(features, probabilities, "raw")
    scaled = prototype_labels(scale * features, probabilities, "raw")
    assert torch.equal(scaled.labels, straight.labels)
    torch.testing.assert_close(scaled.similarity, straight.similarity)
    assert scaled.separation == pytest.approx(straight.separation, abs=1e-9)


def test_scaling_unit_features_matters_only_through_the_appended_one() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0]])

    def separation(scale: float) -> float:
        return prototype_labels(scale * features, torch.eye(2)).separation

    # (s, 0, 1)·(0, s, 1)/(s² + 1)
    assert separation(1) == pytest.approx(1 / 2)
    assert separation(16) == pytest.approx(1 / 257)  # features have length ≈ √256
    assert separation(1e6) == pytest.approx(0, abs=1e-11)


@both_spaces
def test_separation_is_the_mean_over_ordered_pairs_of_present_classes(space: str) -> None:
    # Three prototypes 60° apart in a fan: cosines .5, .5, -.5; classes 1 and 4 are absent.
    features = 1e9 * at(0, 60, 120)  # so long that the appended 1 has no weight
    probabilities = torch.eye(5)[[0, 2, 3]]
    result = prototype_labels(features, probabilities, space)
    assert result.labels.tolist() == [0, 2, 3]
    assert result.separation == pytest.approx((0.5 + 0.5 - 0.5) / 3, abs=1e-8)


def test_centred_prototypes_have_negative_separation() -> None:
    # M directions that sum to zero have mean cosine -1/(M - 1).
    result = prototype_labels(at(0, 120, 240), torch.eye(3), "raw")
    assert result.separation == pytest.approx(-1 / 2, abs=1e-12)


# --- classes that are not there -------------------------------------------------------------


@both_spaces
def test_a_class_nobody_predicts_never_becomes_a_label(space: str) -> None:
    features, probabilities, truth = blobs(seed=0)
    # Class 4 has 30 % of everybody's mass, more than any wrong class, and nobody's vote.
    probabilities = torch.cat([0.7 * probabilities, torch.full((len(truth), 1), 0.3)], dim=1)
    assert (probabilities.argmax(dim=1) != 4).all()
    result = prototype_labels(features, probabilities, space)
    assert torch.equal(result.labels, truth)
    assert (result.prototypes[4] == 0).all()


@both_spaces
def test_a_class_without_any_mass_poisons_nobody(space: str) -> None:
    # In SHOT's digit code an empty class has a zero centroid, and NaN makes it everybody's label.
    features, probabilities, truth = blobs(seed=1)
    probabilities = torch.cat([torch.zeros(len(truth), 1), probabilities], dim=1)
    result = prototype_labels(features, probabilities, space)
    assert torch.equal(result.labels, truth + 1)


def test_a_class_that_loses_all_its_samples_is_gone_in_the_second_pass() -> None:
    # Sample 2 votes for class 1, but lies in class 0; class 1's prototype, made of everybody's
    # remaining mass, lies with the others at 90°, and they prefer class 2 all the same.
    features = at(0, 0, 0, 90, 90)
    probabilities = torch.tensor(
        [[0.9, 0.1, 0.0]] * 2 + [[0.4, 0.6, 0.0]] + [[0.0, 0.45, 0.55]] * 2
    )
    # First pass: class 1 at .8·(0°) + .9·(90°), 48°; class 0 at 0°; class 2 at 90°.
    result = prototype_labels(features, probabilities, "raw")
    assert result.labels.tolist() == [0, 0, 0, 2, 2]
    assert (result.prototypes[1] == 0).all()
    assert result.separation == pytest.approx(0, abs=1e-12)  # 0° and 90° are left


@both_spaces
def test_a_single_present_class_takes_everybody(space: str) -> None:
    features, _ = scattered(seed=2)
    result = prototype_labels(features, torch.tensor([[0.2, 0.7, 0.1]]).repeat(20, 1), space)
    assert result.labels.tolist() == [1] * 20
    assert result.separation == 0.0
    assert result.similarity.isfinite().all()


@both_spaces
def test_one_class_alone_and_one_sample_alone_work(space: str) -> None:
    result = prototype_labels(torch.tensor([[3.0, 4.0]]), torch.ones(1, 1), space)
    assert result.labels.tolist() == [0]
    assert result.similarity.item() == pytest.approx(1)
    assert result.separation == 0.0


@for_all(seeds, spaces, st.integers(1, 12), st.integers(1, 8))
def test_nothing_is_ever_undefined(seed: int, space: str, samples: int, classes: int) -> None:
    features, probabilities = scattered(seed, samples, classes)
    features[::4] = 0  # dead features
    probabilities[:, ::3] *= 1e-30  # classes with next to no mass
    result = prototype_labels(features, probabilities, space)
    assert result.similarity.isfinite().all()
    assert (result.similarity.abs() <= 1 + 1e-12).all()
    assert result.prototypes.isfinite().all()
    assert set(result.labels.tolist()) <= set(range(classes))


# --- two models -----------------------------------------------------------------------------


def chosen(d: float, p: float, e: float, q: float, rule: LabelRule) -> str:
    """Who wins where the initial model says 0 and the cluster model says 1."""

    def says(label: int, similarity: float, separation: float) -> PrototypeLabels:
        similarities = torch.tensor([similarity], dtype=torch.float64)
        return PrototypeLabels(torch.tensor([label]), similarities, torch.eye(2), separation)

    labels, matched = reconcile(says(0, d, p), says(1, e, q), rule)
    assert matched.tolist() == [False]
    return ["init", "cluster"][int(labels)]


@pytest.mark.parametrize(
    ("d", "p", "e", "q", "rule", "winner"),
    [
        (0.9, 0.3, 0.5, 0.3, "ratio", "init"),  # 3 ≥ 1.67
        (0.5, 0.3, 0.9, 0.3, "ratio", "cluster"),
        (0.9, 0.9, 0.5, 0.3, "ratio", "cluster"),  # 1 < 1.67
        # two negative normalisers turn the comparison round: -11.25 < -6.25
        (0.9, -0.08, 0.5, -0.08, "ratio", "cluster"),
        (0.9, -0.08, 0.5, -0.08, "distance", "init"),  # .1/1.08 ≤ .5/1.08
        # opposite signs: 10 ≥ -12.9, the initial model always wins
        (0.5, 0.05, 0.9, -0.07, "ratio", "init"),
        (0.5, 0.05, 0.9, -0.07, "raw", "cluster"),
        (0.5, 0.05, 0.9, -0.07, "distance", "cluster"),  # .526 > .093
        # the guard: p or q near zero compares d with e
        (0.9, 0.0, 0.5, 0.2, "ratio", "init"),
        (0.5, 0.0, 0.9, 0.2, "ratio", "cluster"),
        (0.9, 0.2, 0.5, 1e-7, "ratio", "init"),  # without it 4.5 < 5e6
        (0.5, -1e-7, 0.9, -0.2, "ratio", "cluster"),
        (0.5, 1e-6, 0.9, 0.2, "ratio", "init"),  # 1e-6 itself is divided by: 5e5 ≥ 4.5
        (0.9, 0.5, 0.95, 0.95, "distance", "init"),  # .1/.5 = .2 ≤ .05/.05 = 1
        (0.9, 0.5, 0.95, 0.95, "raw", "cluster"),
        (0.9, 1.0, 0.5, 0.2, "distance", "cluster"),  # .1/0 is infinite
        (0.5, 0.2, 0.9, 1.0, "distance", "init"),  # and so is .1/0 on the other side
        (0.5, 0.2, 0.9, 0.2, "init", "init"),
        (0.9, 0.2, 0.5, 0.2, "cluster", "cluster"),
        # equality keeps the initial model's label
        (0.5, 0.25, 0.5, 0.25, "ratio", "init"),
        (0.5, 0.25, 0.5, 0.25, "distance", "init"),
        (0.5, 0.25, 0.5, 0.25, "raw", "init"),
    ],
)
def test_the_table_of_the_label_rule(
    d: float, p: float, e: float, q: float, rule: LabelRule, winner: str
) -> None:
    assert chosen(d, p, e, q, rule) == winner


def test_the_literal_ratio_is_the_default() -> None:
    init = PrototypeLabels(torch.tensor([0]), torch.tensor([0.9]), torch.eye(2), -0.08)
    cluster = PrototypeLabels(torch.tensor([1]), torch.tensor([0.5]), torch.eye(2), -0.08)
    assert reconcile(init, cluster)[0].tolist() == [1]  # where distance and raw say 0


hundredths = st.integers(-99, 99).map(lambda n: n / 100)


@for_all(hundredths, hundredths, hundredths, examples=30)
def test_rules_are_raw_where_separations_are_equal(d: float, e: float, p: float) -> None:
    assert chosen(d, p, e, p, "distance") == chosen(d, p, e, p, "raw")
    if p > 0:
        assert chosen(d, p, e, p, "ratio") == chosen(d, p, e, p, "raw")


@pytest.mark.parametrize("rule", get_args(LabelRule))
def test_equal_models_match_everywhere_and_the_rule_is_irrelevant(rule: LabelRule) -> None:
    opinion = prototype_labels(*scattered(seed=3))
    labels, matched = reconcile(opinion, opinion, rule)
    assert torch.equal(labels, opinion.labels)
    assert matched.all()


@pytest.mark.parametrize("rule", get_args(LabelRule))
def test_a_chosen_label_is_one_of_the_two_and_agreement_stands(rule: LabelRule) -> None:
    init = prototype_labels(*scattered(seed=4))
    cluster = prototype_labels(*scattered(seed=5))
    labels, matched = reconcile(init, cluster, rule)
    assert ((labels == init.labels) | (labels == cluster.labels)).all()
    assert torch.equal(matched, init.labels == cluster.labels)
    assert 0 < matched.sum() < len(matched)  # both cases occur


# --- partners for mixup ---------------------------------------------------------------------


def test_a_partner_is_matched_and_of_the_same_label() -> None:
    labels = torch.tensor([0, 0, 1, 1, 2, 0])
    matched = torch.tensor([True, False, True, False, False, False])
    partners = mixup_partners(labels, matched, rng(0))
    # class 0 has sample 0 to offer, class 1 sample 2, class 2 nobody
    assert partners.tolist() == [-1, 0, -1, 2, -1, 0]


@for_all(seeds, st.floats(0, 1))
def test_every_sample_is_matched_mixed_or_skipped(seed: int, share: float) -> None:
    generator = rng(seed)
    labels = torch.randint(4, (30,), generator=generator)
    matched = torch.rand(30, generator=generator) < share
    partners = mixup_partners(labels, matched, generator)
    assert (partners[matched] == -1).all()
    available = set(labels[matched].tolist())
    for index in torch.nonzero(~matched).flatten().tolist():
        partner = int(partners[index])
        if int(labels[index]) in available:
            assert matched[partner]
            assert labels[partner] == labels[index]
            assert partner >= 0
        else:
            assert partner == -1


def test_partners_are_drawn_from_all_candidates_with_replacement() -> None:
    labels, matched = torch.zeros(203, dtype=torch.int64), torch.arange(203) < 3
    partners = mixup_partners(labels, matched, rng(0))
    # 200 draws from 3: that one of them is missed has probability 3·(2/3)^200 ≈ 1e-35
    assert set(partners[3:].tolist()) == {0, 1, 2}


def test_partners_follow_the_seed() -> None:
    labels, matched = torch.zeros(100, dtype=torch.int64), torch.arange(100) < 50

    def draw(seed: int) -> list[int]:
        return mixup_partners(labels, matched, rng(seed)).tolist()

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


@pytest.mark.parametrize("matched", [[True, True, True], [True, False, True]])
def test_no_random_number_is_used_where_nothing_can_be_mixed(matched: list[bool]) -> None:
    # All match; or the only mismatched sample has a label of its own.
    generator = rng(0)
    before = generator.get_state()
    partners = mixup_partners(torch.tensor([0, 1, 2]), torch.tensor(matched), generator)
    assert partners.tolist() == [-1, -1, -1]
    assert torch.equal(generator.get_state(), before)


def test_a_zero_prototype_does_not_count_as_its_own_neighbour() -> None:
    # class 0 averages (1,0) and (-1,0) to zero: its cosine with class 1 is 0, so is the mean
    features = torch.tensor([[1.0, 0], [-1, 0], [0, 1]])
    probabilities = torch.tensor([[1.0, 0], [1, 0], [0, 1]])
    assert prototype_labels(features, probabilities, "raw").separation == 0.0


def test_with_a_single_class_distance_compares_raw_similarities() -> None:
    # as a number, p = 0 would give (1 - .6)(1 - .5) = .2 ≤ (1 - .7)·1 = .3 and keep init
    assert chosen(0.6, 0.0, 0.7, 0.5, "distance") == "cluster"
