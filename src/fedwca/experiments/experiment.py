"""The typed, frozen settings of one experiment, by section."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from fedwca.data.augment import Transform
from fedwca.data.partition import Partition
from fedwca.models import Architecture, ModelDescription, NetworkSpec
from fedwca.privacy.mechanism import Privacy

__all__ = [
    "DataConfig",
    "DeployConfig",
    "Experiment",
    "ModelConfig",
    "RunConfig",
    "SourceConfig",
]

_LARGEST = 2**31 - 1


def _absolute(path: Path) -> Path:
    """Return a path that means the same wherever the run is resumed."""
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        raise ValueError("there is no such user") from None


def _split_names(value: object) -> object:
    """Split "bolt,nut", which is easier to write on a command line than a list."""
    if isinstance(value, str):
        value = [name.strip() for name in value.split(",") if name.strip()]
    if isinstance(value, list | tuple) and len({*map(str, value)}) < len(value):
        raise ValueError("name every class once")
    return value


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split_names)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataConfig(_Section):
    """[data]: which images, and which client holds them."""

    benchmark: str = Field("mini-digits", description="name of the benchmark")
    source: str = Field("", description="the source domain; all others become clients")
    path: AbsolutePath | None = Field(
        None, description="folder of the benchmark's files, if it has any"
    )
    source_path: AbsolutePath | None = Field(
        None, description="own images: a folder of labeled source images, class/*.jpg"
    )
    classes: Names = Field(
        (), description="own images: class names in the order of the source model's outputs"
    )
    image_size: int = Field(32, ge=8, le=4096, description="side of the stored images")
    images_per_domain: int = Field(
        0, ge=0, le=_LARGEST, description="images of each domain to use, at most; 0: all"
    )
    clients_per_domain: int = Field(
        3, ge=1, le=_LARGEST, description="clients for each target domain"
    )
    images_per_client: int = Field(
        0, ge=0, le=_LARGEST, description="images that each client trains on, at most; 0: all"
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
    seed: int = Field(
        0,
        ge=0,
        le=_LARGEST,
        description="of a generated benchmark, and of which images images_per_domain keeps",
    )

    @property
    def partition(self) -> Partition:
        """How each domain is divided among clients."""
        return Partition(
            self.clients_per_domain,
            self.label_dirichlet,
            self.size_dirichlet,
            self.images_per_client,
        )


class ModelConfig(Architecture):
    """[model]: the network, and the weights that its training starts from."""

    weights: AbsolutePath | None = Field(None, description="backbone weights to start from")


class SourceConfig(_Section):
    """[source]: how the source model is trained, or the file that holds it."""

    weights: AbsolutePath | None = Field(
        None, description="a whole source model; then nothing is trained"
    )
    epochs: int = Field(30, ge=1, le=_LARGEST)
    lr: float = Field(1e-3, gt=0)
    batch_size: int = Field(64, ge=2, le=_LARGEST)
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = True
    weight_decay: float = Field(1e-3, ge=0)
    backbone_lr: float = Field(1.0, ge=0, description="factor on the backbone's learning rate")
    schedule: Literal["shot_decay", "constant"] = "shot_decay"
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="SHOT: 0.1; the paper: none")
    augment: Literal["none", "weak", "strong"] = Field(
        "none",
        description="change training images: weak in position and contrast, strong also in style",
    )
    warmup: float = Field(
        0.2, ge=0, le=1, description="with augment: share of the epochs on unchanged images first"
    )
    holdout: float = Field(
        0.1, ge=0, lt=1, description="share held out to measure the source model's accuracy"
    )
    seed: int | None = Field(
        None, ge=0, le=_LARGEST, description="of the source model; default: run.seed"
    )


class RunConfig(_Section):
    """[run]: seed, evaluation, checkpoints and hardware."""

    seed: int = Field(0, ge=0, le=_LARGEST)
    participation: float = Field(
        1.0, gt=0, le=1, description="share of the clients that adapt in a round, drawn by the seed"
    )
    score_on: Literal["test", "validation"] = Field(
        "test", description="labeled images that results are scored on; validation is for tuning"
    )
    evaluate_every: int = Field(1, ge=1, le=_LARGEST, description="rounds between evaluations")
    checkpoint_every: int = Field(1, ge=1, le=_LARGEST, description="rounds between checkpoints")
    workers: int = Field(0, ge=0, le=1024, description="worker processes; 0: one for each core")
    device: str = Field("cpu", description="cpu, cuda or mps")


class DeployConfig(_Section):
    """[deploy]: rounds with sites on other machines; a simulated run ignores it."""

    least_sites: int = Field(2, ge=1, le=_LARGEST, description="replies that a round needs")
    start_seconds: float = Field(
        600, ge=0, description="seconds that the first round waits for all sites"
    )
    round_seconds: float = Field(3600, gt=0, description="time limit of a round")
    return_seconds: float = Field(
        90, ge=0, description="seconds to wait for a lost site to reconnect"
    )
    wire: Literal["float32", "float16"] = Field(
        "float32", description="number format in which weights are sent"
    )
    secure_aggregation: bool = Field(
        False, description="the server sees sums of the sites' models, and no single model"
    )
    least_summed: int = Field(
        3, ge=2, le=_LARGEST, description="with secure_aggregation: models in a sum, at least"
    )


# Settings that change only the speed of a run, and rounding on another device.
_NOT_IDENTITY = ("checkpoint_every", "workers", "device")


class Experiment(BaseModel):
    """Everything that decides the result of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    data: DataConfig
    model: ModelConfig
    source: SourceConfig
    method_name: str
    method: Any  # a dataclass of METHODS; [training] is its field `training`
    run: RunConfig
    deploy: DeployConfig
    privacy: Privacy

    def settings(self) -> dict[str, Any]:
        """Return all settings of a simulation as JSON values, as the run folder stores them."""
        method = asdict(self.method)
        training = method.pop("training")
        settings = {
            "data": self.data.model_dump(mode="json"),
            "model": self.model.model_dump(mode="json"),
            "source": self.source.model_dump(mode="json"),
            "training": training,
            "method": {"name": self.method_name, **method},
            "run": self.run.model_dump(mode="json"),
        }
        if self.privacy.on:  # omitted otherwise: runs keep the names they had before [privacy]
            settings["privacy"] = asdict(self.privacy)
        return settings

    def deployed_settings(self) -> dict[str, Any]:
        """Return all settings of a deployed run."""
        return {**self.settings(), "deploy": self.deploy.model_dump(mode="json")}

    def identity(self) -> dict[str, Any]:
        """Return the settings that change the result."""
        settings = self.settings()
        settings["run"] = {k: v for k, v in settings["run"].items() if k not in _NOT_IDENTITY}
        return settings

    def deployed_identity(self) -> dict[str, Any]:
        """Return the settings that change the result of a deployed run."""
        deploy: dict[str, Any] = {"wire": self.deploy.wire}
        if self.deploy.secure_aggregation:
            deploy["least_summed"] = self.deploy.least_summed
        return {**self.identity(), "deploy": deploy}

    @property
    def name(self) -> str:
        """Name of the run folder: readable, and different for every identity."""
        digest = hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()
        source = self.data.source or "given"
        words = (self.data.benchmark, source, self.method_name, f"s{self.run.seed}")
        readable = "-".join("".join(c if c.isalnum() else "_" for c in w)[:40] for w in words)
        return f"{readable}-{digest[:10]}"

    @property
    def deployed_name(self) -> str:
        """Name of the run folder at the server of a deployment."""
        half = "-half" if self.deploy.wire == "float16" else ""
        secure = "-secure" if self.deploy.secure_aggregation else ""
        return f"deployed-{self.name}{half}{secure}"

    @property
    def source_seed(self) -> int:
        """Seed of the source model."""
        return self.run.seed if self.source.seed is None else self.source.seed

    def network(self, classes: tuple[str, ...], transform: Transform) -> NetworkSpec:
        """Return the network for these classes and this input."""
        return NetworkSpec(
            **self.model.model_dump(exclude={"weights"}),
            **asdict(transform),
            classes=classes,
            image_size=self.data.image_size,
        )

    def describe_model(self, classes: tuple[str, ...], transform: Transform) -> ModelDescription:
        """Return the description of the source model, and of all models that start from it."""
        return self.network(classes, transform).describe(
            benchmark=self.data.benchmark,
            source=self.data.source or "a given model",
            source_seed=self.source_seed,
        )
