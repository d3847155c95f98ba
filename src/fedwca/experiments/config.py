"""One experiment as typed, frozen settings: TOML, then overrides, then checked."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from fedwca.data.benchmarks import BENCHMARKS, check_benchmark
from fedwca.data.partition import Partition
from fedwca.data.raw import SOURCE
from fedwca.engines.privacy import Privacy
from fedwca.errors import UserError, did_you_mean
from fedwca.experiments.defaults import defaults
from fedwca.experiments.privacy import check_private
from fedwca.files import open_file
from fedwca.methods import METHODS, Method, Training
from fedwca.parsing import parse_toml

__all__ = [
    "DataConfig",
    "DeployConfig",
    "Experiment",
    "ModelConfig",
    "RunConfig",
    "SourceConfig",
    "build_method",
    "parse_override",
    "read_experiment",
    "resolve",
]

Table = dict[str, Any]


_LARGEST = 2**31 - 1


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataConfig(_Section):
    """Which images, and who holds them."""

    benchmark: str = Field("mini-digits", description="name of the benchmark")
    source: str = Field("", description="the source domain; all others become clients")
    path: Path | None = Field(None, description="folder of the files, where the benchmark has any")
    source_path: Path | None = Field(
        None, description="own images: labeled source images, class/*.jpg, in a folder of their own"
    )
    classes: tuple[str, ...] = Field(
        (), description="own images: class names in the order of the source model's outputs"
    )
    image_size: int = Field(32, ge=8, le=4096, description="side of the stored images")
    images_per_domain: int = Field(0, ge=0, le=_LARGEST, description="use only so many; 0: all")
    clients_per_domain: int = Field(
        3, ge=1, le=_LARGEST, description="clients for each target domain"
    )
    images_per_client: int = Field(
        0, ge=0, le=_LARGEST, description="each client trains on only so many; 0: all"
    )
    label_dirichlet: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="label skew between clients: small is strong; 0: none, i.i.d.",
    )
    size_dirichlet: float = Field(
        0.0, ge=0, le=1e6, description="unequal sizes of clients: small is strong; 0: equal"
    )
    seed: int = Field(0, ge=0, le=_LARGEST, description="of a generated benchmark, of a draw")

    @field_validator("classes", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """On a command line, "bolt,nut" is easier to write than a list."""
        if isinstance(value, str):
            value = [name.strip() for name in value.split(",") if name.strip()]
        if isinstance(value, list | tuple) and len({*map(str, value)}) < len(value):
            raise ValueError("name every class once")
        return tuple(value) if isinstance(value, list) else value

    @property
    def partition(self) -> Partition:
        """How each domain is dealt out to clients."""
        return Partition(
            self.clients_per_domain,
            self.label_dirichlet,
            self.size_dirichlet,
            self.images_per_client,
        )


class ModelConfig(_Section):
    """The network."""

    backbone: str = Field("lenet", description="lenet, resnet18, …, torchvision:NAME, timm:NAME")
    bottleneck: int = Field(256, ge=1, le=65_536, description="width of the features")
    classifier: Literal["weight_norm", "linear"] = "weight_norm"
    stride_on: Literal["conv2", "conv1"] = Field("conv2", description="of ResNet-50")
    weights: Path | None = Field(None, description="backbone weights to start from")


class SourceConfig(_Section):
    """How the source model comes about: trained here, or given as a file."""

    weights: Path | None = Field(None, description="a whole source model; then nothing is trained")
    epochs: int = Field(30, ge=1, le=_LARGEST)
    lr: float = Field(1e-3, gt=0)
    batch_size: int = Field(64, ge=2, le=_LARGEST)
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = True
    weight_decay: float = Field(1e-3, ge=0)
    backbone_lr: float = Field(1.0, ge=0, description="factor on the backbone's learning rate")
    schedule: Literal["shot_decay", "constant"] = "shot_decay"
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="SHOT takes 0.1, the paper none")
    holdout: float = Field(0.1, ge=0, lt=1, description="share kept back to score the source model")
    seed: int | None = Field(
        None, ge=0, le=_LARGEST, description="of the source model; run.seed if not given"
    )


class RunConfig(_Section):
    """How the experiment is carried out."""

    seed: int = Field(0, ge=0, le=_LARGEST)
    evaluate_every: int = Field(1, ge=1, le=_LARGEST, description="rounds between evaluations")
    checkpoint_every: int = Field(1, ge=1, le=_LARGEST, description="rounds between checkpoints")
    workers: int = Field(0, ge=0, le=1024, description="worker processes; 0: one for each core")
    device: str = Field("cpu", description="cpu, cuda or mps")


class DeployConfig(_Section):
    """How rounds go when clients are sites on other machines; a simulated run ignores it."""

    least_sites: int = Field(2, ge=1, le=_LARGEST, description="a round needs so many answers")
    start_seconds: float = Field(
        600, ge=0, description="the first round waits so long for all sites of the deployment"
    )
    round_seconds: float = Field(3600, gt=0, description="time limit of a round")
    return_seconds: float = Field(
        90, ge=0, description="a site that was lost is waited for so long"
    )
    wire: Literal["float32", "float16"] = Field("float32", description="how weights travel")
    secure_aggregation: bool = Field(
        False, description="the server sees sums of the sites' models, and none of them"
    )
    least_summed: int = Field(
        3, ge=2, le=_LARGEST, description="of so many models at least, with secure_aggregation"
    )


# Settings that change how fast a run goes, but not what comes out (but for the last digits, which
# another device rounds otherwise).
_NOT_IDENTITY = ("checkpoint_every", "workers", "device")


class Experiment(_Section):
    """Everything that decides the result of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    data: DataConfig
    model: ModelConfig
    source: SourceConfig
    method_name: str
    method: Any  # a dataclass of METHODS, its training inside
    run: RunConfig
    deploy: DeployConfig
    privacy: Privacy

    def settings(self) -> Table:
        """All settings as plain JSON values, as they stand in the run folder."""
        method = asdict(self.method)
        training = method.pop("training")
        return {
            "data": self.data.model_dump(mode="json"),
            "model": self.model.model_dump(mode="json"),
            "source": self.source.model_dump(mode="json"),
            "training": training,
            "method": {"name": self.method_name, **method},
            "run": self.run.model_dump(mode="json"),
            # Left out where it does nothing: runs keep the names that they had without it.
            **({"privacy": asdict(self.privacy)} if self.privacy.on else {}),
        }

    def deployed_settings(self) -> Table:
        """All settings of a run over many machines."""
        return {**self.settings(), "deploy": self.deploy.model_dump(mode="json")}

    def identity(self) -> Table:
        """The settings without those that change nothing but speed."""
        settings = self.settings()
        settings["run"] = {k: v for k, v in settings["run"].items() if k not in _NOT_IDENTITY}
        return settings

    @property
    def name(self) -> str:
        """Name of the run folder: readable, and different for every different experiment."""
        digest = hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()
        source = self.data.source or "given"
        words = (self.data.benchmark, source, self.method_name, f"s{self.run.seed}")
        readable = "-".join("".join(c if c.isalnum() else "_" for c in w)[:40] for w in words)
        return f"{readable}-{digest[:10]}"

    @property
    def source_seed(self) -> int:
        """Seed of the source model."""
        return self.run.seed if self.source.seed is None else self.source.seed


def read_experiment(path: Path | None, overrides: Sequence[tuple[str, Any]] = ()) -> Experiment:
    """The experiment of a TOML file with overrides such as ("training.lr", 0.01) on top."""
    return resolve(_read_toml(path) if path else {}, overrides)


def resolve(settings: Mapping[str, Any], overrides: Sequence[tuple[str, Any]] = ()) -> Experiment:
    """Fill settings up with the benchmark's defaults, and check every one of them."""
    given: Table = {k: dict(v) if isinstance(v, Mapping) else v for k, v in settings.items()}
    _check_sections(given)
    for key, value in overrides:
        _override(given, key, value)
    data = given.setdefault("data", {})
    benchmark = str(data.get("benchmark", "mini-digits"))
    method = dict(given.get("method", {}))
    check_benchmark(benchmark)
    name = _known_method(method.pop("name", "fedwca"))
    source = _source_domain(data) or defaults(benchmark, "", name).get("data", {}).get("source", "")
    given["data"] = {**data, "source": source}
    below = _merge(
        defaults(benchmark, str(source), name), {"training": METHODS[name].training_defaults}
    )
    merged = _merge(below, {**given, "method": method})
    return _build(merged, name)


def _source_domain(data: Table) -> str:
    """The source domain's name; a folder of source images has a fixed one."""
    named = str(data.get("source") or "")
    if not data.get("source_path"):
        return named
    if named not in ("", SOURCE):
        raise UserError("data.source and data.source_path both name the source: leave one out")
    return SOURCE


def _build(merged: Table, name: str) -> Experiment:
    sections = {
        "data": _validated(DataConfig, "data", merged.get("data", {})),
        "model": _validated(ModelConfig, "model", merged.get("model", {})),
        "source": _validated(SourceConfig, "source", merged.get("source", {})),
        "run": _validated(RunConfig, "run", merged.get("run", {})),
        "deploy": _validated(DeployConfig, "deploy", merged.get("deploy", {})),
        "privacy": _validated(Privacy, "privacy", merged.get("privacy", {})),
    }
    if "training" in merged["method"]:
        raise UserError("method.training is a section of its own: write it as [training]")
    chosen = build_method({"name": name, **merged["method"]}, merged.get("training", {}))
    if sections["privacy"].on:
        check_private(chosen, name)
    _check_data(sections["data"])
    if not sections["data"].source and sections["source"].weights is None:
        raise UserError(
            "no source is given: set data.source to the domain of the labels, "
            "or source.weights to the file of a source model"
        )
    return Experiment(method_name=name, method=chosen, **sections)


def _known_method(name: object) -> str:
    if not isinstance(name, str) or name not in METHODS:
        raise UserError(f"there is no method {_short(name)}: {did_you_mean(name, METHODS)}")
    return name


def build_method(settings: Mapping[str, Any], training: Mapping[str, Any]) -> Method:
    """The method of [method] and [training], every setting checked."""
    own = dict(settings)
    name = _known_method(own.pop("name", "fedwca"))
    how = _validated(Training, "training", training)
    return cast(Method, _validated(METHODS[name], "method", {**own, "training": how}))


def _check_data(data: DataConfig) -> None:
    """Refuse settings that the benchmark would ignore: they were meant for another."""
    if data.path and BENCHMARKS[data.benchmark].looks_like is None:
        raise UserError(
            f"benchmark {data.benchmark!r} has no files: set data.benchmark to what data.path "
            "holds (`fedwca data check` tells), or leave data.path out"
        )
    if (data.source_path or data.classes) and data.benchmark != "images":
        raise UserError(
            f"data.source_path and data.classes are for own images, not for {data.benchmark!r}: "
            "set data.benchmark to images, or leave them out"
        )
    if data.clients_per_domain == 1 and (data.label_dirichlet or data.size_dirichlet):
        raise UserError(
            "one client a domain cannot differ from others: set data.clients_per_domain to 2 or "
            "more, or data.label_dirichlet and data.size_dirichlet to 0"
        )


def _validated(kind: Any, section: str, values: Any) -> Any:
    _check_keys(kind, section, values)
    absolute = {k: _absolute(section, k, v) for k, v in values.items() if k in _PATHS}
    try:
        return TypeAdapter(kind).validate_python({**values, **absolute})
    except ValidationError as error:
        raise UserError(_sentence(section, error)) from None


_PATHS = ("path", "source_path", "weights")


def _absolute(section: str, key: str, value: Any) -> Any:
    """A path that means the same wherever the run is resumed."""
    try:
        return Path(value).expanduser().absolute() if isinstance(value, str | Path) else value
    except RuntimeError:
        raise UserError(f"{section}.{key}: there is no such user as in {value!r}") from None


def _sentence(section: str, error: ValidationError) -> str:
    first = error.errors()[0]
    key = first["loc"][:1]
    # A setting of several types has an error for each: any of them would do.
    ways = dict.fromkeys(_plain(e["msg"]) for e in error.errors() if e["loc"][:1] == key)
    where = ".".join([section, *(str(part) for part in key)])
    return f"{where}: {' or '.join(ways)} (got {_short(first['input'])})"


def _plain(message: str) -> str:
    text = message.removeprefix("Value error, ").replace("\n", " ")
    return text[:1].lower() + text[1:]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _field_names(kind: Any) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return list(kind.model_fields)
    return [f.name for f in fields(kind)]


def _check_keys(kind: Any, section: str, values: Any) -> None:
    if not isinstance(values, Mapping):
        raise UserError(f"{section} must be a table of settings, [{section}], not {values!r}")
    known = _field_names(kind)
    for key in values:
        if key not in known:
            raise UserError(f"{section} has no setting {key!r}: {did_you_mean(key, known)}")


_SECTIONS = ("data", "model", "source", "training", "method", "run", "deploy", "privacy")


def _check_sections(settings: Mapping[str, Any]) -> None:
    for key in settings:
        if key not in _SECTIONS:
            raise UserError(f"there is no section [{key}]: {did_you_mean(key, _SECTIONS)}")
        if not isinstance(settings[key], Mapping):
            raise UserError(f"{key} must be a table of settings: write it as [{key}]")


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Table:
    return {key: {**below.get(key, {}), **above.get(key, {})} for key in {*below, *above}}


def _override(settings: Table, key: str, value: Any) -> None:
    section, _, name = key.partition(".")
    if not name or "." in name:
        raise UserError(f"{key!r} is no setting: write it as section.name, such as training.lr")
    _check_sections({section: {}})
    if key == "method.name" and settings.get(section, {}).get(name, value) != value:
        settings[section] = {}  # the file's other settings belong to the file's method
    settings.setdefault(section, {})[name] = value


def parse_override(text: str) -> tuple[str, Any]:
    """Split "training.lr=0.01" into its key and its value, read as TOML or else as text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--set {text}: write it as section.name=value, such as training.lr=0.01")
    key, value = key.strip(), value.strip()
    try:
        read = parse_toml(f"x = {value}")["x"]
    except ValueError:
        return key, value
    # A folder may be called 2024 or true: what is a name by nature stays as it was written.
    return key, value if key in _NAMES and not isinstance(read, str | list) else read


_NAMES = (
    *("data.benchmark", "data.source", "data.path", "data.source_path", "data.classes"),
    *("model.backbone", "model.weights", "source.weights", "method.name", "run.device"),
)


_LONGEST = 1 << 20  # bytes of a config file


def _read_toml(path: Path) -> Table:
    try:
        with open_file(path) as file:
            content = file.read(_LONGEST + 1)
        if len(content) > _LONGEST:
            raise UserError(f"{path} is too large for a config file: give the path of a TOML file")
        return parse_toml(content.decode())
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: give the path of a config file") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
