"""The tables of the paper and the scales at which they can be reproduced."""

from typing import Any, Literal, NamedTuple

from fedwca._support.errors import UserError, did_you_mean
from fedwca.data.benchmarks.digit_five import DIGIT_FIVE
from fedwca.data.benchmarks.mini_digits import DOMAINS
from fedwca.data.benchmarks.object_benchmarks import OFFICE31, OFFICE_HOME, PACS

__all__ = [
    "DOMAINS_OF",
    "LOOP",
    "ONE_ROUND",
    "SCALES",
    "SEEDS",
    "TABLES",
    "Row",
    "Scale",
    "TableSpec",
    "by_method",
    "check_scale",
    "check_table",
    "seed_settings",
]

Settings = tuple[tuple[str, Any], ...]
Scale = Literal["paper", "small", "tiny"]


# --- tables -------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One row of a table: a method with some settings.

    Attributes:
        name: as printed, and as `--method` selects it.
        method: its name in METHODS.
        settings: what differs from the benchmark's defaults.
        ours: whether it is a full method of ours, which is tested against the others.
        loop: the settings of [training] that are those of fedwca_plus, while the rest of `LOOP` is
            as in fedwca; None: all are the method's own.
    """

    name: str
    method: str
    settings: Settings = ()
    ours: bool = False
    loop: tuple[str, ...] | None = None


class TableSpec(NamedTuple):
    """What a table of the paper compares.

    Attributes:
        description: one line for the list of tables.
        rows: empty if they depend on the model (`layers`) or on METHODS (`all`).
        kind: what its cells hold.
    """

    description: str
    rows: tuple[Row, ...] = ()
    kind: Literal["accuracy", "clusters"] = "accuracy"


OURS = ("fedwca", "fedwca_plus")
LOOP = ("lr", "batch_norm", "consistency")  # of [training], in which fedwca_plus differs
ONE_ROUND: Settings = (("training.rounds", 1),)  # clusters exist after the first


def by_method(*names: str) -> tuple[Row, ...]:
    """Return a row for each method, with its default settings."""
    return tuple(Row(name, name, ours=name in OURS) for name in names)


def _variants(full: str, settings: dict[str, dict[str, Any]]) -> tuple[Row, ...]:
    """Return rows of fedwca with these settings of [method]; `full` is the complete method."""
    return tuple(
        Row(name, "fedwca", tuple((f"method.{k}", v) for k, v in chosen.items()), name == full)
        for name, chosen in settings.items()
    )


_WEIGHTS = ("one_hot", "equal", "one_equal", "one_equal_adaptive", "local")


def _without(part: str) -> tuple[str, ...]:
    return tuple(name for name in LOOP if name != part)


# What turns off each part of fedwca_plus that is no setting of [training].
_OFF: dict[str, tuple[str, Any]] = {
    "stability": ("method.trust", 0.0),
    "momentum": ("method.momentum", 0.0),
    "clusters": ("method.deploy", "shared"),
}


def _all_off_but(part: str) -> Settings:
    return tuple(off for name, off in _OFF.items() if name != part)


_ONE_HOT: Settings = (("method.cluster_weights", "one_hot"),)
_ONE_MODEL = {"two_models": False, "mixup": False}

TABLES: dict[str, TableSpec] = {
    "main": TableSpec(
        "the main comparison",
        by_method("source_only", "local", "fedavg", "ladd", "fedpcl", "fedwca"),
    ),
    "extended-ladd": TableSpec(
        "LADD, LADD with the paper's local adaptation, FedWCA",
        by_method("ladd", "ladd_plus", "fedwca"),
    ),
    "other-fl": TableSpec(
        "other federated methods with the paper's local adaptation",
        by_method("fedprox", "fedamp", "ifca", "fedwca"),
    ),
    "revised": TableSpec(
        "FedWCA with new weights in every fifth round only",
        _variants("fedwca", {"fedwca": {}, "fedwca_u5": {"rounds_between_weights": 5}}),
    ),
    "weights": TableSpec(
        "ablation of the cluster weights",
        _variants("wca", {**{name: {"cluster_weights": name} for name in _WEIGHTS}, "wca": {}}),
    ),
    "labels": TableSpec(
        "ablation of the pseudo-labels: prototypes, fixed labels, two models, mixup",
        _variants(
            "pp+fp+tm+mu",
            {
                "fp": {"prototypes": False, **_ONE_MODEL},
                "pp": {"fixed_labels": False, **_ONE_MODEL},
                "pp+fp": _ONE_MODEL,
                "pp+fp+tm": {"mixup": False},
                "pp+fp+tm+mu": {},
            },
        ),
    ),
    "clustering": TableSpec(
        "ablation of the clustering: FINCH, LADD's style, the true domains",
        _variants(
            "finch",
            {"finch": {}, "style": {"clustering": "style"}, "domain": {"clustering": "domain"}},
        ),
    ),
    "layers": TableSpec(
        "clusters by the layer that FINCH compares, after one round", kind="clusters"
    ),
    "digit-clusters": TableSpec(
        "clusters by source domain, after one round",
        (Row("1", "fedwca", ONE_ROUND),),
        kind="clusters",
    ),
    "figures": TableSpec(
        "the paper's figures: accuracy by domain, cluster weights, images by cluster",
        (
            *by_method("source_only", "local", "fedavg", "ladd_plus"),
            Row("fedwca-l", "fedwca", (("method.cluster_weights", "local"),)),
            Row("fedwca", "fedwca", ours=True),
        ),
        kind="accuracy",
    ),
    "controls": TableSpec(
        "not in the paper: other methods with the local training of fedwca_plus (+loop)",
        (
            *by_method("fedwca"),
            Row("source_only+loop", "source_only", loop=LOOP),
            Row("local+loop", "local", loop=LOOP),
            Row("fedavg+loop", "fedavg", loop=LOOP),
            Row("fedprox+loop", "fedprox", loop=LOOP),
            Row("ifca+loop", "ifca", loop=LOOP),
            Row("ladd_plus+loop", "ladd_plus", loop=LOOP),
            Row("one_hot+loop", "fedwca", _ONE_HOT, loop=LOOP),
            Row("fedwca+loop", "fedwca", loop=LOOP),
            Row("fedwca_plus", "fedwca_plus", ours=True),
        ),
    ),
    "parts": TableSpec(
        "not in the paper: each part of fedwca_plus alone, beside FedAvg, and all but this part",
        (
            *by_method("fedavg", *OURS),
            *(Row(f"only {part}", "fedavg", loop=(part,)) for part in LOOP),
            *(Row(f"only {part}", "fedwca_plus", _all_off_but(part), loop=()) for part in _OFF),
            *(Row(f"no {part}", "fedwca_plus", loop=_without(part)) for part in LOOP),
            *(Row(f"no {part}", "fedwca_plus", (off,)) for part, off in _OFF.items()),
            Row("only loop", "fedavg", loop=LOOP),
            Row("only loop, momentum", "fedwca_plus", _all_off_but("momentum")),
        ),
    ),
    "all": TableSpec("every method of the package"),
}


def check_table(name: str) -> None:
    """Raise UserError unless a table has this name."""
    if name not in TABLES:
        raise UserError(f"there is no table {name!r}: {did_you_mean(name, TABLES)}")


# --- scales: all of a benchmark as in the paper, a part for two cores, a smoke test ---------------

# The benchmarks that tables can be made for, and their source domains.
DOMAINS_OF: dict[str, tuple[str, ...]] = {
    "mini-digits": DOMAINS,
    "digit-five": DIGIT_FIVE,
    "pacs": tuple(PACS.domains),
    "office-home": tuple(OFFICE_HOME.domains),
    "office-31": tuple(OFFICE31.domains),
}

SEEDS: dict[Scale, int] = {"paper": 15, "small": 3, "tiny": 2}

_FEW_OBJECTS: dict[str, Any] = {
    "data.images_per_client": 96,
    "source.epochs": 10,
    "training.rounds": 4,
}
_SMALL: dict[str, dict[str, Any]] = {
    "mini-digits": {},  # small already
    "digit-five": {
        "data.clients_per_domain": 4,
        "data.images_per_client": 320,
        "training.rounds": 12,
    },
    "pacs": {**_FEW_OBJECTS, "data.image_size": 74},
    "office-home": {**_FEW_OBJECTS, "data.image_size": 110},
    "office-31": {**_FEW_OBJECTS, "data.image_size": 110},
}

_SMOKE: dict[str, Any] = {
    "data.images_per_domain": 200,
    "data.clients_per_domain": 2,
    "data.images_per_client": 40,
    "source.epochs": 3,
    "training.rounds": 2,
    "training.epochs": 1,
}
_TINY: dict[str, dict[str, Any]] = {
    **{name: {**_SMOKE, "data.image_size": 40} for name in DOMAINS_OF},
    **dict.fromkeys(("mini-digits", "digit-five"), _SMOKE),
}

# The settings in which a scale differs from the defaults of each benchmark.
SCALES: dict[Scale, dict[str, dict[str, Any]]] = {
    "paper": {name: {} for name in DOMAINS_OF},
    "small": _SMALL,
    "tiny": _TINY,
}

RUNS_PER_SOURCE_MODEL = 3  # in the paper, 15 trials are 3 runs with each of 5 source models


def check_scale(name: str) -> Scale:
    """Return the scale of this name."""
    for scale in SCALES:
        if name == scale:
            return scale
    raise UserError(f"there is no scale {name!r}: {did_you_mean(name, SCALES)}")


def seed_settings(scale: Scale, seed: int) -> list[tuple[str, Any]]:
    """Return the seeds of a trial, which has its own source model except at the paper's scale."""
    settings = [("run.seed", seed)]
    if scale == "paper":
        settings.append(("source.seed", seed // RUNS_PER_SOURCE_MODEL))
    return settings
