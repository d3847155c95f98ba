"""Read an experiment: defaults, then a TOML file, then overrides; every setting is validated."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedwca._support.errors import UserError, did_you_mean
from fedwca._support.files import open_regular_file
from fedwca._support.settings import validate_settings
from fedwca._support.text import parse_toml
from fedwca.data.benchmarks import BENCHMARKS, check_benchmark
from fedwca.data.types import SOURCE
from fedwca.experiments.defaults import default_source, defaults
from fedwca.experiments.experiment import (
    DataConfig,
    DeployConfig,
    Experiment,
    ModelConfig,
    RunConfig,
    SourceConfig,
)
from fedwca.methods import METHODS, build_method, check_method_name
from fedwca.privacy.accounting import check_disclosures
from fedwca.privacy.mechanism import Privacy

__all__ = ["Experiment", "parse_override", "read_experiment", "resolve"]

Settings = dict[str, Any]

_SECTIONS = ("data", "model", "source", "training", "method", "run", "deploy", "privacy")


def read_experiment(path: Path | None, overrides: Sequence[tuple[str, Any]] = ()) -> Experiment:
    """Read a TOML file and apply overrides, such as ("training.lr", 0.01)."""
    return resolve(_read_toml(path) if path else {}, overrides)


def _read_toml(path: Path) -> Settings:
    if (path / "config.json").is_file():
        raise UserError(f"{path} is a run folder; resume it with `fedwca resume`")
    if path.is_dir():
        raise UserError(
            f"{path} is a folder; give a config file, or set data.benchmark to images and "
            "data.path to a folder of images"
        )
    try:
        with open_regular_file(path) as file:
            return parse_toml(file.read().decode())
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give the path of a config file") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def resolve(settings: Mapping[str, Any], overrides: Sequence[tuple[str, Any]] = ()) -> Experiment:
    """Return the experiment of these settings, with defaults for all others; validate each."""
    _check_sections(settings)
    tables = {section: dict(values) for section, values in settings.items()}
    for key, value in overrides:
        _override(tables, key, value)
    data = tables.setdefault("data", {})
    method = tables.setdefault("method", {})
    benchmark = str(data.get("benchmark", "mini-digits"))
    check_benchmark(benchmark)
    name = check_method_name(method.pop("name", "fedwca"))
    data["source"] = _named_source(data) or default_source(benchmark)
    base = defaults(benchmark, str(data["source"]), name)
    of_method = {"training": METHODS[name].training_defaults}
    return _build(_merge(base, of_method, tables), name)


def _merge(*layers: Mapping[str, Mapping[str, Any]]) -> dict[str, Settings]:
    """Return the settings of all sections; later layers replace earlier ones."""
    merged: dict[str, Settings] = {section: {} for section in _SECTIONS}
    for layer in layers:
        for section, values in layer.items():
            merged[section].update(values)
    return merged


def _check_sections(settings: Mapping[str, Any]) -> None:
    for section, values in settings.items():
        if section not in _SECTIONS:
            raise UserError(f"there is no section [{section}]: {did_you_mean(section, _SECTIONS)}")
        if not isinstance(values, Mapping):
            raise UserError(f"{section} must be a table of settings; write it as [{section}]")


def _override(tables: Settings, key: str, value: Any) -> None:
    section, _, name = key.partition(".")
    if not name or "." in name:
        raise UserError(f"{key!r} is not a setting; write section.name, such as training.lr")
    _check_sections({section: {}})
    if key == "method.name" and tables.get(section, {}).get(name, value) != value:
        tables[section] = {}  # the other settings in the file are for the method in the file
    tables.setdefault(section, {})[name] = value


def _named_source(data: Settings) -> str:
    """Return the source domain in the settings; a folder of source images has a fixed one."""
    name = str(data.get("source") or "")
    if not data.get("source_path"):
        return name
    if name not in ("", SOURCE):
        raise UserError("data.source and data.source_path both name the source; remove one")
    return SOURCE


def _build(settings: Mapping[str, Settings], method_name: str) -> Experiment:
    data = validate_settings(DataConfig, "data", settings["data"])
    source = validate_settings(SourceConfig, "source", settings["source"])
    experiment = Experiment(
        data=data,
        model=validate_settings(ModelConfig, "model", settings["model"]),
        source=source,
        method_name=method_name,
        method=build_method({"name": method_name, **settings["method"]}, settings["training"]),
        run=validate_settings(RunConfig, "run", settings["run"]),
        deploy=validate_settings(DeployConfig, "deploy", settings["deploy"]),
        privacy=validate_settings(Privacy, "privacy", settings["privacy"]),
    )
    if experiment.privacy.on:
        check_disclosures(experiment.method, method_name)
    _check_data(data)
    if not data.source and source.weights is None:
        raise UserError(
            "no source is given: set data.source (a labeled domain), data.source_path (a folder of "
            "labeled images) or source.weights (a model file)"
        )
    return experiment


def _check_data(data: DataConfig) -> None:
    """Reject settings that the benchmark would ignore."""
    if data.path and not BENCHMARKS[data.benchmark].has_files:
        raise UserError(
            f"data.path: benchmark {data.benchmark!r} has no files; remove it, or set "
            "data.benchmark to what `fedwca data check` finds there"
        )
    if (data.source_path or data.classes) and data.benchmark != "images":
        raise UserError(
            f"data.source_path and data.classes are for own images, not for {data.benchmark!r}: "
            "set data.benchmark to images, or remove them"
        )
    if data.clients_per_domain == 1 and (data.label_dirichlet or data.size_dirichlet):
        raise UserError(
            "data.label_dirichlet and data.size_dirichlet need several clients in a domain: "
            "set data.clients_per_domain to 2 or more, or both of them to 0"
        )


# A folder may be called 2024 or true: values of these settings are text even if they are TOML.
_TEXT_SETTINGS = (
    "data.benchmark",
    "data.classes",
    "data.path",
    "data.source",
    "data.source_path",
    "method.name",
    "model.backbone",
    "model.weights",
    "run.device",
    "source.weights",
)


def parse_override(text: str) -> tuple[str, Any]:
    """Split "training.lr=0.01" into its key and its value, which is TOML or else text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--set {text}: write section.name=value, such as training.lr=0.01")
    key, value = key.strip(), value.strip()
    try:
        parsed = parse_toml(f"x = {value}")["x"]
    except ValueError:
        return key, value
    if key in _TEXT_SETTINGS and not isinstance(parsed, str | list):
        return key, value
    return key, parsed
