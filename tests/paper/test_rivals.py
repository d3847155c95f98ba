"""Oracles of the rival methods: where one becomes another, and their formulas by hand."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwca.core.attention import attentive_weights, median_distance
from fedwca.core.params import Weights, clone, mix
from fedwca.core.pseudo_label import confidence_labels, confident
from fedwca.core.snd import guarded_density, soft_neighborhood_density
from fedwca.data.augment import weak_view
from fedwca.data.images import ClientData
from fedwca.engines.client_runtime import seed_generator, use_threads
from fedwca.methods import Adaptation, Client, Method, Record, Training
from fedwca.methods.fedamp import FedAMP, squared_distances
from fedwca.methods.fedavg import FedAvg
from fedwca.methods.fedpcl import FedPCL, class_means, fill_gaps
from fedwca.methods.fedprox import FedProx
from fedwca.methods.fedscal import FedSCAl, adaptive_threshold, agreement
from fedwca.methods.fedwca import FedWCA
from fedwca.methods.fedwca_plus import FedWCAPlus
from fedwca.methods.ifca import IFCA, adaptation_loss, balanced_groups
from fedwca.methods.inference import Outputs, evaluate, load
from fedwca.methods.ladd import LADD
from fedwca.methods.ladd_plus import LADDPlus
from fedwca.methods.local import Local
from fedwca.methods.source_only import SourceOnly
from fedwca.methods.training import Objective, Step, Targets, train
from fedwca.models import DomainModel
from tests.support.drawn import normal, rng
from tests.support.federation import TinyProblem, final_models, same

TRAINING = Training(rounds=3, epochs=2, lr=0.01, batch_size=16)
STILL = replace(TRAINING, epochs=0)
CPU = torch.device("cpu")


LOCAL = Local(TRAINING, fixed_labels=True)
ONE_HOT = FedWCA(
    TRAINING,
    clustering="domain",
    cluster_mean="samples",
    cluster_weights="one_hot",
    two_models=False,
    mixup=False,
)
# The mean of all clients: every one is a cluster, and all have the same weight.
ONE_MODEL = FedWCAPlus(TRAINING, clustering="each", trust=0.0, momentum=0.0, deploy="shared")


EQUAL = [
    (FedProx(TRAINING, mu=0.0), FedAvg(TRAINING)),
    (FedAMP(TRAINING, attraction=0.0, pull=0.0), LOCAL),
    (IFCA(TRAINING, clusters=1), FedAvg(TRAINING)),
    (LADDPlus(TRAINING, clustering="domain"), ONE_HOT),
    (FedSCAl(TRAINING, client_weight=0.0, server_weight=0.0), FedAvg(TRAINING)),
    (ONE_MODEL, FedAvg(TRAINING, mean="plain")),
    (FedPCL(STILL), SourceOnly(STILL)),
]
OTHERS = [
    (FedProx(TRAINING, mu=1.0), FedAvg(TRAINING)),
    (FedAMP(TRAINING), LOCAL),
    (FedSCAl(TRAINING), FedAvg(TRAINING)),
]


@pytest.mark.parametrize(
    ("method", "other", "equal"),
    [*((*pair, True) for pair in EQUAL), *((*pair, False) for pair in OTHERS)],
    ids=lambda value: str(value) if isinstance(value, bool) else type(value).__name__,
)
def test_a_method_without_its_own_part_is_another(
    tiny: TinyProblem, method: Method, other: Method, equal: bool
) -> None:
    left, right = tiny.finals(method), tiny.finals(other)
    assert all(same(left[name], right[name]) for name in left) == equal


def a_step(model: DomainModel, tiny: TinyProblem) -> Step:
    rows = torch.arange(8)
    x = tiny.clients[0].train.batch(rows)
    features, logits = model(x)
    return Step(rows, x, features, logits, rows, rows % 3)


def adapted(
    method: Method, tiny: TinyProblem, models: dict[str, Weights], memory: Record | None = None
) -> Adaptation:
    """What the first client makes of a message of round 1."""
    message = Record(models, {"round": torch.tensor(1)})
    images, generator = tiny.clients[0].train, seed_generator(0, 1, "a")
    return method.adapt(tiny.new_model(), images, message, memory or Record(), generator)


# --- FedProx ----------------------------------------------------------------------------------


def test_fedprox_measures_from_the_global_model(tiny: TinyProblem) -> None:
    """Moving one weight by 0.5 costs μ/2·0.25, and pulls back by μ·0.5."""
    model = tiny.new_model()
    aim = FedProx(TRAINING, mu=0.2).objective(
        model, tiny.clients[0].train, seed_generator(0, 0, "a")
    )
    weight = model.bottleneck.linear.weight
    with torch.no_grad():
        weight[0, 0] += 0.5
    mu, value = aim.loss(a_step(model, tiny))["proximal"]
    assert mu == 0.2
    assert value.item() == pytest.approx(0.125)
    value.backward()
    assert float(weight.grad[0, 0]) == pytest.approx(0.5)
    assert float(weight.grad.abs().sum()) == pytest.approx(0.5)


# --- FedAMP -----------------------------------------------------------------------------------


def test_attention_by_hand() -> None:
    """d = σ·ln 2 halves the attention: (½/2)·½ = ⅛ each, or ¼ for an equal model."""
    far = 3 * math.log(2)
    distances = torch.tensor([[0, 0, far], [0, 0, far], [far, far, 0]])
    weights = attentive_weights(distances, sigma=3.0, attraction=0.5)
    expected = [[0.625, 0.25, 0.125], [0.25, 0.625, 0.125], [0.125, 0.125, 0.75]]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))


@given(count=st.integers(1, 40), seed=st.integers(0, 99), attraction=st.floats(0, 1))
def test_attention_is_never_negative(count: int, seed: int, attraction: float) -> None:
    """With α = σ = 1 and 32 equal models, the own weight would be -30."""
    points = normal(count, 3, seed=seed)
    distances = (points[:, None] - points[None]).square().sum(dim=2)
    weights = attentive_weights(distances * (seed % 2), median_distance(distances), attraction)
    assert (weights >= -1e-12).all()  # rounding may take a little from 0
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(count, dtype=torch.float64))
    assert (1 - weights.diag() <= attraction + 1e-12).all()


def test_the_median_distance_leaves_a_client_itself_out() -> None:
    assert median_distance(torch.tensor([[0.0, 4.0], [4.0, 0.0]])) == 4
    assert median_distance(torch.zeros(3, 3)) == 1
    assert median_distance(torch.zeros(1, 1)) == 1


def test_distances_count_parameters_and_no_statistics() -> None:
    one: Weights = {"a.weight": torch.tensor([1.0, 2.0]), "a.running_mean": torch.tensor([9.0])}
    two: Weights = {"a.weight": torch.tensor([4.0, 6.0]), "a.running_mean": torch.tensor([0.0])}
    assert squared_distances([one, two]).tolist() == [[0, 25], [25, 0]]


def test_fedamps_pull_has_a_gradient(tiny: TinyProblem) -> None:
    model = tiny.new_model()
    cloud = {name: t + 1.0 for name, t in tiny.source().items()}
    losses = FedAMP(TRAINING, pull=2.0)._objective(model, cloud).loss(a_step(model, tiny))
    weight, value = losses["proximal"]
    value.backward()
    assert weight == 2.0
    grad = model.bottleneck.linear.weight.grad
    torch.testing.assert_close(grad, -torch.ones_like(grad))


def test_fedamps_cloud_model_is_the_attentive_mean(tiny: TinyProblem) -> None:
    log = tiny.run(FedAMP(TRAINING))
    state = log.states[1]
    locals_ = [state.models[f"local/{c.name}"] for c in tiny.clients]
    first = Client(tiny.clients[0].name, tiny.clients[0].domain)
    distances = squared_distances(locals_)
    attention = attentive_weights(distances, median_distance(distances), 0.5)
    assert same(log.messages[1][first].models["cloud"], mix(locals_, attention[0]))


# --- IFCA -------------------------------------------------------------------------------------


def test_ifca_does_not_collapse_in_round_0(tiny: TinyProblem) -> None:
    log = tiny.run(IFCA(TRAINING, clusters=2))
    groups = [int(v) for n, v in log.states[1].values.items() if n.startswith("cluster_of/")]
    assert sorted(groups) == [0, 0, 1, 1]
    assert not same(log.states[1].models["cluster/0"], log.states[1].models["cluster/1"])


@given(count=st.integers(1, 40), groups=st.integers(1, 6), seed=st.integers(0, 99))
def test_ifcas_first_groups_are_balanced_and_random(count: int, groups: int, seed: int) -> None:
    drawn = torch.rand(count, generator=rng(seed))
    found = balanced_groups({str(k): t for k, t in enumerate(drawn)}, groups)
    sizes = [list(found.values()).count(g) for g in range(groups)]
    assert max(sizes) - min(sizes) <= 1
    assert found[str(int(drawn.argmin()))] == 0


@pytest.mark.parametrize(("dead_clusters", "pick"), [(0, 0), (1, 1)])
def test_ifca_takes_the_model_of_least_loss_and_the_first_of_equal_ones(
    tiny: TinyProblem, dead_clusters: int, pick: int
) -> None:
    source = tiny.source()
    dead = {n: torch.zeros_like(t) if "linear" in n else t for n, t in source.items()}
    models = {f"cluster/{c}": dead if c < dead_clusters else source for c in range(3)}
    assert int(adapted(IFCA(TRAINING), tiny, models).reply.values["pick"]) == pick


def test_ifcas_loss_by_hand() -> None:
    """Two sure samples of two classes: L_IM = -log 2, and L_CE of a probability p is -log p."""
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    logits = 40 * features
    assert adaptation_loss(Outputs(features, logits), 0.3) == pytest.approx(-math.log(2))
    mild = torch.log(torch.tensor([[0.75, 0.25], [0.25, 0.75]]))
    entropy = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    expected = entropy - math.log(2) - 0.3 * math.log(0.75)
    assert adaptation_loss(Outputs(features, mild), 0.3) == pytest.approx(expected)


# --- LADD -------------------------------------------------------------------------------------


def test_confident_labels_by_hand() -> None:
    """Class 0 has three samples: two of them (⌈0.66·3⌉) stay, and a third above 0.9 would too."""
    rows = [[0.6, 0.4], [0.8, 0.2], [0.7, 0.3], [0.45, 0.55]]
    assert confident(torch.tensor(rows)).tolist() == [False, True, True, True]
    assert confident(torch.tensor(rows), threshold=0.55).tolist() == [True, True, True, True]
    assert confident(torch.tensor(rows), share=0.0).tolist() == [False] * 4
    sure = [[0.95, 0.05], [0.97, 0.03], [0.99, 0.01]]
    assert confident(torch.tensor(sure), share=0.0).all()
    assert confident(torch.tensor(rows), share=1.0).all()


def test_ladd_in_one_cluster_without_distillation_is_fedavg_of_self_training(
    tiny: TinyProblem,
) -> None:
    together = [replace(c, domain="one") for c in tiny.clients]
    ladd = LADD(TRAINING, clustering="domain", regularisation=0.0)
    log = tiny.run(ladd, together)
    model = tiny.new_model()
    merged = clone(model.feature_weights())
    for number in range(TRAINING.rounds):
        with use_threads(1):
            trained = [_self_trained(model, merged, c, number) for c in together]
        sizes = [len(c.train) for c in together]
        merged = mix(trained, [size / sum(sizes) for size in sizes])
        assert same(log.states[number + 1].models["cluster/0"], merged)


def _self_trained(model: DomainModel, start: Weights, client: ClientData, number: int) -> Weights:
    load(model, start, client.train, "blend")
    said = evaluate(model, client.train).probabilities
    targets = Targets.plain(confidence_labels(said))._replace(used=confident(said))
    trained, _ = train(
        model,
        client.train,
        lambda: targets,
        TRAINING,
        seed_generator(0, number, client.name),
        round=number,
        objective=Objective(lambda step: {"ce": (1.0, step.cross_entropy())}),
    )
    return trained


def test_ladds_teacher_is_the_mean_of_its_own_clusters_models(tiny: TinyProblem) -> None:
    log = tiny.run(LADD(TRAINING, clustering="domain", teacher_start=1))
    assert "teacher/0" not in log.states[1].models
    for c in range(2):
        second, third = (log.states[r].models[f"cluster/{c}"] for r in (2, 3))
        assert same(log.states[2].models[f"teacher/{c}"], second)
        assert same(log.states[3].models[f"teacher/{c}"], mix([second, third], [0.5, 0.5]))
    noisy = Client("noisy/0", "noisy")
    assert same(log.messages[2][noisy].models["teacher"], log.states[2].models["teacher/1"])


def test_ladd_distils_the_source_models_outputs(tiny: TinyProblem) -> None:
    log = tiny.run(LADD(TRAINING))
    model, client = tiny.new_model(), tiny.clients[0]
    expected = evaluate(model, client.train).logits
    for memories in log.memories[1:]:
        assert torch.equal(memories[client.name].values["source_logits"], expected)
    assert log.lines[-1]["health"][client.name]["loss_distillation"] > 0


@pytest.mark.parametrize("memory", [Record(), Record(values={"source_logits": torch.zeros(1, 3)})])
def test_ladd_does_not_distil_without_remembered_source_outputs(
    tiny: TinyProblem, memory: Record
) -> None:
    health = adapted(LADD(TRAINING), tiny, {"cluster": tiny.source()}, memory).health
    assert "loss_distillation" not in health
    assert "loss_ce" in health


# --- FedPCL -----------------------------------------------------------------------------------


def test_prototypes_are_means_of_unit_features() -> None:
    features = torch.tensor([[3.0, 4.0], [0.0, 2.0], [5.0, 0.0]])
    means, present = class_means(features, Targets.plain(torch.tensor([0, 0, 2])), 3)
    torch.testing.assert_close(means, torch.tensor([[0.3, 0.9], [0.0, 0.0], [1.0, 0.0]]))
    assert present.tolist() == [True, False, True]


def test_a_missing_class_is_filled_by_the_mean_of_the_others() -> None:
    prototypes = torch.tensor([[[1.0], [0.0], [0.0]], [[3.0], [6.0], [0.0]], [[5.0], [2.0], [0.0]]])
    present = torch.tensor([[True, False, False], [True, True, False], [True, True, False]])
    sets, known = fill_gaps(prototypes, present)
    assert sets.squeeze(2).tolist() == [[1, 4, 0], [3, 6, 0], [5, 2, 0]]
    assert known.tolist() == [True, True, False]


def _contrast(
    temperature: float, step: Step, present: torch.Tensor | None = None
) -> dict[str, tuple[float, torch.Tensor]]:
    prototypes = normal(2, 3, 16)
    here = torch.ones(2, 3, dtype=torch.bool) if present is None else present
    message = Record(values={"prototypes": prototypes, "present": here})
    return FedPCL(TRAINING, temperature=temperature)._objective(message, CPU).loss(step)


def test_fedpcls_temperature_flattens_the_contrast_but_not_its_gradient(tiny: TinyProblem) -> None:
    sizes = []
    for temperature in (7.0, 70.0):
        model = tiny.new_model()
        losses = _contrast(temperature, a_step(model, tiny))
        assert losses["global"][1].item() == pytest.approx(math.log(3), abs=0.3 / temperature)
        assert losses["global"][0] == pytest.approx(temperature / 0.07)
        sum(weight * value for weight, value in losses.values()).backward()
        sizes.append(float(model.bottleneck.linear.weight.grad.norm()))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)
    assert sizes[1] > 0


def test_fedpcl_skips_classes_that_nobody_has(tiny: TinyProblem) -> None:
    nobody = torch.zeros(2, 3, dtype=torch.bool)
    losses = _contrast(70.0, a_step(tiny.new_model(), tiny), nobody)
    assert all(value.item() == 0 for _, value in losses.values())
    one = torch.tensor([[True, True, False], [True, False, False]])
    losses = _contrast(70.0, a_step(tiny.new_model(), tiny), one)
    assert all(math.isfinite(value.item()) for _, value in losses.values())


def test_fedpcl_sends_no_weights_and_keeps_the_backbone(tiny: TinyProblem) -> None:
    method = FedPCL(TRAINING)
    log = tiny.run(method)
    for answers in log.replies:
        assert all(not a.reply.models for a in answers.values())
    source = tiny.source()
    for weights in final_models(log, method, tiny.clients).values():
        for name in source:
            if name.startswith("backbone."):
                assert torch.equal(weights[name], source[name]), name
    first, second = (log.memories[r][tiny.clients[0].name].models["own"] for r in (1, 2))
    moved = "bottleneck.linear.weight"
    assert torch.equal(first[moved], source[moved])  # round 0 only makes prototypes
    assert not torch.equal(second[moved], source[moved])


# --- FedSCAl ----------------------------------------------------------------------------------


def test_agreement_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]]))
    other = torch.tensor([[0.95, 0.05], [0.1, 0.9], [0.6, 0.4]])
    expected = -(math.log(0.5) + math.log(0.8)) / 2  # the third is not sure enough
    assert float(agreement(logits, other, 0.8)) == pytest.approx(expected)
    assert float(agreement(logits, other, 0.99)) == 0


def test_the_threshold_follows_the_skew_of_the_entropies() -> None:
    """Entropies 0, 0, log 2: mean ⅓·log 2, median 0, std √2/3·log 2, so 3/√2 = 2.1: clipped."""
    sure, unsure = [1.0, 0.0], [0.5, 0.5]
    assert adaptive_threshold(torch.tensor([sure, sure, unsure]), 0.8) == pytest.approx(0.95)
    assert adaptive_threshold(torch.tensor([sure, unsure, unsure]), 0.8) == pytest.approx(0.7)
    assert adaptive_threshold(torch.tensor([sure, sure]), 0.8) == 0.8
    assert adaptive_threshold(torch.tensor([sure, sure, unsure]), 0.9) == 1.0


def test_distortion_keeps_shape_and_range_and_follows_its_generator() -> None:
    x = torch.rand(5, 3, 16, 16) * 2 - 1
    twice = [weak_view(x, rng(seed)) for seed in (0, 0, 1)]
    assert twice[0].shape == x.shape
    assert torch.equal(twice[0], twice[1])
    assert not torch.equal(twice[0], twice[2])
    assert twice[0].abs().max() <= 1.4 + 0.4
    assert (twice[0] == 0).float().mean() > 0.03  # the square that is cut out
    assert (twice[0] != x).float().mean() > 0.9


# --- guarded density ---------------------------------------------------------------------------


def test_a_guarded_density_prefers_a_perfect_model_to_a_collapsed_or_an_empty_one() -> None:
    classes, count = 4, 80
    perfect = torch.eye(classes).repeat(count // classes, 1)
    collapsed = torch.eye(classes)[:1].repeat(count, 1)
    empty = torch.full((count, classes), 1 / classes)
    most = math.log(count - 1)
    assert soft_neighborhood_density(collapsed) == pytest.approx(most)
    assert guarded_density(collapsed) == pytest.approx(most)
    assert guarded_density(empty) == pytest.approx(most)
    expected = math.log(count / classes - 1) + 2 * math.log(classes)
    assert guarded_density(perfect) == pytest.approx(expected, abs=1e-4)
    assert guarded_density(perfect) > most + 1
