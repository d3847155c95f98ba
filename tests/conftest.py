"""A tiny problem that every test can afford: three domains of three shapes, 16 × 16 pixels."""

import copy
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fedwca.data.augment import DIGITS
from fedwca.data.images import ClientData, UnlabeledImages
from fedwca.data.partition import Partition
from fedwca.data.types import Benchmark, Domain
from fedwca.experiments.experiment import SourceConfig
from fedwca.experiments.source import train_source
from fedwca.models import DomainModel, build_model
from tests.support.federation import TinyProblem

SIDE = 16
CLASSES = ("bar", "post", "square")


def draw_domain(seed: int, count: int, ink: float, ground: float, noise: float) -> Domain:
    """Bars, posts and squares at random places; domains differ in tone and noise."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % len(CLASSES)
    rng.shuffle(labels)
    images = np.full((count, SIDE, SIDE, 3), ground)
    for image, label in zip(images, labels, strict=True):
        top, left = rng.integers(1, 7, 2)
        height, width = ((3, 9), (9, 3), (7, 7))[label]
        image[top : top + height, left : left + width] = ink
    images += rng.normal(0, noise, images.shape)
    return Domain(np.clip(images * 255, 0, 255).astype(np.uint8), labels.astype(np.int64))


def write_npz(folder: Path, benchmark: Benchmark) -> Path:
    folder.mkdir()
    for name, domain in benchmark.domains.items():
        np.savez(folder / f"{name}.npz", images=domain.images, labels=domain.labels)
    return folder


@pytest.fixture(scope="session")
def tiny_benchmark() -> Benchmark:
    return Benchmark(
        "tiny",
        CLASSES,
        {
            "clean": draw_domain(0, 150, 1.0, 0.0, 0.02),
            "dim": draw_domain(1, 80, 0.6, 0.2, 0.05),
            "noisy": draw_domain(2, 80, 0.9, 0.1, 0.25),
        },
        DIGITS,
    )


@pytest.fixture(scope="session")
def _trained_source(tiny_benchmark: Benchmark) -> DomainModel:
    torch.manual_seed(0)
    model = build_model("lenet", len(CLASSES), image_size=SIDE, bottleneck=16)
    config = SourceConfig(epochs=8, lr=0.02, batch_size=32)
    train_source(model, tiny_benchmark.source("clean"), config, seed=0)
    model.freeze_classifier()
    return model.eval()


@pytest.fixture
def new_model(_trained_source: DomainModel) -> Callable[[], DomainModel]:
    """Makes fresh copies of the tiny source model."""
    return lambda: copy.deepcopy(_trained_source)


@pytest.fixture(scope="session")
def tiny_clients(tiny_benchmark: Benchmark) -> list[ClientData]:
    """Two domains, two clients each."""
    return tiny_benchmark.clients("clean", Partition(2), seed=0)


@pytest.fixture
def tiny(new_model: Callable[[], DomainModel], tiny_clients: list[ClientData]) -> TinyProblem:
    return TinyProblem(new_model, tiny_clients)


@pytest.fixture
def one_image_client(tiny_clients: list[ClientData]) -> ClientData:
    train = tiny_clients[0].train
    alone = UnlabeledImages(train.pixels, train.index[:1], train.transform)
    return ClientData("alone/0", "alone", alone, None, None)


@pytest.fixture
def one_class_client(tiny_benchmark: Benchmark) -> ClientData:
    """A client none of whose images is of the last two classes."""
    dim = tiny_benchmark.domains["dim"]
    rows = np.flatnonzero(dim.labels == 0)
    only = UnlabeledImages(dim.images, rows, tiny_benchmark.transform)
    return ClientData("single/0", "single", only, None, None)


@pytest.fixture
def npz_folder(tmp_path: Path, tiny_benchmark: Benchmark) -> Path:
    """The tiny benchmark as files that the command line can read."""
    return write_npz(tmp_path / "data", tiny_benchmark)


@pytest.fixture
def signal_handlers() -> Iterator[list[object]]:
    """Python's default handlers of SIGINT and SIGTERM, whatever started this process."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield [signal.getsignal(number) for number in numbers]
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
