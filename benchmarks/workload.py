"""Images, clients and models for the benchmarks: digits of four domains, in any number."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedwca.core.losses import information_maximization
from fedwca.data.augment import DIGITS
from fedwca.data.benchmarks.mini_digits import CLASSES, DOMAINS, make_mini_digits
from fedwca.data.images import ClientData, LabeledImages, UnlabeledImages
from fedwca.engines.base import Job
from fedwca.engines.simulator.simulator import Simulator
from fedwca.experiments.experiment import SourceConfig
from fedwca.experiments.source import train_source
from fedwca.methods.base import Client, Method, Record
from fedwca.methods.training import Training
from fedwca.models import DomainModel, build_model

SOURCE, *TARGETS = DOMAINS
# Digit-Five from MNIST: eight clients of each domain, USPS being the small one.
DIGIT_FIVE = [2720] * 24 + [744] * 8
TRAINING = Training(rounds=100, epochs=1)


class World:
    """Images in a folder, so that processes share them, and a trained source model."""

    def __init__(self, folder: Path, backbone: str = "lenet", side: int = 32) -> None:
        self.folder, self.backbone, self.side = folder, backbone, side
        if not (folder / f"{DOMAINS[-1]}-{side}.npy").exists():
            for domain, (pixels, labels) in make_mini_digits().items():
                np.save(folder / f"{domain}-labels.npy", labels)
                larger = pixels.repeat(side // 32, axis=1).repeat(side // 32, axis=2)
                np.save(folder / f"{domain}-{side}.npy", larger)
        self._pixels = {d: np.load(folder / f"{d}-{side}.npy", mmap_mode="r") for d in DOMAINS}
        self._labels = {d: np.load(folder / f"{d}-labels.npy") for d in DOMAINS}

    def images(self, domain: str, count: int, seed: int) -> LabeledImages:
        """Draw images of a domain with replacement."""
        rows = np.random.default_rng(seed).integers(0, len(self._labels[domain]), count)
        return LabeledImages(
            UnlabeledImages(self._pixels[domain], rows, DIGITS), self._labels[domain][rows]
        )

    def clients(
        self, sizes: Sequence[int], tests: Sequence[int] | None = None, domains: int = 4
    ) -> list[ClientData]:
        """Return a client for each size; neighbours share one of any number of domains."""
        clients = []
        for number, size in enumerate(sizes):
            domain = number * domains // len(sizes)
            target = TARGETS[domain % len(TARGETS)]
            test = self.images(target, tests[number] if tests else 16, 100_000 + number)
            train = self.images(target, size, number).images
            clients.append(ClientData(f"{domain}/{number}", str(domain), train, None, test))
        return clients

    def apart(self, clients: list[ClientData]) -> list[ClientData]:
        """Return the clients with a copy of every image, so that it counts in memory."""
        total = sum(len(client.train) for client in clients)
        path, shape = self.folder / f"apart-{total}.npy", (total, self.side, self.side, 3)
        pixels = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
        starts = np.cumsum([0, *(len(client.train) for client in clients)])
        for client, start, end in zip(clients, starts, starts[1:], strict=False):
            pixels[start:end] = client.train.pixels[client.train.index]
        pixels.flush()
        del pixels
        mapped = np.load(path, mmap_mode="r")
        return [
            replace(client, train=UnlabeledImages(mapped, np.arange(start, end), DIGITS))
            for client, start, end in zip(clients, starts, starts[1:], strict=False)
        ]

    def model(self) -> DomainModel:
        """Return a source model that is trained for a few epochs."""
        path = self.folder / f"{self.backbone}-{self.side}.pt"
        torch.manual_seed(0)
        model = build_model(self.backbone, len(CLASSES), image_size=self.side, bottleneck=256)
        model = model.to(memory_format=torch.channels_last)
        if path.exists():
            model.load_state_dict(torch.load(path, weights_only=True))
        else:
            epochs = 6 if self.backbone == "lenet" else 1
            config = SourceConfig(epochs=epochs, lr=0.01, holdout=0.0)
            train_source(model, self.images(SOURCE, 600, 0), config, seed=0)
            torch.save(model.state_dict(), path)
        model.freeze_classifier()
        return model.eval()


def flops(model: DomainModel, images: UnlabeledImages) -> tuple[float, float]:
    """Return the FLOP for one image: of a forward pass, and of a training step."""
    x = images.batch(torch.arange(16))
    model.eval()
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        model(x)
    model.train()
    with FlopCounterMode(display=False) as train:
        information_maximization(model(x)[1]).backward()
    model.zero_grad()
    model.eval()
    return forward.get_total_flops() / 16, train.get_total_flops() / 16


@contextmanager
def simulator(
    model: DomainModel, method: Method, clients: list[ClientData], workers: int
) -> Iterator[Simulator]:
    """Yield an engine whose workers have started."""
    with tempfile.TemporaryDirectory() as scratch:
        engine = Simulator(model, method, clients, 0, Path(scratch) / "scratch", workers)
        try:
            engine.exchange(0, Record(), ((c, Job(None, None, Record())) for c in engine.clients()))
            yield engine
        finally:
            engine.close()


def one_round(engine: Simulator, method: Method, state: Record, number: int) -> Record:
    """Run a round without evaluation: messages, adaptation, aggregation."""
    jobs = ((c, Job(method.send(state, c), None, Record())) for c in engine.clients())
    results = engine.exchange(number, state, jobs).results
    replies: dict[Client, Record] = {c: r.adapted.reply for c, r in results.items() if r.adapted}
    return method.aggregate(state, replies)


def with_epochs(epochs: int, **settings: Any) -> Training:
    """Return the settings of Digit-Five with a number of epochs."""
    return replace(TRAINING, epochs=epochs, **settings)
