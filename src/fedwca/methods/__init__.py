"""The registry of methods: a new one is a file, and a line in `METHODS`."""

from collections.abc import Mapping
from typing import Any, cast

from fedwca._support.errors import UserError, did_you_mean
from fedwca._support.settings import abbreviate, validate_settings
from fedwca.methods.base import Adaptation, Client, Method, Record
from fedwca.methods.fedamp import FedAMP
from fedwca.methods.fedavg import FedAvg
from fedwca.methods.fedpcl import FedPCL
from fedwca.methods.fedprox import FedProx
from fedwca.methods.fedscal import FedSCAl
from fedwca.methods.fedwca import FedWCA
from fedwca.methods.fedwca_plus import FedWCAPlus
from fedwca.methods.ifca import IFCA
from fedwca.methods.ladd import LADD
from fedwca.methods.ladd_plus import LADDPlus
from fedwca.methods.local import Local
from fedwca.methods.source_only import SourceOnly
from fedwca.methods.training import Training

__all__ = [
    "METHODS",
    "Adaptation",
    "Client",
    "Method",
    "Record",
    "Training",
    "build_method",
    "check_method_name",
]

METHODS: dict[str, type[Method]] = {
    "source_only": SourceOnly,
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedamp": FedAMP,
    "ifca": IFCA,
    "ladd": LADD,
    "ladd_plus": LADDPlus,
    "fedpcl": FedPCL,
    "fedscal": FedSCAl,
    "fedwca": FedWCA,
    "fedwca_plus": FedWCAPlus,
}


def check_method_name(name: object) -> str:
    """Return the name of a registered method; raise UserError for any other."""
    if not isinstance(name, str) or name not in METHODS:
        raise UserError(f"there is no method {abbreviate(name)}: {did_you_mean(name, METHODS)}")
    return name


def build_method(settings: Mapping[str, Any], training: Mapping[str, Any]) -> Method:
    """Build the method of [method] and [training]; raise UserError for an invalid setting."""
    own = dict(settings)
    name = check_method_name(own.pop("name", "fedwca"))
    if "training" in own:
        raise UserError("method.training is a section of its own: write it as [training]")
    own["training"] = validate_settings(Training, "training", training)
    return cast(Method, validate_settings(METHODS[name], "method", own))
