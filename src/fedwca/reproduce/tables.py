"""The tables of the paper: the rows of each, and the settings of a row."""

from typing import Any, Literal, NamedTuple

from fedwca._support.errors import UserError, did_you_mean

__all__ = ["ONE_ROUND", "TABLES", "Row", "TableSpec", "by_method", "check_table"]

Settings = tuple[tuple[str, Any], ...]


class Row(NamedTuple):
    """One row of a table: a method with some settings.

    Attributes:
        name: as printed, and as `--method` selects it.
        method: its name in METHODS.
        settings: what differs from the benchmark's defaults.
        ours: whether it is a full method of ours, which is tested against the others.
    """

    name: str
    method: str
    settings: Settings = ()
    ours: bool = False


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
    "all": TableSpec("every method of the package"),
}


def check_table(name: str) -> None:
    """Raise UserError unless a table has this name."""
    if name not in TABLES:
        raise UserError(f"there is no table {name!r}: {did_you_mean(name, TABLES)}")
