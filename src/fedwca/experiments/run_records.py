"""A run's records of its clients and its privacy: clients.json, examples.json, privacy.json."""

import base64
import io
import logging
from typing import Any

import numpy as np
import torch
from PIL import Image

from fedwca.data import Benchmark, ClientData, LabeledImages, UnlabeledImages
from fedwca.experiments.store import RunFolder
from fedwca.privacy.accounting import Guarantee
from fedwca.privacy.mechanism import Privacy

__all__ = ["save_clients", "save_guarantee"]

logger = logging.getLogger(__name__)

_EXAMPLES = 4  # images of each client in the report
_EXAMPLE_SIDE = 40  # pixels


def save_clients(folder: RunFolder, clients: list[ClientData], benchmark: Benchmark) -> None:
    """Save which images each client has, and a few of them as examples."""
    folder.write_json("clients.json", _client_files(clients, benchmark))
    examples = {client.name: _example_images(client.train) for client in clients}
    folder.write_json("examples.json", {"size": _EXAMPLE_SIDE, "clients": examples})


def _client_files(clients: list[ClientData], benchmark: Benchmark) -> dict[str, Any]:
    """Return the files of each client's images, or row numbers where a file holds many images."""

    def files(domain: str, part: UnlabeledImages | LabeledImages | None) -> list[Any]:
        if part is None:
            return []
        images = part.images if isinstance(part, LabeledImages) else part
        names = benchmark.domains[domain].files
        rows: list[int] = images.index.tolist()
        return [names[row] for row in rows] if names else rows

    return {
        "classes": list(benchmark.classes),
        "clients": {
            client.name: {
                "domain": client.domain,
                "train": files(client.domain, client.train),
                "validation": files(client.domain, client.validation),
                "test": files(client.domain, client.test),
            }
            for client in clients
        },
    }


def _example_images(images: UnlabeledImages) -> list[str]:
    """Return a few evenly spaced images, as PNG files in base64."""
    count = min(_EXAMPLES, len(images))
    rows = torch.linspace(0, len(images) - 1, count).long()
    pixels = (images.raw(rows).permute(0, 2, 3, 1) * 255).round().to(torch.uint8)
    return [_encode_png(picture) for picture in pixels.numpy()]


def _encode_png(pixels: np.ndarray) -> str:
    picture = Image.fromarray(pixels)
    picture.thumbnail((_EXAMPLE_SIDE, _EXAMPLE_SIDE))
    file = io.BytesIO()
    picture.quantize(64).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def save_guarantee(folder: RunFolder, privacy: Privacy, guarantee: Guarantee | None) -> None:
    """Save the privacy guarantee in the run folder, if there is one, and log it."""
    if guarantee is not None:
        folder.write_json("privacy.json", guarantee._asdict())
        logger.info(
            "privacy: (ε, δ) = (%.3g, %g) for the whole data set of each client after %d rounds",
            guarantee.epsilon,
            guarantee.delta,
            guarantee.rounds,
        )
    elif privacy.on:
        logger.warning("privacy: updates are clipped but get no noise; nothing is guaranteed")
