"""The same FedAvg round in the structure of other frameworks: SHOT's labels and loss, one process.

All three compute the same as `FedAvg`, with PyTorch's default threads and memory format. They
differ in how they hold clients, data and models:

- plain: a DataLoader over images that are normalised one by one, a deep copy for each client;
- like PFLlib: every client keeps its own model and reads its data file in each round;
- like pfl-research: one resident model, each user's data as one tensor, batches by slicing.

Rebuilt from the published structure of those projects, without their code.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fedwca.core.losses import information_maximization
from fedwca.core.pseudo_label import prototype_labels
from fedwca.data.images import ClientData
from fedwca.methods.training import Training
from fedwca.models import DomainModel

Batches = Callable[[bool], Iterable[tuple[Tensor, Tensor]]]  # shuffled or not: images, their rows


class Pictures(Dataset[tuple[Tensor, int]]):
    """Images that are converted and normalised one by one, as transforms do."""

    def __init__(self, client: ClientData) -> None:
        self._images = client.train

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        pixels = torch.from_numpy(self._images.pixels[self._images.index[place]].copy())
        x = pixels.permute(2, 0, 1).contiguous().float().div(255)
        return x.sub_(0.5).div_(0.5), place


def plain(model: DomainModel, clients: list[ClientData], training: Training) -> dict[str, Tensor]:
    """Loop over clients in the usual way, with a deep copy for each."""
    trained = []
    for client in clients:
        local = copy.deepcopy(model)
        pictures = Pictures(client)

        def batches(shuffle: bool, pictures: Pictures = pictures) -> DataLoader[tuple[Tensor, int]]:
            return DataLoader(pictures, training.batch_size, shuffle=shuffle)

        _adapt(local, batches, len(pictures), training)
        trained.append((len(pictures), local.state_dict()))
    return _average(trained)


class LikePFLlib:
    """A model and a data file for each client, created once."""

    def __init__(self, model: DomainModel, clients: list[ClientData], folder: Path) -> None:
        self._models = [copy.deepcopy(model) for _ in clients]
        self._files = []
        for number, client in enumerate(clients):
            x = client.train.batch(torch.arange(len(client.train))).contiguous()
            self._files.append(folder / f"pfllib-{number}.npz")
            np.savez_compressed(self._files[-1], x=x.numpy())

    def round(self, model: DomainModel, training: Training) -> dict[str, Tensor]:
        trained = []
        for local, file in zip(self._models, self._files, strict=True):
            for mine, new in zip(local.parameters(), model.parameters(), strict=True):
                mine.data = new.data.clone()
            x = torch.tensor(np.load(file)["x"])
            samples = [(image, place) for place, image in enumerate(x)]

            def batches(
                shuffle: bool, samples: list[tuple[Tensor, int]] = samples
            ) -> DataLoader[tuple[Tensor, int]]:
                return DataLoader(samples, training.batch_size, shuffle=shuffle)

            _adapt(local, batches, len(x), training)
            # Only parameters are sent there: BatchNorm's statistics stay at the client.
            trained.append((len(x), {n: p.detach() for n, p in local.named_parameters()}))
        return _average(trained)


def like_pfl_research(
    model: DomainModel, clients: list[ClientData], training: Training
) -> dict[str, Tensor]:
    """Train one resident model, reset to the server's weights before each user."""
    server = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trained = []
    for client in clients:
        model.load_state_dict(server)
        x = client.train.batch(torch.arange(len(client.train))).contiguous()
        data = TensorDataset(x, torch.arange(len(x)))

        def batches(shuffle: bool, data: TensorDataset = data) -> Iterator[tuple[Tensor, Tensor]]:
            order = torch.randperm(len(data)) if shuffle else torch.arange(len(data))
            for rows in order.split(training.batch_size):
                yield data.tensors[0][rows], rows

        _adapt(model, batches, len(x), training)
        update = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        trained.append((len(x), update))
    model.load_state_dict(server)
    return _average(trained)


def _adapt(model: DomainModel, batches: Batches, count: int, training: Training) -> None:
    model.eval()
    with torch.no_grad():
        outputs = [model(x) for x, _ in batches(False)]
    features, logits = (torch.cat(parts) for parts in zip(*outputs, strict=True))
    labels = prototype_labels(features, logits.softmax(dim=1)).labels
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad],
        lr=training.lr,
        momentum=training.momentum,
        nesterov=True,
        weight_decay=training.weight_decay,
    )
    model.train()
    for _ in range(training.epochs):
        for x, rows in batches(True):
            if len(rows) < 2:
                continue
            _, logits = model(x)
            loss = information_maximization(logits)
            loss = loss + training.ce_weight * F.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _average(trained: list[tuple[int, dict[str, Tensor]]]) -> dict[str, Tensor]:
    total = sum(count for count, _ in trained)
    first = trained[0][1]
    return {
        name: sum((count / total * s[name] for count, s in trained), torch.zeros(()))
        if first[name].is_floating_point()
        else first[name]
        for name in first
    }
