"""Weighted cluster aggregation: every weight is a share, and v_k is the whole chain at once."""

import math

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from fedwca.core import alignment, benefit, cluster_weights, soft_mixture, softmax_weights
from fedwca.core.params import Weights, distance, mix
from tests.support.drawn import exact, for_all, normal, rng, seeds

counts = st.integers(1, 6)


def shares(rows: int, columns: int, seed: int) -> Tensor:
    """Random rows that sum to one."""
    draw = torch.rand(rows, columns, generator=rng(seed), dtype=torch.float64) + 0.01
    return draw / draw.sum(dim=1, keepdim=True)


def drawn(seed: int, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """A and B of some clusters, and a client's α, β and cluster."""
    A, B = shares(count, count, seed), shares(count, 2, seed + 1)
    return A, B, shares(1, count, seed + 2)[0], shares(1, 2, seed + 3)[0], seed % count


def is_share(weights: Tensor, dim: int) -> bool:
    return bool((weights >= 0).all()) and torch.allclose(
        weights.sum(dim=dim), torch.ones((), dtype=torch.float64), atol=1e-12
    )


# A[c, c'] is what c thinks of c'. Columns sum to 1.5 and 0.5, so Â = [[.6, .2], [.4, .8]].
A_HAND = exact([0.9, 0.1], [0.6, 0.4])
B_HAND = exact([0.5, 0.5], [0.25, 0.75])


# --- α: alignment with the classifier -------------------------------------------------------


def test_alignment_is_the_mean_cosine_with_the_nearest_vector() -> None:
    features = exact([3, 4], [0, 2])
    weight = exact([1, 0], [0, 1])
    # (3, 4)/5 = (.6, .8): nearest .8; (0, 2)/2 = (0, 1): nearest 1; mean .9
    assert alignment(features, weight) == pytest.approx(0.9, abs=1e-15)


def test_alignment_may_be_negative() -> None:
    # The nearest of (1, 0) and (.6, .8) to (-1, 0) is the second, at -.6.
    assert alignment(exact([-7, 0]), exact([1, 0], [0.6, 0.8])) == pytest.approx(-0.6, abs=1e-15)


@for_all(seeds, st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=4))
def test_alignment_ignores_the_lengths_of_classifier_vectors(seed: int, scale: list[float]) -> None:
    features, weight = normal(5, 3, seed=seed), normal(4, 3, seed=seed + 1, dtype=torch.float64)
    scaled = weight * torch.tensor(scale, dtype=torch.float64)[:, None]
    assert alignment(features, scaled) == pytest.approx(alignment(features, weight), abs=1e-12)


# --- softmax with a temperature -------------------------------------------------------------


def test_softmax_weights_by_hand() -> None:
    # A gap of T·log 3 gives odds of 3 to 1.
    gap = 0.05 * math.log(3)
    torch.testing.assert_close(softmax_weights(exact(0.0, gap), 0.05), exact(0.25, 0.75))


@pytest.mark.parametrize(
    ("gap", "share"), [(0.01, 0.55), (0.05, 0.73), (0.1, 0.88), (0.2, 0.98), (0.5, 0.99995)]
)
def test_the_papers_temperature_makes_beta_steep(gap: float, share: float) -> None:
    # 1 / (1 + exp(-gap/.05))
    beta = softmax_weights(exact(gap, 0.0), 0.05)
    digits = 5 if share > 0.99 else 2
    assert round(float(beta[0]), digits) == share


@for_all(st.lists(st.floats(-1, 1), min_size=1, max_size=6), st.floats(1e-3, 1e3), st.floats(-5, 5))
def test_softmax_weights_are_shares_and_ignore_a_common_constant(
    scores: list[float], temperature: float, constant: float
) -> None:
    weights = softmax_weights(exact(*scores), temperature)
    assert is_share(weights, dim=0)
    moved = softmax_weights(exact(*scores) + constant, temperature)
    torch.testing.assert_close(moved, weights, atol=1e-10, rtol=0)


def test_a_hot_softmax_is_uniform_and_a_cold_one_picks_the_best() -> None:
    scores = exact(0.592, 0.637, 0.467)
    hot = softmax_weights(scores, 1e12)
    torch.testing.assert_close(hot, exact(1 / 3, 1 / 3, 1 / 3), atol=1e-12, rtol=0)
    # The runner-up is .045 behind: exp(-.045/1e-6) is zero in float64.
    assert softmax_weights(scores, 1e-6).tolist() == [0.0, 1.0, 0.0]


def test_single_precision_scores_still_sum_to_one_in_double() -> None:
    weights = softmax_weights(torch.tensor([0.1, 0.2, 0.3]), 0.01)
    assert weights.dtype == torch.float64
    assert float(weights.sum()) == pytest.approx(1, abs=1e-15)


# --- A and B: means over clusters -----------------------------------------------------------


def test_benefits_are_plain_means_over_the_clients_of_a_cluster() -> None:
    alphas = exact([1.0, 0.0], [0.2, 0.8], [0.5, 0.5])
    betas = exact([0.5, 0.5], [0.9, 0.1], [0.7, 0.3])
    A, B = benefit(alphas, betas, torch.tensor([0, 1, 0]))
    # cluster 0 = clients 0 and 2: (1 + .5)/2, (0 + .5)/2; cluster 1 = client 1
    torch.testing.assert_close(A, exact([0.75, 0.25], [0.2, 0.8]))
    torch.testing.assert_close(B, exact([0.6, 0.4], [0.9, 0.1]))


def test_a_cluster_nobody_spoke_for_keeps_its_own_model() -> None:
    A, B = benefit(exact([0.3, 0.3, 0.4]), exact([0.2, 0.8]), torch.tensor([1]))
    torch.testing.assert_close(A, exact([1, 0, 0], [0.3, 0.3, 0.4], [0, 0, 1]))
    torch.testing.assert_close(B, exact([1, 0], [0.2, 0.8], [1, 0]))
    silent = soft_mixture(A, B)[0]
    assert silent.tolist() == [1, 0, 0]


@for_all(seeds, counts)
def test_rows_of_the_benefits_are_shares(seed: int, count: int) -> None:
    clusters = torch.arange(12) % count
    A, B = benefit(shares(12, count, seed), shares(12, 2, seed + 1), clusters)
    assert is_share(A, dim=1)
    assert is_share(B, dim=1)


# --- soft models ----------------------------------------------------------------------------


def test_soft_mixture_by_hand_in_all_three_readings() -> None:
    # column: .5·(1, 0) + .5·(.6, .4) and .25·(0, 1) + .75·(.2, .8)
    torch.testing.assert_close(soft_mixture(A_HAND, B_HAND), exact([0.8, 0.2], [0.15, 0.85]))
    # as written: .5·(1, 0) + .5·(.9, .6) and .25·(0, 1) + .75·(.1, .4)
    torch.testing.assert_close(
        soft_mixture(A_HAND, B_HAND, "as_written"), exact([0.95, 0.3], [0.075, 0.55])
    )
    # transposed: .5·(1, 0) + .5·(.9, .1) and .25·(0, 1) + .75·(.6, .4)
    torch.testing.assert_close(
        soft_mixture(A_HAND, B_HAND, "transposed"), exact([0.95, 0.05], [0.45, 0.55])
    )


@pytest.mark.parametrize("reading", ["column", "transposed"])
@for_all(seed=seeds, count=counts)
def test_weights_of_a_soft_model_are_shares(reading: str, seed: int, count: int) -> None:
    assert is_share(soft_mixture(shares(count, count, seed), shares(count, 2, 7), reading), dim=1)


@for_all(seeds, counts)
def test_columns_of_the_normalised_benefit_are_shares(seed: int, count: int) -> None:
    # With B = (0, 1) everywhere nothing but Â is left: S[c, c'] = Â[c', c].
    S = soft_mixture(shares(count, count, seed), exact([0, 1]).repeat(count, 1))
    assert is_share(S.T, dim=0)


def test_a_doubly_stochastic_benefit_needs_no_normalisation() -> None:
    A = exact([0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.3, 0.2, 0.5])  # rows and columns sum to 1
    B = shares(3, 2, 0)
    torch.testing.assert_close(soft_mixture(A, B, "as_written"), soft_mixture(A, B, "column"))


def test_a_cluster_nobody_prefers_keeps_its_own_model() -> None:
    A = exact([1, 0, 0], [0.5, 0.5, 0], [0.5, 0.5, 0])  # column 2 is empty
    S = soft_mixture(A, exact([0.3, 0.7]).repeat(3, 1))
    assert S.isfinite().all()
    torch.testing.assert_close(S[2], exact(0, 0, 1))
    assert is_share(S, dim=1)


# --- v_k ------------------------------------------------------------------------------------


def test_cluster_weights_by_hand() -> None:
    S = exact([0.8, 0.2], [0.15, 0.85])
    v = cluster_weights(exact(0.5, 0.5), exact(0.5, 0.5), 0, S)
    # αS = (.475, .525); .5·(1, 0) + .5·(.475, .525)
    torch.testing.assert_close(v, exact(0.7375, 0.2625))


def test_cluster_weights_leave_their_inputs_alone() -> None:
    alpha, beta, S = exact(0.5, 0.5), exact(1.0, 0.0), torch.eye(2, dtype=torch.float64)
    assert cluster_weights(alpha, beta, 1, S).tolist() == [0, 1]
    assert alpha.tolist() == [0.5, 0.5]
    assert torch.equal(S, torch.eye(2, dtype=torch.float64))


@for_all(seeds, counts)
def test_cluster_weights_are_shares(seed: int, count: int) -> None:
    A, B, alpha, beta, own = drawn(seed, count)
    assert is_share(cluster_weights(alpha, beta, own, soft_mixture(A, B)), dim=0)


@for_all(seeds, counts)
def test_cluster_weights_are_the_papers_double_sum(seed: int, count: int) -> None:
    A, B, alpha, beta, own = drawn(seed, count)
    column = [sum(A[i][c] for i in range(count)) for c in range(count)]
    expected = [
        (beta[0] if c == own else 0.0)
        + beta[1] * alpha[c] * B[c][0]
        + beta[1] * sum(B[i][1] * alpha[i] * A[c][i] / column[i] for i in range(count))
        for c in range(count)
    ]
    v = cluster_weights(alpha, beta, own, soft_mixture(A, B))
    torch.testing.assert_close(v, torch.stack([torch.as_tensor(x) for x in expected]))


@for_all(seeds, counts)
def test_weights_as_written_sum_to_what_the_facts_derive(seed: int, count: int) -> None:
    A, B, alpha, beta, own = drawn(seed, count)
    v = cluster_weights(alpha, beta, own, soft_mixture(A, B, "as_written"))
    s = A.sum(dim=0)  # s_c = Σ_c' A[c', c]
    total = beta[0] + beta[1] * (alpha * (B[:, 0] + B[:, 1] * s)).sum()
    torch.testing.assert_close(v.sum(), total)


# --- models ---------------------------------------------------------------------------------


def models(count: int, seed: int) -> list[Weights]:
    generator = rng(seed)
    return [
        {
            "conv.weight": torch.randn(4, 3, 2, 2, generator=generator, dtype=torch.float64),
            "bn.running_var": torch.rand(4, generator=generator, dtype=torch.float64),
        }
        for _ in range(count)
    ]


@for_all(seeds, counts)
def test_the_initial_model_in_steps_is_one_sum_over_cluster_models(seed: int, count: int) -> None:
    f = models(count, seed)
    A, B, alpha, beta, own = drawn(seed, count)

    def blend(parts: list[Weights], weights: Tensor) -> Weights:
        return {n: sum(w * p[n] for w, p in zip(weights, parts, strict=True)) for n in parts[0]}

    mixed = [blend(f, A[:, c] / A[:, c].sum()) for c in range(count)]
    soft = [blend([f[c], mixed[c]], B[c]) for c in range(count)]
    f_init = blend([f[own], blend(soft, alpha)], beta)

    v = cluster_weights(alpha, beta, own, soft_mixture(A, B))
    assert distance(mix(f, v), f_init) < 1e-14


@for_all(seeds, st.integers(2, 6))
def test_blended_variances_stay_nonnegative(seed: int, count: int) -> None:
    A, B, alpha, beta, own = drawn(seed, count)
    v = cluster_weights(alpha, beta, own, soft_mixture(A, B))
    f = models(count, seed)
    for weights in f:
        weights["bn.running_var"][0] = 0.0  # a dead channel
    blended = mix(f, v)["bn.running_var"]
    assert blended[0] == 0
    assert (blended[1:] > 0).all()


@for_all(seeds, counts)
def test_a_blend_of_equal_models_is_the_model_to_the_bit(seed: int, count: int) -> None:
    bn = torch.nn.BatchNorm2d(3)
    bn(normal(4, 3, 2, 2, seed=seed))  # moves all three buffers
    state = bn.state_dict()
    A, B, alpha, beta, own = drawn(seed, count)
    v = cluster_weights(alpha, beta, own, soft_mixture(A, B))
    blended = mix([state] * count, v)
    assert blended.keys() == state.keys()
    assert all(torch.equal(blended[name], state[name]) for name in state)
    assert blended["num_batches_tracked"].dtype == torch.int64


def test_one_cluster_leaves_nothing_to_choose() -> None:
    one = exact([1])
    S = soft_mixture(one, exact([0.5, 0.5]))
    assert S.tolist() == [[1.0]]
    assert cluster_weights(softmax_weights(exact(0.3), 0.01), exact(0.5, 0.5), 0, S).tolist() == [1]
