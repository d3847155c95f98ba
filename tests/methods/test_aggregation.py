"""`method.aggregation` wherever models are averaged: one poisoned client of eight."""

import dataclasses

import pytest
import torch

from fedwca._support.errors import UserError
from fedwca.core.params import Weights, distance
from fedwca.core.robust import clipped_mean, coordinate_median, trimmed_mean
from fedwca.experiments.config import resolve
from fedwca.methods import METHODS, Client, Method, Record
from tests.support.federation import same

AVERAGING = [n for n, kind in METHODS.items() if "aggregation" in kind.__dataclass_fields__]
CLIENTS = [Client(f"c{k}", "all") for k in range(8)]
SOURCE: Weights = {"conv.weight": torch.zeros(2, 1, 1, 1), "bn.running_var": torch.ones(1)}


def test_methods_that_average_models_have_the_setting_and_no_others() -> None:
    globals_, clusters = ["fedavg", "fedprox", "fedscal"], ["ifca", "ladd", "ladd_plus"]
    assert sorted(AVERAGING) == sorted([*globals_, *clusters, "fedwca", "fedwca_plus"])
    for name in METHODS.keys() - set(AVERAGING):
        with pytest.raises(UserError, match="aggregation"):
            resolve({"method": {"name": name, "aggregation": "median"}})
    with pytest.raises(UserError, match=r"method\.aggregation"):
        resolve({"method": {"name": "fedavg", "aggregation": "krum"}})


def method(name: str, aggregation: str) -> Method:
    kind = METHODS[name]
    more = {"clusters": 1} if name == "ifca" else {"clustering": "domain"}
    known = {f.name for f in dataclasses.fields(kind)}
    return kind(aggregation=aggregation, **{k: v for k, v in more.items() if k in known})


def replies() -> dict[Client, Record]:
    """Seven that say about 1, of unequal size, and one that says a thousand."""
    made = {}
    for k, client in enumerate(CLIENTS):
        value = 1000.0 if k == 3 else 1 + k / 10
        local = {
            "conv.weight": torch.full((2, 1, 1, 1), value),
            "bn.running_var": torch.full((1,), value),
        }
        values = {"samples": torch.tensor(10 + k), "ticket": torch.rand(()).double()}
        made[client] = Record({"local": local}, values)
    return made


def model(name: str, aggregation: str) -> Weights:
    chosen = method(name, aggregation)
    state = chosen.aggregate(chosen.init(SOURCE), replies())
    return state.models.get("global") or state.models["cluster/0"]


@pytest.mark.parametrize("name", AVERAGING)
def test_every_aggregation_reaches_the_model(name: str) -> None:
    locals_ = [reply.models["local"] for reply in replies().values()]
    plain = name.startswith("fedwca")
    weights = [1 / 8 if plain else (10 + k) / 108 for k in range(8)]
    assert same(model(name, "median"), coordinate_median(locals_))
    assert same(model(name, "trimmed_mean"), trimmed_mean(locals_, 0.2))
    assert distance(model(name, "clipped"), clipped_mean(locals_, weights, SOURCE)) < 1e-6
    assert float(model(name, "mean")["bn.running_var"]) > 100
    for robust in ("median", "trimmed_mean", "clipped"):
        assert 1 <= float(model(name, robust)["bn.running_var"]) <= 1.7


@pytest.mark.parametrize("aggregation", ["mean", "median", "trimmed_mean", "clipped"])
def test_a_model_without_replies_does_not_change(aggregation: str) -> None:
    chosen = method("fedavg", aggregation)
    state = chosen.init(SOURCE)
    assert chosen.aggregate(state, {}).models["global"] is SOURCE
