"""FedWCA's parts: clustering, switches, newcomers."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedwca._support.errors import UserError
from fedwca.core.params import Weights
from fedwca.methods import Client, Record, Training
from fedwca.methods.clustered import client_style, cluster_clients, nearest_cluster
from fedwca.methods.fedwca import FedWCA
from fedwca.methods.inference import Outputs
from fedwca.methods.training import Targets
from tests.support.drawn import rng
from tests.support.federation import TinyProblem, same

TRAINING = Training(rounds=3, epochs=1, lr=0.01, batch_size=16)


def state_with(first: list[float], second: list[float]) -> Weights:
    return {
        "backbone.conv1.weight": torch.tensor(first).reshape(1, 1, 1, -1),
        "backbone.conv1.bias": torch.tensor([0.0]),
        "backbone.conv2.weight": torch.tensor(second).reshape(1, 1, 1, -1),
        "backbone.bn.num_batches_tracked": torch.tensor(5),
    }


# Four clients: the first layer pairs {0,1} and {2,3}, the second pairs {0,2} and {1,3}.
FOUR = {
    Client(f"k{k}", domain): Record({"local": state_with(first, second)})
    for k, (domain, first, second) in enumerate(
        [
            ("x", [1.0, 0.0], [1.0, 0.0]),
            ("y", [1.0, 0.1], [0.0, 1.0]),
            ("x", [0.0, 1.0], [1.0, 0.1]),
            ("z", [0.1, 1.0], [0.1, 1.0]),
        ]
    )
}


@pytest.mark.parametrize(
    ("clustering", "layer", "expected"),
    [("finch", 1, [0, 0, 1, 1]), ("finch", 2, [0, 1, 0, 1]), ("domain", 1, [0, 1, 0, 2])],
)
def test_clusters_follow_the_chosen_layer_or_the_domains(
    clustering: str, layer: int, expected: list[int]
) -> None:
    assert list(cluster_clients(clustering, FOUR, layer).values()) == expected


def test_all_takes_every_parameter_but_no_statistic_of_batch_norm() -> None:
    # Layer two is ten times as large, so it decides; the statistics, far larger, must not.
    replies = {}
    for client, reply in FOUR.items():
        state = dict(reply.models["local"])
        state["backbone.conv2.weight"] = 10 * state["backbone.conv2.weight"]
        state["backbone.bn.num_batches_tracked"] = torch.tensor(1000 + len(replies) // 2)
        state["backbone.bn.running_var"] = torch.tensor([1000.0, len(replies) // 2])
        replies[client] = Record({"local": state})
    assert list(cluster_clients("finch", replies, "all").values()) == [0, 1, 0, 1]


@pytest.mark.parametrize("layer", [0, 3, -1])
def test_a_layer_that_does_not_exist_is_refused(layer: int) -> None:
    with pytest.raises(UserError, match="choose 1 to 2"):
        cluster_clients("finch", FOUR, layer)


def test_styles_separate_tones(tiny: TinyProblem) -> None:
    replies = {
        Client(c.name, c.domain): Record(values={"style": client_style(c.train, rng())})
        for c in tiny.clients
    }
    found = cluster_clients("style", replies, 1)
    assert [found[c.name] for c in tiny.clients] == [0, 0, 1, 1]


def test_style_clustering_works_in_a_run(tiny: TinyProblem) -> None:
    log = tiny.run(FedWCA(TRAINING, clustering="style"))
    server = log.lines[-1]["server"]
    assert [server[f"cluster_of/{c.name}"] for c in tiny.clients] == [0, 0, 1, 1]
    assert all("style" in a.reply.values for a in log.replies[0].values())
    assert not any("style" in a.reply.values for a in log.replies[1].values())


def test_a_newcomer_joins_the_nearest_cluster_and_nobody_moves(tiny: TinyProblem) -> None:
    method = FedWCA(TRAINING, clustering="domain")
    late = tiny.clients[1]  # of the first domain
    log = tiny.run(method, lost={0: late.name})
    assert f"cluster_of/{late.name}" not in log.lines[1]["server"]
    sent = log.messages[1][Client(late.name, late.domain)]
    assert set(sent.models) == {"source"}
    server = log.lines[2]["server"]
    assert [server[f"cluster_of/{c.name}"] for c in tiny.clients if c is not late] == [0, 1, 1]
    local = log.replies[1][Client(late.name, late.domain)].reply.models["local"]
    models = [log.states[1].models[f"cluster/{c}"] for c in range(2)]
    assert server[f"cluster_of/{late.name}"] == nearest_cluster(local, models, 1)
    assert "soft/1" in log.messages[2][Client(late.name, late.domain)].models


def test_a_cluster_from_which_nobody_replies_keeps_its_model(tiny: TinyProblem) -> None:
    method = FedWCA(TRAINING, clustering="domain")
    source = tiny.source()
    moved = {name: t + 1 for name, t in source.items()}

    def reply(state: Weights) -> Record:
        return Record({"local": state}, {"samples": torch.tensor(1)})

    a, b = Client("a", "x"), Client("b", "y")
    state = method.aggregate(method.init(source), {a: reply(source), b: reply(moved)})
    after = method.aggregate(state, {a: reply(moved)})
    assert same(after.models["cluster/1"], moved)
    assert same(after.models["cluster/0"], moved)


def outputs(rows: list[list[float]]) -> Outputs:
    return Outputs(torch.tensor(rows), 10 * torch.tensor(rows))


NEAR = outputs([[1.0, 0.0], [0.9, 0.1], [0.1, 0.9], [0.0, 1.0]])
SWAPPED = outputs([[1.0, 0.0], [0.1, 0.9], [0.1, 0.9], [0.0, 1.0]])  # differs on sample 1


def targets_of(init: Outputs = NEAR, other: Outputs = SWAPPED, **fields: Any) -> Targets:
    method = FedWCA(TRAINING, **fields)
    cluster = method._label_by_prototypes(other) if method.two_models else None
    return method._label(init, cluster, rng())


def test_a_mismatched_image_is_mixed_with_a_matched_one_of_its_label() -> None:
    targets = targets_of(label_rule="init")
    assert targets.labels.tolist() == [0, 0, 1, 1]
    assert targets.partner.tolist() == [-1, 0, -1, -1]
    assert targets.used.all()
    assert targets.log["matched"] == 0.75
    assert targets.log["init_won"] == 1


def test_the_rule_decides_whose_label_stands() -> None:
    targets = targets_of(label_rule="cluster")
    assert targets.labels.tolist() == [0, 1, 1, 1]
    assert targets.log["init_won"] == 0


@pytest.mark.parametrize(("no_partner", "used"), [("skip", False), ("keep", True)])
def test_an_image_without_partner_is_skipped_or_kept(no_partner: str, used: bool) -> None:
    lonely = outputs([[1.0, 0.0], [0.0, 1.0], [0.1, 0.9]])
    all_one = outputs([[0.0, 1.0], [0.0, 1.0], [0.1, 0.9]])
    targets = targets_of(lonely, all_one, label_rule="init", no_partner=no_partner)
    assert targets.partner.tolist() == [-1, -1, -1]
    assert targets.used.tolist() == [used, True, True]
    assert targets.log["without_partner"] == 1


def test_switches_remove_parts() -> None:
    plain = targets_of(mixup=False, label_rule="init")
    assert plain.partner.tolist() == [-1] * 4
    assert "without_partner" not in plain.log
    single = targets_of(mixup=False, two_models=False)
    assert single.labels.tolist() == [0, 0, 1, 1]
    assert "matched" not in single.log
    argmax = targets_of(mixup=False, two_models=False, prototypes=False)
    assert argmax.labels.tolist() == [0, 0, 1, 1]


def test_every_ablation_of_labels_runs(tiny: TinyProblem) -> None:
    switches = [
        {"mixup": False},
        {"mixup": False, "two_models": False},
        {"mixup": False, "two_models": False, "fixed_labels": False},
        {"mixup": False, "two_models": False, "prototypes": False},
        {"fixed_labels": False},
        {"prototype_features": "raw"},
        {"benefit_normalisation": "transposed"},
        {"clustering_layer": "all"},
    ]
    finals = []
    for fields in switches:
        method = FedWCA(replace(TRAINING, epochs=2), **{"clustering": "domain", **fields})
        finals.append(tiny.run(method).states[-1].models["cluster/0"])
    assert all(torch.isfinite(t).all() for state in finals for t in state.values())
    assert not same(finals[0], finals[3])
