"""Default settings by benchmark, source domain and method.

They follow the FedWCA paper, appendix C (detailed experimental settings). Batch size, source epochs
and schedule, which it does not give, follow SHOT. A config file or --set overrides all of them.
"""

from typing import Any

__all__ = ["default_source", "defaults"]

Settings = dict[str, Any]

_OBJECTS: Settings = {
    "data": {"clients_per_domain": 3, "image_size": 256},
    "source": {"lr": 1e-3, "epochs": 50},
    "training": {"epochs": 5, "lr": 1e-4, "ce_weight": 0.3},
}

_OFFICE: Settings = {
    **_OBJECTS,
    "model": {"backbone": "resnet50"},
    "training": {**_OBJECTS["training"], "rounds": 50},
}

BENCHMARK_DEFAULTS: dict[str, Settings] = {
    # Not in the paper. A round has few steps, hence SHOT's learning rate for digits, 0.01.
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
    "office-home": _OFFICE,
    "office-31": _OFFICE,  # not in the paper; Office-Home is similar and larger
    # The user's own images: the settings of PACS with one client per folder and fewer rounds.
    "images": {
        **_OBJECTS,
        "data": {**_OBJECTS["data"], "clients_per_domain": 1},
        "model": {"backbone": "resnet18"},
        "training": {**_OBJECTS["training"], "rounds": 20},
    },
}

# T_a, the only setting that the paper tunes for each benchmark and source.
_TEMPERATURE_A = {
    "digit-five": {"": 0.01, "synth": 0.001},
    "pacs": {"": 0.1},
    "office-home": {"": 0.01, "clipart": 0.1},
}


# IFCA has one model for each target domain.
_TARGETS = {"mini-digits": 4, "digit-five": 4, "pacs": 3, "office-home": 3, "office-31": 2}


def default_source(benchmark: str) -> str:
    """Return the source domain that a benchmark has by default, or ""."""
    return str(BENCHMARK_DEFAULTS.get(benchmark, {}).get("data", {}).get("source", ""))


def defaults(benchmark: str, source: str, method: str) -> Settings:
    """Return the default settings, by section, for a benchmark, source domain and method."""
    table = {
        section: dict(values) for section, values in BENCHMARK_DEFAULTS.get(benchmark, {}).items()
    }
    if method == "fedwca" and benchmark in _TEMPERATURE_A:
        by_source = _TEMPERATURE_A[benchmark]
        table["method"] = {"temperature_a": by_source.get(source.lower(), by_source[""])}
    if method == "fedwca_plus" and benchmark == "digit-five":
        table["training"]["lr"] = 0.01  # SHOT's, for digits
    if method == "ifca" and benchmark in _TARGETS:
        table["method"] = {"clusters": _TARGETS[benchmark]}
    if method == "fedpcl" and benchmark in ("pacs", "office-home"):
        table["training"]["rounds"] = 20  # as in the paper
    return table
