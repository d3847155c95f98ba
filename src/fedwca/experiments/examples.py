"""A few small images of each client, for the report."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from fedwca.data.images import ClientData

__all__ = ["example_images"]

_COUNT = 4  # of each client
_SIDE = 40  # pixels


def example_images(clients: Sequence[ClientData]) -> dict[str, Any]:
    """Return PNG files in base64, evenly spaced from each client's images."""
    return {"size": _SIDE, "clients": {c.name: _pictures(c) for c in clients}}


def _pictures(client: ClientData) -> list[str]:
    count = min(_COUNT, len(client.train))
    rows = torch.linspace(0, len(client.train) - 1, count).long()
    pixels = (client.train.raw(rows).permute(0, 2, 3, 1) * 255).round().to(torch.uint8)
    return [_png(picture) for picture in pixels.numpy()]


def _png(pixels: np.ndarray) -> str:
    picture = Image.fromarray(pixels)
    if max(picture.size) > _SIDE:
        picture.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    picture.quantize(64).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
