"""Hyper-parameters by benchmark and source domain: the paper's, where the paper has them.

FedWCA, appendix C (detailed experimental settings). What the paper does not give (batch size,
source epochs and schedule) follows SHOT. A config file or --set overrides everything here.
"""

from typing import Any

__all__ = ["defaults"]

Table = dict[str, Any]

_OBJECTS: Table = {
    "data": {"clients_per_domain": 3, "image_size": 256},
    "source": {"lr": 1e-3, "epochs": 50},
    "training": {"epochs": 5, "lr": 1e-4, "ce_weight": 0.3},
}

BENCHMARK_DEFAULTS: dict[str, Table] = {
    # Our own small benchmark: so few steps a round that SHOT's rate for digits, 0.01, is taken.
    "mini-digits": {
        "data": {"source": "handwriting", "clients_per_domain": 3},
        "model": {"backbone": "lenet"},
        "source": {"lr": 0.01, "epochs": 60},
        "training": {"rounds": 20, "epochs": 5, "lr": 0.01, "ce_weight": 0.1},
    },
    "digit-five": {
        "data": {"source": "mnist", "clients_per_domain": 8, "images_per_domain": 34_000},
        "model": {"backbone": "lenet"},
        "source": {"lr": 1e-3, "epochs": 30},
        "training": {"rounds": 100, "epochs": 5, "lr": 1e-3, "ce_weight": 0.1},
    },
    "pacs": {
        **_OBJECTS,
        "model": {"backbone": "resnet18"},
        "source": {**_OBJECTS["source"], "epochs": 100},
        "training": {**_OBJECTS["training"], "rounds": 100},
    },
    "office-home": {
        **_OBJECTS,
        "model": {"backbone": "resnet50"},
        "training": {**_OBJECTS["training"], "rounds": 50},
    },
    # Not in the paper: settings of Office-Home, its larger relative.
    "office-31": {
        **_OBJECTS,
        "model": {"backbone": "resnet50"},
        "training": {**_OBJECTS["training"], "rounds": 50},
    },
    # Anybody's own images: settings of PACS, one client for each folder, fewer rounds.
    "images": {
        **_OBJECTS,
        "data": {**_OBJECTS["data"], "clients_per_domain": 1},
        "model": {"backbone": "resnet18"},
        "training": {**_OBJECTS["training"], "rounds": 20},
    },
}

# T_a, the one value that the paper tunes by benchmark and source.
_TEMPERATURE_A = {
    "digit-five": {"": 0.01, "synth": 0.001},
    "pacs": {"": 0.1},
    "office-home": {"": 0.01, "clipart": 0.1},
}


# One model of IFCA for each target domain.
_TARGETS = {"mini-digits": 4, "digit-five": 4, "pacs": 3, "office-home": 3, "office-31": 2}


def defaults(benchmark: str, source: str, method: str) -> Table:
    """The settings of a benchmark, for one source domain and method."""
    table = {
        section: dict(values) for section, values in BENCHMARK_DEFAULTS.get(benchmark, {}).items()
    }
    if method in ("fedwca", "fedwca_plus") and benchmark in _TEMPERATURE_A:
        by_source = _TEMPERATURE_A[benchmark]
        table["method"] = {"temperature_a": by_source.get(source.lower(), by_source[""])}
    if method == "ifca" and benchmark in _TARGETS:
        table["method"] = {"clusters": _TARGETS[benchmark]}
    if method == "fedpcl" and benchmark in ("pacs", "office-home"):
        table["training"]["rounds"] = 20  # the paper's number for this method
    return table
