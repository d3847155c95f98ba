"""FINCH's first partition of clients: who is whose nearest neighbour, and in what precision."""

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from fedwca.core import first_neighbor_clusters, first_neighbors, nearest_row
from tests.support.drawn import for_all, normal, rng, seeds

any_cloud = for_all(st.integers(4, 24), seeds)  # number of clients, seed
TRUTH = [0, 0, 0, 1, 1, 1, 2, 2, 2]  # of nine clients of three domains


def cloud(count: int, seed: int, dim: int = 6) -> Tensor:
    """Clients without structure and without ties."""
    return normal(count, dim, seed=seed, dtype=torch.float64)


def domains(count: int, clients: int, deviation: float, seed: int, dim: int = 1520) -> Tensor:
    """Clients that left one common model: domain by domain, then a tenth of that on their own."""
    generator = rng(seed)
    base = torch.randn(dim, generator=generator, dtype=torch.float64)
    centre = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    own = torch.randn(count * clients, dim, generator=generator, dtype=torch.float64)
    return base + deviation * (centre.repeat_interleave(clients, dim=0) + 0.1 * own)


def brute_neighbors(vectors: Tensor) -> list[int]:
    """κ by differences of unit vectors, one client at a time."""
    unit = vectors.double() / vectors.double().norm(dim=1, keepdim=True)
    nearest = []
    for index in range(len(unit)):
        away = (unit - unit[index]).square().sum(dim=1).tolist()
        away[index] = float("inf")
        nearest.append(away.index(min(away)))
    return nearest


def brute_clusters(neighbors: list[int]) -> list[int]:
    """Components by letting each label fall to the lowest one it is linked with."""
    labels = list(range(len(neighbors)))
    while True:
        before = list(labels)
        for k, j in enumerate(neighbors):
            labels[k] = labels[j] = min(labels[k], labels[j])
        if labels == before:
            break
    order = sorted(set(labels))  # a component's label is its first client
    return [order.index(label) for label in labels]


def partition(labels: Tensor) -> set[frozenset[int]]:
    return {frozenset(torch.nonzero(labels == c).flatten().tolist()) for c in labels.unique()}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_up_to_three_clients_are_one_cluster(count: int) -> None:
    labels = first_neighbor_clusters(cloud(count, seed=0))
    assert labels.tolist() == [0] * count
    assert labels.dtype == torch.int64


def test_angles_on_a_circle_by_hand() -> None:
    # 0, 10, 12 and 90, 95 degrees: 0→10, 10→12, 12→10, 90→95, 95→90
    angle = torch.deg2rad(torch.tensor([0.0, 90.0, 10.0, 95.0, 12.0]))
    vectors = torch.stack([angle.cos(), angle.sin()], dim=1)
    assert first_neighbors(vectors).tolist() == [2, 3, 4, 1, 2]
    assert first_neighbor_clusters(vectors).tolist() == [0, 1, 0, 1, 0]


def test_direction_counts_and_length_does_not() -> None:
    # Far in Euclid's sense, but 0 and 2 point the same way, as do 1 and 3.
    vectors = torch.tensor([[1.0, 0], [0, 1], [100, 1], [1, 100]])
    assert first_neighbor_clusters(vectors).tolist() == [0, 1, 0, 1]


@any_cloud
def test_neighbours_and_clusters_are_those_of_a_plain_loop(count: int, seed: int) -> None:
    vectors = cloud(count, seed)
    expected = brute_neighbors(vectors)
    assert first_neighbors(vectors).tolist() == expected
    assert first_neighbor_clusters(vectors).tolist() == brute_clusters(expected)


@any_cloud
def test_each_cluster_holds_one_mutual_pair_and_nobody_is_alone(count: int, seed: int) -> None:
    vectors = cloud(count, seed)
    kappa = brute_neighbors(vectors)
    mutual = sum(kappa[kappa[k]] == k for k in range(count)) // 2
    sizes = first_neighbor_clusters(vectors).bincount()
    assert len(sizes) == mutual
    assert sizes.min() >= 2


@any_cloud
def test_shared_neighbours_add_no_link(count: int, seed: int) -> None:
    # FINCH's full adjacency also joins i and j where κ_i = κ_j.
    kappa = brute_neighbors(cloud(count, seed))
    clusters = first_neighbor_clusters(cloud(count, seed))
    pairs = [(i, j) for i in range(count) for j in range(count) if kappa[i] == kappa[j]]
    assert all(clusters[i] == clusters[j] for i, j in pairs)


@any_cloud
def test_permuting_clients_permutes_clusters(count: int, seed: int) -> None:
    vectors = cloud(count, seed)
    order = torch.randperm(count, generator=rng(seed))
    moved = partition(first_neighbor_clusters(vectors[order]))
    back = {frozenset(int(order[i]) for i in members) for members in moved}
    assert back == partition(first_neighbor_clusters(vectors))


@any_cloud
def test_rescaling_a_client_changes_nothing(count: int, seed: int) -> None:
    vectors = cloud(count, seed)
    scale = torch.logspace(-3, 3, count, dtype=torch.float64)[:, None]
    assert torch.equal(first_neighbor_clusters(vectors * scale), first_neighbor_clusters(vectors))


@any_cloud
def test_clusters_are_numbered_by_their_first_client(count: int, seed: int) -> None:
    labels = first_neighbor_clusters(cloud(count, seed)).tolist()
    assert list(dict.fromkeys(labels)) == list(range(max(labels) + 1))


@pytest.mark.parametrize("seed", range(10))
def test_nine_clients_of_three_domains_are_three_clusters_of_three(seed: int) -> None:
    vectors = domains(3, 3, deviation=0.1, seed=seed)
    assert first_neighbor_clusters(vectors).tolist() == TRUTH


def clusters_by_cosines(vectors: Tensor) -> list[int]:
    """What the official code does, in single precision: 1 - cos."""
    unit = torch.nn.functional.normalize(vectors, dim=1)
    away = (1 - unit @ unit.T).fill_diagonal_(torch.inf)
    return brute_clusters(away.argmin(dim=1).tolist())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("deviation", "dtype"),
    [
        # 1 - cos ≈ ½·(1e-4)² = 5e-9 across domains; float32, in which models are stored, counts in
        # steps of 6e-8 below 1.
        (1e-4, torch.float32),
        # 1 - cos ≈ ½·(1e-9)² = 5e-19, where float64 counts in steps of 1e-16 below 1.
        (1e-9, torch.float64),
    ],
)
def test_clients_close_together_need_differences_in_double_precision(
    seed: int, deviation: float, dtype: torch.dtype
) -> None:
    vectors = domains(3, 3, deviation=deviation, seed=seed).to(dtype)
    assert clusters_by_cosines(vectors) != TRUTH
    assert first_neighbor_clusters(vectors).tolist() == TRUTH


@pytest.mark.parametrize("count", [4, 5, 9, 32])
def test_bit_identical_clients_are_one_cluster(count: int) -> None:
    vectors = cloud(1, seed=3, dim=1520).repeat(count, 1)
    # ties go to the lowest index: everybody to client 0, client 0 to client 1
    assert first_neighbors(vectors).tolist() == [1] + [0] * (count - 1)
    assert first_neighbor_clusters(vectors).tolist() == [0] * count


def test_bit_identical_clients_of_two_domains_are_two_clusters() -> None:
    vectors = cloud(2, seed=4, dim=1520).repeat(5, 1)  # 0, 1, 0, 1, ...
    assert first_neighbors(vectors).tolist() == [2, 3] + [0, 1] * 4
    assert first_neighbor_clusters(vectors).tolist() == [0, 1] * 5


def test_a_zero_vector_breaks_nothing() -> None:
    vectors = torch.tensor([[0.0, 0], [1, 0], [1, 0.1], [0, 1], [0.1, 1]])
    # Zero is at distance 1 from every unit vector and may join either pair; it joins no third.
    labels = first_neighbor_clusters(vectors)
    assert labels[1] == labels[2] != labels[3] == labels[4]
    assert labels.max() == 1


def test_more_clients_than_one_block_are_clustered_as_by_a_plain_loop() -> None:
    vectors = cloud(1100, seed=5, dim=8)  # a block has 1024 rows
    expected = brute_neighbors(vectors)
    assert first_neighbors(vectors).tolist() == expected
    assert first_neighbor_clusters(vectors).tolist() == brute_clusters(expected)


@pytest.mark.parametrize(
    ("vector", "nearest"), [([1.0, 0.0], 0), ([-0.1, 5.0], 1), ([-9.0, 0.1], 2)]
)
def test_the_nearest_row_is_the_first_nearest_by_angle(vector: list[float], nearest: int) -> None:
    rows = torch.tensor([[100.0, 1.0], [0.0, 1.0], [-1.0, 0.0]])
    assert nearest_row(torch.tensor(vector), rows) == nearest
    assert nearest_row(torch.tensor(vector), rows.repeat(2, 1)) == nearest


def test_a_client_finds_its_domain_a_ten_thousandth_away() -> None:
    vectors = domains(3, 2, deviation=1e-4, seed=6)
    centres, newcomers = vectors[::2].float(), vectors[1::2].float()
    assert [nearest_row(v, centres) for v in newcomers] == [0, 1, 2]


def test_a_client_with_nan_weights_is_refused() -> None:
    vectors = normal(5, 4)
    vectors[2, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinite"):
        first_neighbor_clusters(vectors)
