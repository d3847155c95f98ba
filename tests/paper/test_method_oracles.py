"""Oracles at the level of whole methods: exact, bit for bit where they can be."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedwca.core.params import Weights, clone, distance, mix
from fedwca.core.snd import soft_neighborhood_density
from fedwca.core.weights import alignment, cluster_weights
from fedwca.data.partition import Partition
from fedwca.data.types import Benchmark
from fedwca.methods import METHODS, Client, Training
from fedwca.methods.fedavg import FedAvg
from fedwca.methods.fedwca import FedWCA
from fedwca.methods.inference import evaluate, load
from fedwca.methods.local import Local
from fedwca.models import DomainModel
from tests.support.federation import Log, TinyProblem, final_models, run, same

NewModel = Callable[[], DomainModel]
TRAINING = Training(rounds=4, epochs=2, lr=0.01, batch_size=16)
STILL = replace(TRAINING, epochs=0)  # no training: a reply is exactly f_init


def by_domain(training: Training, **fields: object) -> FedWCA:
    """FedWCA with the two true clusters, so that there is something to blend."""
    return FedWCA(training, clustering="domain", temperature_a=0.1, **fields)


# --- 6: one cluster is FedAvg -----------------------------------------------------------------


@pytest.mark.parametrize("mean", ["plain", "samples"])
@pytest.mark.parametrize("batch_norm", ["blend", "recalibrate", "local"])
def test_fedwca_with_one_cluster_is_fedavg_parameter_for_parameter(
    tiny: TinyProblem, mean: str, batch_norm: str
) -> None:
    three = tiny.clients[:3]  # FINCH puts three clients into one cluster always
    training = replace(TRAINING, batch_norm=batch_norm)
    wca = tiny.run(FedWCA(training, cluster_mean=mean), three)
    avg = tiny.run(FedAvg(training, mean=mean), three)
    for number in range(1, training.rounds + 1):
        clusters = wca.states[number].models
        assert "cluster/1" not in clusters
        assert same(clusters["cluster/0"], avg.states[number].models["global"]), f"round {number}"
    assert [x["accuracy"] for x in wca.lines] == [x["accuracy"] for x in avg.lines]


# --- 7: ablations -----------------------------------------------------------------------------


def starts(log: Log, number: int) -> dict[str, Weights]:
    """What each client began round `number` with, in a run that does not train."""
    return {c.name: a.reply.models["local"] for c, a in log.replies[number].items()}


def shaken(tiny: TinyProblem, method: FedWCA) -> Log:
    """A run that trains in round 0, so that clusters differ, and then only blends."""
    first = tiny.run(replace(method, training=replace(TRAINING, rounds=1)))
    still = replace(method, training=replace(STILL, rounds=3))
    return tiny.run(still, start=(1, first.states[-1], first.memories[-1]))


def test_one_hot_starts_from_the_own_cluster_and_matches_every_label(tiny: TinyProblem) -> None:
    method = by_domain(TRAINING, cluster_weights="one_hot")
    log = tiny.run(method)
    assert set(log.messages[1][Client("dim/0", "dim")].models) == {"cluster"}
    still = shaken(tiny, method)
    own = still.messages[0][Client("dim/0", "dim")].models["cluster"]
    assert same(starts(still, 0)["dim/0"], own)


def test_equal_starts_from_the_mean_of_all_clusters(tiny: TinyProblem) -> None:
    method = by_domain(TRAINING, cluster_weights="equal")
    first = tiny.run(replace(method, training=replace(TRAINING, rounds=1)))
    clusters = [first.states[-1].models[f"cluster/{c}"] for c in range(2)]
    log = shaken(tiny, method)
    for start in starts(log, 0).values():
        assert distance(start, mix(clusters, [0.5, 0.5])) < 1e-7


def test_one_equal_gives_the_own_cluster_four_fifths(tiny: TinyProblem) -> None:
    method = by_domain(TRAINING, cluster_weights="one_equal")
    log = tiny.run(method)
    assert log.lines[-1]["server"]["v/dim/0"] == pytest.approx([0.8, 0.2])
    assert log.lines[-1]["server"]["v/noisy/1"] == pytest.approx([0.2, 0.8])


def test_one_equal_adaptive_weighs_own_and_equal_by_density(tiny: TinyProblem) -> None:
    log = tiny.run(by_domain(TRAINING, cluster_weights="one_equal_adaptive"))
    server, health = log.lines[-1]["server"], log.lines[-1]["health"]
    own, equal = health["dim/0"]["beta"]
    assert server["v/dim/0"] == pytest.approx([own + equal / 2, equal / 2])
    assert "alpha" not in health["dim/0"]


def test_fedwca_l_takes_alpha_over_the_cluster_models_alone(tiny: TinyProblem) -> None:
    log = tiny.run(by_domain(TRAINING, cluster_weights="local"))
    last = log.lines[-1]
    assert last["server"]["v/noisy/0"] == last["health"]["noisy/0"]["alpha"]
    assert "beta" not in last["health"]["noisy/0"]
    state = log.states[-2]
    sent = log.messages[-1][Client("noisy/0", "noisy")].models
    assert same(sent["soft/1"], state.models["cluster/1"])


# --- 1 and 8: blending, with and without client-side weights ------------------------------------


def test_the_initial_model_follows_the_formulas_and_equals_the_expansion_in_v(
    tiny: TinyProblem,
) -> None:
    model, client = tiny.new_model(), tiny.clients[0]
    log = shaken(tiny, by_domain(TRAINING))
    sent = log.messages[-1][Client(client.name, client.domain)].models

    def view(weights: Weights) -> tuple[torch.Tensor, torch.Tensor]:
        load(model, weights, client.train, "blend")
        outputs = evaluate(model, client.train)
        return outputs.features, outputs.probabilities

    soft = [sent["soft/0"], sent["soft/1"]]
    scores = [alignment(view(s)[0], model.classifier_weight()) for s in soft]
    alpha = torch.softmax(torch.tensor(scores).double() / 0.1, 0)
    merged = mix(soft, alpha)
    density = [soft_neighborhood_density(view(s)[1]) for s in (sent["cluster"], merged)]
    beta = torch.softmax(torch.tensor(density).double() / 0.05, 0)
    expected = mix([sent["cluster"], merged], beta)
    assert distance(starts(log, -1)[client.name], expected) < 1e-6

    v = cluster_weights(alpha, beta, 0, log.states[-2].values["S"])
    assert float(v.sum()) == pytest.approx(1, abs=1e-9)
    assert log.lines[-1]["server"][f"v/{client.name}"] == pytest.approx(v.tolist(), abs=1e-5)
    clusters = [log.states[-2].models[f"cluster/{c}"] for c in range(2)]
    assert distance(expected, mix(clusters, v)) < 1e-5


def test_soft_models_equal_cluster_models_in_round_one(tiny: TinyProblem) -> None:
    state = tiny.run(by_domain(TRAINING)).states[1]
    for c in range(2):
        assert same(state.models[f"soft/{c}"], state.models[f"cluster/{c}"])


def test_weights_are_renewed_in_the_first_of_every_u_rounds_only(tiny: TinyProblem) -> None:
    training = replace(TRAINING, rounds=8, epochs=1)
    log = tiny.run(by_domain(training, rounds_between_weights=3))
    client = Client("dim/0", "dim")
    full = [r for r in range(1, 8) if "alpha" in log.replies[r][client].reply.values]
    assert full == [1, 4, 7]  # (r - 1) mod 3 = 0
    for r in range(1, 8):
        sent, reply = log.messages[r][client], log.replies[r][client].reply
        one_model = sum(t.numel() * t.element_size() for t in sent.models["cluster"].values())
        expected = 3 if r in full else 2  # C + 1 = 3 models down, or two
        assert sent.nbytes() - 8 == expected * one_model  # 8 bytes for the round number
        assert ("alpha" in reply.values) == ("beta" in reply.values) == (r in full)


def test_a_cheap_round_blends_the_current_models_with_the_last_weights(tiny: TinyProblem) -> None:
    log = tiny.run(by_domain(TRAINING, rounds_between_weights=3))
    client = Client("dim/0", "dim")
    state, sent = log.states[3], log.messages[3][client].models
    alpha, beta = (log.replies[1][client].reply.values[name] for name in ("alpha", "beta"))
    soft = [state.models["soft/0"], state.models["soft/1"]]
    by_hand = mix([state.models["cluster/0"], mix(soft, alpha)], beta)
    assert distance(sent["init"], by_hand) < 1e-6


def test_u_of_one_is_the_original(tiny: TinyProblem) -> None:
    a = tiny.run(by_domain(TRAINING))
    b = tiny.run(by_domain(TRAINING, rounds_between_weights=1))
    for one, other in zip(a.states, b.states, strict=True):
        assert all(same(one.models[name], other.models[name]) for name in one.models)
    # and the original lets clients weigh in every round from the first on
    for r in range(1, TRAINING.rounds):
        assert all("alpha" in reply.reply.values for reply in a.replies[r].values())


# --- 15: equal models agree ---------------------------------------------------------------------


def test_where_both_models_are_one_all_labels_match(tiny: TinyProblem) -> None:
    log = tiny.run(FedWCA(TRAINING), tiny.clients[:2])  # one cluster
    for line in log.lines[2:]:
        for health in line["health"].values():
            assert health["matched"] == 1.0
            assert health["without_partner"] == 0
            assert health["beta"] == [0.5, 0.5]
            assert health["alpha"] == [1.0]


# --- 18 and 19: what never changes --------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_the_classifier_never_changes(tiny: TinyProblem, name: str) -> None:
    model = tiny.new_model()
    before = clone(model.classifier.state_dict())
    run(METHODS[name](training=TRAINING), model, tiny.clients)
    assert same(before, model.classifier.state_dict())


def test_without_epochs_a_client_returns_what_it_began_with(tiny: TinyProblem) -> None:
    for answers in tiny.run(FedAvg(STILL)).replies:
        for answer in answers.values():
            assert same(answer.reply.models["local"], tiny.source())


def test_a_rate_of_zero_moves_statistics_but_no_weight(tiny: TinyProblem) -> None:
    source = tiny.source()
    log = tiny.run(FedAvg(replace(TRAINING, lr=0.0, rounds=1)))
    trained = next(iter(log.replies[0].values())).reply.models["local"]
    moved = [name for name in source if not torch.equal(source[name], trained[name])]
    assert moved
    assert all("running_" in name or "num_batches" in name for name in moved)


def test_evaluation_changes_no_buffer_and_draws_no_random_number(tiny: TinyProblem) -> None:
    model = tiny.new_model().train()
    before, random = clone(model.state_dict()), torch.get_rng_state()
    first = evaluate(model, tiny.clients[0].train)
    second = evaluate(model, tiny.clients[0].train, batch_size=7)
    assert same(before, model.state_dict())
    assert torch.equal(random, torch.get_rng_state())
    torch.testing.assert_close(first.logits, second.logits)


# --- 20: determinism ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in METHODS if name != "source_only"])
def test_one_seed_gives_one_result_and_another_another(tiny: TinyProblem, name: str) -> None:
    method = METHODS[name](training=replace(TRAINING, rounds=2))
    first, again, other = (tiny.finals(method, seed=seed) for seed in (0, 0, 1))
    assert all(same(first[client], again[client]) for client in first)
    assert not any(same(first[client], other[client]) for client in first)


# --- 21: labels ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_poisoned_training_labels_change_nothing(
    tiny: TinyProblem, tiny_benchmark: Benchmark, name: str
) -> None:
    poisoned = {}
    for name_of_domain, domain in tiny_benchmark.domains.items():
        wrong = domain.labels.copy()
        for client in tiny.clients:
            if client.domain == name_of_domain:
                wrong[client.train.index] = (wrong[client.train.index] + 1) % 3
        poisoned[name_of_domain] = replace(domain, labels=wrong)
    twin = replace(tiny_benchmark, domains=poisoned)
    assert not np.array_equal(twin.domains["dim"].labels, tiny_benchmark.domains["dim"].labels)
    method = METHODS[name](training=TRAINING)
    a, b = tiny.run(method), tiny.run(method, twin.clients("clean", Partition(2), 0))
    assert [line["accuracy"] for line in a.lines] == [line["accuracy"] for line in b.lines]
    first, second = (final_models(log, method, tiny.clients) for log in (a, b))
    assert all(same(first[name], second[name]) for name in first)


# --- 22: baselines ------------------------------------------------------------------------------


def test_fedavg_does_not_depend_on_the_order_of_clients(tiny: TinyProblem) -> None:
    a = tiny.run(FedAvg(TRAINING)).states[-1].models["global"]
    b = tiny.run(FedAvg(TRAINING), tiny.clients[::-1]).states[-1].models["global"]
    assert distance(a, b) < 1e-5


def test_fedavg_of_one_client_is_local_with_fixed_labels(tiny: TinyProblem) -> None:
    alone = tiny.clients[:1]
    avg = tiny.run(FedAvg(TRAINING), alone)
    local = tiny.run(Local(TRAINING, fixed_labels=True), alone)
    for r in range(1, TRAINING.rounds + 1):
        own = local.memories[r][alone[0].name].models["own"]
        assert same(avg.states[r].models["global"], own)
