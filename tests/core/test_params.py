"""Weights as dicts of tensors."""

import math
import weakref
from collections.abc import Iterator

import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from fedwca.core.params import (
    Weights,
    clone,
    conv_layers,
    distance,
    flatten,
    is_batch_norm_statistic,
    is_finite,
    mix,
    unflatten,
)
from tests.support.drawn import for_all, normal


def model(value: float, steps: int = 0) -> Weights:
    return {"w": torch.tensor([value, -value]), "bn.num_batches_tracked": torch.tensor(steps)}


# --- mix ------------------------------------------------------------------------------------


def test_mix_by_hand_keeps_the_least_integer() -> None:
    mixed = mix([model(2.0, steps=100), model(6.0, steps=7)], [0.25, 0.75])
    assert mixed["w"].tolist() == [5.0, -5.0]  # .25·2 + .75·6
    assert mixed["bn.num_batches_tracked"].item() == 7
    assert mixed["bn.num_batches_tracked"].dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_mix_keeps_the_type(dtype: torch.dtype) -> None:
    mixed = mix([{"w": torch.ones(2, dtype=dtype)}, {"w": torch.zeros(2, dtype=dtype)}], [0.5, 0.5])
    assert mixed["w"].dtype == dtype
    assert mixed["w"].tolist() == [0.5, 0.5]


def test_mix_takes_a_tensor_of_weights() -> None:
    weights = torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert mix([model(1.0), model(3.0)], weights)["w"].tolist() == [2.0, -2.0]


def test_mix_sums_in_double_precision() -> None:
    # In float32 1e8 + 1 = 1e8 and the one would be lost.
    models = [{"w": torch.tensor([v])} for v in (1e8, 1.0, -1e8)]
    assert mix(models, [1.0, 1.0, 1.0])["w"].item() == 1.0


@for_all(st.integers(1, 40), st.integers(0, 1000))
def test_a_plain_mean_of_equal_models_is_the_model_to_the_bit(count: int, seed: int) -> None:
    w = normal(50, seed=seed)
    assert torch.equal(mix([{"w": w}] * count, [1 / count] * count)["w"], w)


@for_all(st.integers(0, 1000))
def test_mix_with_a_unit_vector_picks_a_model_to_the_bit(seed: int) -> None:
    models = [{"w": row} for row in normal(3, 20, seed=seed)]
    assert torch.equal(mix(models, [0.0, 1.0, 0.0])["w"], models[1]["w"])


def test_mix_shares_no_memory_and_changes_no_input() -> None:
    first, second = model(1.0, steps=3), model(2.0)
    mixed = mix([first, second], [1.0, 0.0])
    mixed["w"].fill_(9)
    mixed["bn.num_batches_tracked"].fill_(9)
    assert first["w"].tolist() == [1.0, -1.0]
    assert first["bn.num_batches_tracked"].item() == 3
    assert second["w"].tolist() == [2.0, -2.0]


@pytest.mark.parametrize(
    ("models", "weights", "message"),
    [
        *(([model(1.0), model(2.0)], w, "as many weights") for w in ([], [1.0], [0.2, 0.3, 0.5])),
        ([], [], "at least one model"),
        (
            [model(1.0), {"bn.num_batches_tracked": torch.tensor(0)}],
            *([0.5, 0.5], r"differ in 1 names.*w"),
        ),
        # A tensor of another shape is never broadcast.
        (
            [{"w": torch.zeros(3)}, {"w": torch.ones(1)}],
            *([0.5, 0.5], r"w is \(3,\) here, \(1,\) there"),
        ),
    ],
)
def test_mix_refuses_what_does_not_fit(
    models: list[Weights], weights: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        mix(models, weights)


# --- copies ---------------------------------------------------------------------------------


def test_a_clone_is_equal_and_shares_nothing() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    copy = clone({"w": weight})
    assert torch.equal(copy["w"], weight)
    assert not copy["w"].requires_grad
    copy["w"].zero_()
    assert weight.tolist() == [1.0, 2.0]


# --- distance -------------------------------------------------------------------------------


def test_distance_is_the_largest_absolute_difference() -> None:
    a = {"w": torch.tensor([1.0, -2.0]), "n": torch.tensor(5), "empty": torch.zeros(0)}
    b = {"w": torch.tensor([1.5, 1.0]), "n": torch.tensor(4), "empty": torch.zeros(0)}
    assert distance(a, b) == 3.0  # |-2 - 1|
    assert distance(a, a) == 0.0
    assert distance(a, {**b, "n": torch.tensor(-5)}) == 10.0  # integers count
    assert math.isnan(distance(a, {**b, "w": torch.tensor([9.0, math.nan])}))
    assert math.isnan(distance({**a, "w": torch.tensor([math.nan, 0.0])}, b))


@pytest.mark.parametrize("nothing", [{}, {"x": torch.zeros(0)}])
def test_models_without_numbers_are_no_distance_apart(nothing: Weights) -> None:
    assert distance(nothing, nothing) == 0.0


# --- layers and names -----------------------------------------------------------------------


def test_conv_layers_come_in_order_with_their_biases() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 5), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3, bias=False), nn.Linear(2, 2)
    )
    names = conv_layers({f"backbone.{n}": t for n, t in model.state_dict().items()})
    assert names == [["backbone.0.weight", "backbone.0.bias"], ["backbone.2.weight"]]


def test_shortcuts_and_four_dimensional_tensors_that_are_no_weight_are_no_layers() -> None:
    four = torch.zeros(1, 1, 1, 1)
    weights = {"layer2.0.conv1.weight": four, "layer2.0.downsample.0.weight": four}
    assert conv_layers(weights) == [["layer2.0.conv1.weight"]]
    assert conv_layers({"position.table": four}) == []


def test_the_first_layer_of_a_lenet_flattens_to_1520_numbers() -> None:
    weights = {f"conv.{n}": t for n, t in nn.Conv2d(3, 20, 5).state_dict().items()}
    vector = flatten(weights, conv_layers(weights)[0])
    assert vector.shape == (3 * 5 * 5 * 20 + 20,)
    assert vector.dtype == torch.float64


def test_flatten_follows_the_names_and_detaches() -> None:
    weights = {"a": nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]])), "b": torch.tensor([5.0])}
    vector = flatten(weights, ["b", "a"])
    assert vector.tolist() == [5, 1, 2, 3, 4]
    assert not vector.requires_grad


def test_unflatten_gives_back_what_was_flattened() -> None:
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    weights = {"a": a, "n": torch.tensor(7), "b": torch.ones(1)}
    back = unflatten(torch.tensor([5, 1, 2, 3, 4], dtype=torch.float64), ["b", "a"], weights)
    found = {name: tensor.tolist() for name, tensor in back.items()}
    assert found == {"b": [5.0], "a": a.tolist()}
    assert {tensor.dtype for tensor in back.values()} == {torch.float32}
    with pytest.raises(RuntimeError):
        unflatten(torch.zeros(4), ["b", "a"], weights)


def test_batch_norm_statistics_are_told_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    names = list(model.state_dict())
    statistics = [name for name in names if is_batch_norm_statistic(name)]
    assert statistics == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert [n for n in names if n not in statistics] == ["0.weight", "0.bias", "1.weight", "1.bias"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_number_that_is_none_makes_a_model_not_finite(bad: float) -> None:
    assert is_finite(model(1.0))
    assert is_finite({"large": torch.full((10,), 3e38)})
    spoilt = model(1.0)
    spoilt["w"][0] = bad
    assert not is_finite(spoilt)
    # Two infinities of different sign do not cancel.
    assert not is_finite({"w": torch.tensor([math.inf, -math.inf])})


class _Held(dict[str, torch.Tensor]):
    """A model of which one can ask whether it is still there."""

    __hash__ = object.__hash__


def test_models_are_mixed_one_at_a_time() -> None:
    alive = weakref.WeakSet[_Held]()
    most = 0

    def coming() -> Iterator[Weights]:
        nonlocal most
        for number in range(5):
            held = _Held(model(float(number)))
            alive.add(held)
            most = max(most, len(alive))
            yield held
            del held

    mixed = mix(coming(), [0.2] * 5)
    assert most <= 2
    assert distance(mixed, mix([model(float(n)) for n in range(5)], [0.2] * 5)) == 0
