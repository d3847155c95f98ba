"""How the rival methods put their formulas together: which labels, which rows, which model.

The formulas themselves stand in test_rivals.py. Here each number is one that only the right wiring
gives: two things that might be confused (server and client, teacher and student, the first round
and this one) are chosen such that they lead to different results.
"""

import math
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedwca.core.params import Weights
from fedwca.data.augment import Transform, weak_view
from fedwca.data.images import UnlabeledImages
from fedwca.methods import Client, Record, Training
from fedwca.methods.fedamp import FedAMP
from fedwca.methods.fedavg import FedAvg
from fedwca.methods.fedpcl import FedPCL
from fedwca.methods.fedscal import FedSCAl
from fedwca.methods.ifca import IFCA
from fedwca.methods.ladd import LADD
from fedwca.methods.training import Losses, Objective, Step, Targets, train
from fedwca.models import DomainModel
from fedwca.models.backbones.base import Backbone
from tests.support.drawn import rng
from tests.support.federation import TinyProblem, same

TRAINING = Training(rounds=3, epochs=2, lr=0.01, batch_size=16)
CPU = torch.device("cpu")
STILL = replace(TRAINING, epochs=0)  # no training: what a client keeps is what it started from
LOOK = replace(TRAINING, epochs=1, lr=0.0)  # losses are measured, but nothing moves
WEIGHT = "bottleneck.linear.weight"


# --- a problem that can be solved on paper ----------------------------------------------------


class Flat(Backbone):
    """Images as they are, in a row."""

    out_features = 3

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


def reader() -> DomainModel:
    """Reads logits off images of one pixel: channel m is the logit of class m, times a matrix."""
    linear = nn.Linear(3, 3, bias=False)
    classifier = nn.Linear(3, 3)
    nn.init.eye_(linear.weight)
    nn.init.eye_(classifier.weight)
    nn.init.zeros_(classifier.bias)
    return DomainModel(Flat(), nn.Sequential(OrderedDict(linear=linear)), classifier).eval()


def pixels_of(powers: list[list[int]]) -> UnlabeledImages:
    """One-pixel images by which the reader gives class m a probability ∝ 2^powers[m]."""
    scale = 1 / (255 * math.log(2))
    pixels = np.array(powers, dtype=np.uint8)[:, None, None, :]
    in_units_of_log_2 = Transform(mean=(0.0, 0.0, 0.0), std=(scale, scale, scale))
    return UnlabeledImages(pixels, np.arange(len(powers)), in_units_of_log_2)


def logs(rows: list[list[float]]) -> Tensor:
    """Logits whose softmax is the given rows."""
    return torch.tensor(rows).log()


def a_step(rows: list[int], logits: Tensor, second: Tensor | None = None) -> Step:
    """A batch of which the model says `logits`, and that has no labels to learn from."""
    none = torch.empty(0, dtype=torch.int64)
    pixels = torch.zeros(len(rows), 3, 1, 1)
    step = Step(torch.tensor(rows), pixels, logits, logits, none, none)
    return step if second is None else step._replace(views=(second,))


def weighed(losses: Losses, name: str) -> list[float]:
    """A loss's weight and its value."""
    weight, value = losses[name]
    return [weight, value.item()]


def one_weight(value: float) -> Weights:
    """A model of a single parameter."""
    return {"layer.weight": torch.tensor([value])}


def value_of(model: Weights) -> float:
    return float(model["layer.weight"])


def the_round(number: int) -> dict[str, Tensor]:
    return {"round": torch.tensor(number)}


# --- FedPCL -----------------------------------------------------------------------------------

# With τ = 1/(5·log 2), a cosine of c counts 2^(5c). The two clients' prototypes of class 0 lie at
# right angles, so that their mean (1.5, 2) has cosines 3/5 and 4/5 with the axes.
TAU = 1 / (5 * math.log(2))
TWO_SETS = [[[3.0, 0.0], [0.0, 1.0]], [[0.0, 4.0], [0.0, 1.0]]]
FILLED_SETS = [[[3.0, 0.0], [0.0, 1.0]], [[0.0, 4.0], [9.0, 9.0]]]  # the (9, 9) is not present


def pcl_losses(sets: list[list[list[float]]], present: list[list[bool]]) -> Losses:
    message = Record(values={"prototypes": torch.tensor(sets), "present": torch.tensor(present)})
    features = torch.tensor([[2.0, 0.0], [7.0, 7.0], [0.0, 5.0]])  # nothing is wanted of the second
    step = Step(
        rows=torch.tensor([4, 5, 6]),
        x=torch.zeros(3, 1),
        features=features,
        logits=torch.zeros(3, 2),
        wanted=torch.tensor([0, 2]),
        target=torch.tensor([0, 1]),
    )
    return FedPCL(TRAINING, temperature=TAU)._objective(message, CPU).loss(step)


@pytest.mark.parametrize(
    ("sets", "present"),
    [
        (TWO_SETS, [[True, True], [True, True]]),
        # A class that the second client lacks is filled by what the first has: the same sets.
        (FILLED_SETS, [[True, True], [True, False]]),
    ],
)
def test_fedpcls_losses_are_those_of_the_mean_and_the_mean_of_those_of_each(
    sets: list[list[list[float]]], present: list[list[bool]]
) -> None:
    """Of (2, 0), class 0, and (0, 5), class 1, against prototypes of classes 0 and 1:

    set       cosines       2^(5c)      p      |  cosines       2^(5c)      p
    first     1, 0          32, 1       32/33  |  0, 1          1, 32       32/33
    second    0, 0          1, 1        1/2    |  1, 1          32, 32      1/2
    mean      3/5, 0        8, 1        8/9    |  4/5, 1        16, 32      2/3

    Global: -(log 8/9 + log 2/3)/2. Personal: the mean of -log 32/33 and -log 1/2.
    """
    losses = pcl_losses(sets, present)
    scale = TAU / 0.07
    assert weighed(losses, "global") == pytest.approx([scale, math.log(27 / 16) / 2], rel=1e-5)
    assert weighed(losses, "personal") == pytest.approx([scale, math.log(33 / 16) / 2], rel=1e-5)


@pytest.mark.parametrize(
    "training",
    [
        replace(TRAINING, rounds=1),  # the first round has no prototypes to learn from
        replace(TRAINING, lr=0.0, weight_decay=0.5),
    ],
)
def test_fedpcl_without_a_step_moves_nothing_but_the_bottlenecks_statistics(
    tiny: TinyProblem, training: Training
) -> None:
    norm = "bottleneck.norm"
    statistics = {f"{norm}.running_mean", f"{norm}.running_var", f"{norm}.num_batches_tracked"}
    source, finals = tiny.source(), tiny.finals(FedPCL(training)).values()
    moved = {n for n in source if not all(torch.equal(final[n], source[n]) for final in finals)}
    assert moved == statistics


# --- FedSCAl ----------------------------------------------------------------------------------

# What the server model says: sure of classes 0, 1, nothing, and 2 (1024 : 1 : 1 is above 0.99).
SERVED = [[10, 0, 0], [0, 10, 0], [0, 0, 0], [0, 0, 10]]
# The batch is images 3, 1, 2, and of its second view the model says:
SECOND = [[1 / 2, 1 / 3, 1 / 6], [3 / 8, 1 / 8, 1 / 2], [1 / 4, 1 / 4, 1 / 2]]


def scal_losses(method: FedSCAl, client: list[list[float]]) -> Losses:
    objective = method.objective(reader(), pixels_of(SERVED), rng())
    return objective.loss(a_step([3, 1, 2], logs(client), logs(SECOND)))


def test_fedscal_agrees_with_the_clients_labels_and_with_the_servers_of_the_same_images() -> None:
    """The client says 0, 2, 2, of which the second view has 1/2 each: log 2.

    The server says 2 of image 3, 1 of image 1, and nothing of image 2: (log 6 + log 8)/2. Its
    labels of images 0, 1 instead would give (log 2 + log 8)/2.
    """
    client = [[0.98, 0.01, 0.01], [0.01, 0.01, 0.98], [0.01, 0.01, 0.98]]
    losses = scal_losses(FedSCAl(TRAINING, adaptive=False), client)
    assert weighed(losses, "client") == pytest.approx([3.0, math.log(2)], rel=1e-5)
    assert weighed(losses, "server") == pytest.approx([0.3, math.log(48) / 2], rel=1e-5)


def test_fedscals_threshold_adapts_to_the_servers_predictions() -> None:
    """The server's entropies are (a, a, b, a), a < b: mean - median = (b - a)/4, deviation
    √3·(b - a)/4, so the skewness 3/√3 = 1.7 is clipped, and the bar rises from 0.8 to 0.95.

    The client's 0.9 is then not enough, its 0.98 for class 2 of the last image is: log 2.
    """
    client = [[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.01, 0.01, 0.98]]
    plain = scal_losses(FedSCAl(TRAINING, adaptive=False), client)["client"][1]
    # classes 0, 1, 2, of which the second view has 1/2, 1/8, 1/2
    assert plain.item() == pytest.approx(math.log(32) / 3, rel=1e-5)
    adapted = scal_losses(FedSCAl(TRAINING), client)["client"][1]
    assert adapted.item() == pytest.approx(math.log(2), rel=1e-5)


def test_fedscals_second_view_is_a_distorted_one(tiny: TinyProblem) -> None:
    images = tiny.clients[0].train
    (view,) = FedSCAl(TRAINING).objective(tiny.new_model(), images, rng(5)).views
    x = images.batch(torch.arange(6))
    first, second = view(x), view(x)
    expected = rng(5)
    assert torch.equal(first, weak_view(x, expected))
    assert torch.equal(second, weak_view(x, expected))  # drawn again for every batch
    assert not torch.equal(first, x)
    assert not torch.equal(first, second)


def test_the_second_view_is_of_the_batchs_own_images_and_goes_through_the_model() -> None:
    """A view of twice the pixels: the reader says twice the logits, and nothing of mixed images."""
    images = pixels_of([[1, 0, 0], [0, 2, 0], [0, 0, 3]])
    labels = torch.tensor([0, 1, 2])
    partner = torch.tensor([-1, 2, -1])
    targets = Targets(labels, partner, torch.ones(3, dtype=torch.bool), share=0.5)
    steps: list[Step] = []

    def loss(step: Step) -> Losses:
        steps.append(step)
        return {}

    aim = Objective(loss, (lambda x: 2 * x,))
    train(reader(), images, lambda: targets, LOOK, rng(), round=0, objective=aim)
    (step,) = steps
    assert len(step.logits) == 4  # three images and a mixed one
    torch.testing.assert_close(step.own_logits, images.batch(step.rows).flatten(1))
    torch.testing.assert_close(step.views[0], 2 * step.own_logits)


@pytest.mark.parametrize("method", [FedAvg(TRAINING), FedSCAl(TRAINING)])
def test_batch_norm_counts_one_step_a_batch(method: FedAvg, tiny: TinyProblem) -> None:
    images, name = tiny.clients[0].train, "bottleneck.norm.num_batches_tracked"
    message = method.init(tiny.source())
    adapted = method.adapt(tiny.new_model(), images, message, Record(), rng())
    steps = adapted.reply.models["local"][name] - message.models["global"][name]
    assert len(images) == 26  # 16 and 10 images, twice
    assert int(steps) == 4


# --- FedAMP -----------------------------------------------------------------------------------


def _reply(local: Weights, samples: int = 1, **values: Tensor) -> Record:
    return Record({"local": local}, {"samples": torch.tensor(samples), **values})


def test_fedamps_sigma_stays_that_of_the_first_round() -> None:
    """0 and 2 are d = 4 = σ apart: each gives the other e^-1/2. Then 0 and 4: e^(-16/4)/2, where a
    new σ = 16 would give e^-1/2 again.
    """
    method = FedAMP(TRAINING)
    near, far = Client("near"), Client("far")
    state = method.init(one_weight(0.0))
    for distance, fading in ((2.0, math.exp(-1)), (4.0, math.exp(-4))):
        replies = {near: _reply(one_weight(0.0)), far: _reply(one_weight(distance))}
        state = method.aggregate(state, replies)
        expected = [1 - fading / 2, fading / 2]
        assert state.values["attention/near"].tolist() == pytest.approx(expected)
        assert state.values["attention/far"].tolist() == pytest.approx(expected[::-1])
        cloud = method.send(state, near).models["cloud"]
        assert value_of(cloud) == pytest.approx(distance * fading / 2)
    assert float(state.values["sigma"]) == 4


def test_a_fedamp_client_starts_from_its_own_model_and_not_from_the_cloud_model() -> None:
    own, cloud = {WEIGHT: 2 * torch.eye(3)}, {WEIGHT: 5 * torch.eye(3)}
    message, memory = Record({"cloud": cloud}, the_round(1)), Record({"own": own})
    images = pixels_of([[1, 0, 0], [0, 1, 0]])
    still = FedAMP(STILL).adapt(reader(), images, message, memory, rng())
    assert same(still.reply.models["local"], own)
    assert same(still.memory.models["own"], own)
    # The cloud model is what it is pulled to: ½‖2·1 - 5·1‖² = ½·3·9.
    look = FedAMP(LOOK).adapt(reader(), images, message, memory, rng())
    assert look.health["loss_proximal"] == pytest.approx(13.5)


# --- IFCA -------------------------------------------------------------------------------------


def test_a_cluster_of_ifca_that_nobody_picks_keeps_its_model() -> None:
    method = IFCA(TRAINING, clusters=2)
    models = {"source": 0.0, "cluster/0": 1.0, "cluster/1": 7.0}
    state = Record({name: one_weight(value) for name, value in models.items()}, the_round(1))
    first = torch.tensor(0)
    replies = {
        Client("a"): _reply(one_weight(2.0), samples=1, pick=first),
        Client("b"): _reply(one_weight(6.0), samples=3, pick=first),
    }
    for _ in range(2):
        state = method.aggregate(state, replies)
        assert value_of(state.models["cluster/0"]) == 5  # (2 + 3·6)/4
        assert value_of(state.models["cluster/1"]) == 7
        assert value_of(state.models["source"]) == 0


def test_an_empty_group_of_ifca_has_the_source_model() -> None:
    ticket = torch.tensor(0.5, dtype=torch.float64)
    replies = {Client("a"): _reply(one_weight(2.0), ticket=ticket)}
    method = IFCA(TRAINING, clusters=2)
    state = method.aggregate(method.init(one_weight(9.0)), replies)
    assert [value_of(state.models[f"cluster/{c}"]) for c in range(2)] == [2, 9]


# --- LADD -------------------------------------------------------------------------------------

# Logits in units of log 2: the cluster model says the image itself, (a, b, c), the teacher (2b, 0,
# a/2). So of (2, 0, 0) the cluster says 4:1:1 and the teacher 1:1:2, of (0, 1, 0) the cluster says
# 1:2:1 and the teacher 4:1:1. Only 4:1:1 is above the threshold.
TEACHER = [[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [0.5, 0.0, 0.0]]
IMAGES = [[2, 0, 0], [2, 0, 0], [2, 0, 0], [0, 1, 0]]
SELF_TRAINED = LADD(LOOK, threshold=0.6, share=0.0)


def ladd_message(**models: list[list[float]]) -> Record:
    states = {name: {WEIGHT: torch.tensor(rows)} for name, rows in models.items()}
    return Record(states, the_round(1))


def test_ladd_learns_the_confident_labels_of_its_teacher() -> None:
    """Only the last image is kept, with the teacher's label 0, to which the cluster gives 1/4.

    By the cluster model it would be the first three, with label 0 and a loss of log 6/4.
    """
    message = ladd_message(cluster=torch.eye(3).tolist(), teacher=TEACHER)
    adapted = SELF_TRAINED.adapt(reader(), pixels_of(IMAGES), message, Record(), rng())
    assert adapted.health["kept"] == 0.25
    assert adapted.health["loss_ce"] == pytest.approx(math.log(4), rel=1e-5)
    assert torch.equal(adapted.reply.models["local"][WEIGHT], torch.eye(3))


def test_ladd_without_a_teacher_learns_from_its_start() -> None:
    message = ladd_message(cluster=torch.eye(3).tolist())
    adapted = SELF_TRAINED.adapt(reader(), pixels_of(IMAGES), message, Record(), rng())
    assert adapted.health["kept"] == 0.75
    assert adapted.health["loss_ce"] == pytest.approx(math.log(6 / 4), rel=1e-5)


def test_ladds_teacher_from_round_0_on_is_sent_from_the_next_round() -> None:
    """Cluster models 2, then 6: the teacher is their mean, and the start is still the last one."""
    method = LADD(TRAINING, clustering="domain", teacher_start=0)
    client = Client("a", "one")
    state = method.init(one_weight(0.0))
    assert set(method.send(state, client).models) == {"source"}
    for local, teacher in ((2.0, 2.0), (6.0, 4.0)):
        state = method.aggregate(state, {client: _reply(one_weight(local))})
        message = method.send(state, client)
        assert value_of(message.models["cluster"]) == local
        assert value_of(message.models["teacher"]) == teacher


def test_ladd_distils_the_source_models_outputs_on_selected_images_of_the_batch() -> None:
    """Softened by ½, logits 2·log q say q. The batch is images 3, 2, 1, of which 2 is not kept.

    image  source's q       student's -log₂ p   Σ q·(-log₂ p)
    3      ½, ¼, ¼          1, 2, 2             1.5
    1      ¼, ¼, ½          2, 1, 2             1.75

    The mean over two images and three classes is 3.25/6·log 2 = 13/24·log 2; with the q of images
    0, 1, 2 in the places of 3, 2, 1 it would be (1.75 + 1.75)/6·log 2.
    """
    source = 2 * logs(
        [[1 / 4, 1 / 2, 1 / 4], [1 / 4, 1 / 4, 1 / 2], [1 / 4, 1 / 4, 1 / 2], [1 / 2, 1 / 4, 1 / 4]]
    )
    kept = torch.tensor([True, True, False, True])
    student = logs([[1 / 2, 1 / 4, 1 / 4], [1 / 4, 1 / 4, 1 / 2], [1 / 4, 1 / 2, 1 / 4]])
    losses = (
        LADD(TRAINING, regularisation=0.7)._objective(source, kept).loss(a_step([3, 2, 1], student))
    )
    assert weighed(losses, "distillation") == pytest.approx([0.7, 13 / 24 * math.log(2)], rel=1e-5)


def test_ladd_distils_remembered_outputs_and_not_its_teachers() -> None:
    """The last image alone is kept; of it the source said nothing: q = ⅓ each.

    The cluster says 1:2:1, so -log₂ p = 2, 1, 2, and the mean over classes of q·(-log p) is
    (5/3)/3·log 2.
    """
    message = ladd_message(cluster=torch.eye(3).tolist(), teacher=TEACHER)
    said = torch.tensor([[8.0, 0.0, 0.0]] * 3 + [[0.0, 0.0, 0.0]])
    memory = Record(values={"source_logits": said})
    adapted = SELF_TRAINED.adapt(reader(), pixels_of(IMAGES), message, memory, rng())
    expected = 5 / 9 * math.log(2)
    assert adapted.health["loss_distillation"] == pytest.approx(expected, rel=1e-5)
    assert torch.equal(adapted.memory.values["source_logits"], said)


def test_fedamps_sigma_waits_for_two_different_models() -> None:
    """A client that was alone in the first round must not fix σ for later rounds."""
    method = FedAMP(TRAINING)
    alone = {Client("a"): _reply(one_weight(0.0))}
    state = method.aggregate(method.init(one_weight(0.0)), alone)
    assert "sigma" not in state.values
    assert state.values["attention/a"].tolist() == [1.0]
    state = method.aggregate(state, {**alone, Client("b"): _reply(one_weight(10.0))})
    assert float(state.values["sigma"]) == 100.0  # (10 - 0)²


def test_ladds_mean_teacher_does_not_count_a_round_without_replies() -> None:
    method = LADD(TRAINING, teacher_start=0, clustering="domain")
    state, client = method.init(one_weight(0.0)), Client("a", "x")
    for replies in ({client: _reply(one_weight(2.0))}, {}, {client: _reply(one_weight(8.0))}):
        state = method.aggregate(state, replies)
    assert int(state.values["teacher_rounds"]) == 2
    assert value_of(state.models["teacher/0"]) == 5.0  # (2 + 8) / 2
