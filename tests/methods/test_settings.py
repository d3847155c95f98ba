"""Settings of methods are validated, however a method is built."""

from dataclasses import dataclass

import pytest
from pydantic import ValidationError

from fedwca._support.errors import UserError
from fedwca.methods import METHODS, Training, build_method
from fedwca.methods.bounds import Share
from fedwca.methods.fedamp import FedAMP
from fedwca.methods.fedavg import FedAvg
from fedwca.methods.fedpcl import FedPCL
from fedwca.methods.fedprox import FedProx
from fedwca.methods.fedscal import FedSCAl
from fedwca.methods.fedwca import FedWCA
from fedwca.methods.fedwca_plus import FedWCAPlus
from fedwca.methods.ifca import IFCA
from fedwca.methods.ladd import LADD


@dataclass(frozen=True)
class PlainMethod(FedAvg):
    """A method of a user, as a plain dataclass."""

    own_share: Share = 0.5


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (Training, "lr", -1.0),
        (Training, "batch_size", 1),
        (Training, "momentum", 1.0),
        (Training, "schedule", "linear"),
        (FedWCA, "rounds_between_weights", 0),
        (FedWCA, "own_weight", 1.5),
        (FedProx, "mu", -1.0),
        (FedAMP, "attraction", 1.5),
        (FedAMP, "pull", -1.0),
        (IFCA, "clusters", 0),
        (LADD, "share", 2.0),
        (LADD, "regularisation", -1.0),
        (FedPCL, "temperature", 0.0),
        (FedSCAl, "client_weight", -1.0),
        (FedSCAl, "threshold", 2.0),
        (FedWCAPlus, "trust", -1.0),
    ],
)
def test_direct_construction_rejects_invalid_values(
    kind: type[object], field: str, value: object
) -> None:
    with pytest.raises(ValidationError, match="Input should be") as error:
        kind(**{field: value})
    assert error.value.errors()[0]["loc"] == (field,)


def test_contradicting_switches_are_rejected() -> None:
    with pytest.raises(ValidationError, match=r"method\.mixup"):
        FedWCA(two_models=False)


@pytest.mark.parametrize(
    ("settings", "training", "named"),
    [
        ({"name": "fedprox", "mu": -1}, {}, "method.mu"),
        ({"name": "fedprox", "mus": 1}, {}, "did you mean 'mu'?"),
        ({"name": "fedprx"}, {}, "did you mean 'fedprox'?"),
        ({"name": "fedprox"}, {"lr": "fast"}, "training.lr"),
        ({"name": "fedprox", "training": {}}, {}, "[training]"),
        ({"name": "fedwca", "prototypes": False}, {}, "method.two_models"),
    ],
)
def test_built_methods_name_the_invalid_setting(
    settings: dict[str, object], training: dict[str, object], named: str
) -> None:
    with pytest.raises(UserError) as error:
        build_method(settings, training)
    assert named in str(error.value)


def test_a_plain_dataclass_is_validated_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "plain", PlainMethod)
    method = build_method({"name": "plain", "own_share": 0.25, "mean": "plain"}, {"rounds": 7})
    assert method == PlainMethod(Training(rounds=7), mean="plain", own_share=0.25)
    with pytest.raises(UserError, match=r"method\.own_share"):
        build_method({"name": "plain", "own_share": 2}, {})
    with pytest.raises(UserError, match=r"method\.mean"):
        build_method({"name": "plain", "mean": "harmonic"}, {})
