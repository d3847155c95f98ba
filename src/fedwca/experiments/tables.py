"""The paper's tables as lists of runs: which rows each has, and what a row sets."""

from typing import Any, Literal, NamedTuple

from fedwca.errors import UserError, did_you_mean

__all__ = ["TABLES", "Row", "Table", "check_table"]

Settings = tuple[tuple[str, Any], ...]


class Row(NamedTuple):
    """One row: a method with some settings.

    Attributes:
        name: as shown, and as `--method` may choose it.
        method: of the registry.
        settings: beside the benchmark's defaults.
        ours: the full method, which is tested against the others.
    """

    name: str
    method: str
    settings: Settings = ()
    ours: bool = False


class Table(NamedTuple):
    """One table of the paper.

    Attributes:
        about: one line on what it compares.
        rows: empty for rows that depend on the model or the registry (`layers`, `all`).
        kind: what its cells hold.
    """

    about: str
    rows: tuple[Row, ...] = ()
    kind: Literal["accuracy", "clusters"] = "accuracy"


OURS = ("fedwca", "fedwca_plus")
ONE_ROUND: Settings = (("training.rounds", 1),)  # clusters are found after the first


def by_method(*names: str) -> tuple[Row, ...]:
    """A row for each method, with its defaults."""
    return tuple(Row(name, name, ours=name in OURS) for name in names)


def _variants(**rows: dict[str, Any]) -> tuple[Row, ...]:
    """Rows of fedwca that differ in settings of the method; the last is the full method."""
    last = [*rows][-1]
    return tuple(
        Row(name, "fedwca", tuple((f"method.{k}", v) for k, v in chosen.items()), name == last)
        for name, chosen in rows.items()
    )


_WEIGHTS = ("one_hot", "equal", "one_equal", "one_equal_adaptive", "local")
_OFF = {"two_models": False, "mixup": False}

TABLES: dict[str, Table] = {
    "main": Table(
        "the main comparison",
        by_method("source_only", "local", "fedavg", "ladd", "fedpcl", "fedwca"),
    ),
    "extended-ladd": Table(
        "LADD, LADD with the paper's local adaptation, FedWCA",
        by_method("ladd", "ladd_plus", "fedwca"),
    ),
    "other-fl": Table(
        "other federated methods with the paper's local adaptation",
        by_method("fedprox", "fedamp", "ifca", "fedwca"),
    ),
    "revised": Table(
        "FedWCA with weights renewed in every fifth round only",
        _variants(fedwca_u5={"rounds_between_weights": 5}, fedwca={})[::-1],
    ),
    "weights": Table(
        "ablation of the cluster weights",
        _variants(**{name: {"cluster_weights": name} for name in _WEIGHTS}, wca={}),
    ),
    "labels": Table(
        "ablation of the pseudo-labels: prototypes, fixed labels, two models, mixup",
        _variants(
            **{
                "fp": {"prototypes": False, **_OFF},
                "pp": {"fixed_labels": False, **_OFF},
                "pp+fp": _OFF,
                "pp+fp+tm": {"mixup": False},
                "pp+fp+tm+mu": {},
            }
        ),
    ),
    "clustering": Table(
        "ablation of the clustering: FINCH, LADD's style, the true domains",
        _variants(domain={"clustering": "domain"}, style={"clustering": "style"}, finch={})[::-1],
    ),
    "layers": Table("clusters by the layer that FINCH looks at, after one round", kind="clusters"),
    "digit-clusters": Table(
        "clusters by source domain, after one round",
        (Row("1", "fedwca", ONE_ROUND),),
        kind="clusters",
    ),
    "all": Table("every method of the package"),
}


def check_table(name: str) -> None:
    """Refuse a name that no table has."""
    if name not in TABLES:
        raise UserError(f"there is no table {name!r}: {did_you_mean(name, TABLES)}")
