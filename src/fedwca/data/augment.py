"""Turn stored pixels into network input: crop, flip, normalize."""

from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["DIGITS", "OBJECTS", "Transform", "digit_transform", "distort", "object_transform"]

Channels = tuple[float, float, float]


@cache
def _repeat_channels(channels: Channels, width: int, device: torch.device) -> Tensor:
    """Return [3 · width]: the channels' numbers repeated for every pixel of a row."""
    return torch.tensor(channels, device=device).repeat(width)


@dataclass(frozen=True)
class Transform:
    """Crop, flip and normalize images; crops and flips are views of the stored uint8 pixels.

    Attributes:
        mean, std: per channel, for pixels scaled to 0..1.
        crop: side of the square given to the network; 0 keeps the stored size. Random crops in
            training, center crops otherwise.
        flip: mirror at random in training.
    """

    mean: Channels
    std: Channels
    crop: int = 0
    flip: bool = False

    def __call__(
        self,
        pixels: Tensor,
        augment: torch.Generator | None = None,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Turn uint8 [B, H, W, 3] into float [B, 3, h, w] on a device, channels last in memory.

        Bytes are copied to the device, a quarter of the size of the floats they become there.
        """
        if self.crop:
            pixels = self._crop_pixels(pixels, augment)
        if self.flip and augment is not None:
            mirrored = torch.rand(len(pixels), generator=augment) < 0.5
            pixels = torch.where(mirrored[:, None, None, None], pixels.flip(2), pixels)
        return self._normalize(pixels.to(device, non_blocking=True)).permute(0, 3, 1, 2)

    def _normalize(self, pixels: Tensor) -> Tensor:
        """Return (x / 255 - mean) / std, row by row: three numbers at a time would be slow."""
        count, height, width, _ = pixels.shape
        mean, std = (
            _repeat_channels(channels, width, pixels.device) for channels in (self.mean, self.std)
        )
        rows = pixels.float().reshape(count, height, -1)
        return rows.div_(255).sub_(mean).div_(std).view(pixels.shape)

    def _crop_pixels(self, pixels: Tensor, augment: torch.Generator | None) -> Tensor:
        room = torch.tensor([pixels.shape[1] - self.crop, pixels.shape[2] - self.crop])
        if augment is None:
            top, left = (room // 2).tolist()
            return pixels[:, top : top + self.crop, left : left + self.crop]
        corners = (torch.rand(len(pixels), 2, generator=augment) * (room + 1)).long().tolist()
        return torch.stack(
            [
                image[top : top + self.crop, left : left + self.crop]
                for image, (top, left) in zip(pixels, corners, strict=True)
            ]
        )


DIGITS = Transform(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
OBJECTS = Transform(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop=224, flip=True)


def digit_transform(image_size: int) -> Transform:
    """Return the transform of digits: whole images of any size."""
    return DIGITS


def object_transform(image_size: int) -> Transform:
    """Return the transform of photos: crops of 224 from images of 256, others in proportion."""
    return replace(OBJECTS, crop=image_size * 7 // 8)


def distort(x: Tensor, rng: torch.Generator) -> Tensor:
    """Strong augmentation of network input [B, 3, H, W], for weak/strong consistency.

    Each image is rotated by up to 15°, scaled and shifted by up to a tenth, changed in contrast
    and brightness, and loses a square of half its side. Nothing is mirrored: a mirrored digit is
    another character.
    """
    count, _, height, width = x.shape

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return (low + (high - low) * torch.rand(count, *shape, generator=rng)).to(x.device)

    angle, scale = uniform(-0.262, 0.262), uniform(0.9, 1.1)
    cos, sin = scale * angle.cos(), scale * angle.sin()
    linear = torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)  # [B, 2, 2]
    moves = torch.cat([linear, uniform(-0.2, 0.2, 2, 1)], dim=2)  # in coordinates from -1 to 1
    grid = F.affine_grid(moves, list(x.shape), align_corners=False)
    moved = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    toned = moved * uniform(0.6, 1.4, 1, 1, 1) + uniform(-0.4, 0.4, 1, 1, 1)
    rows = (torch.arange(height, device=x.device) - uniform(0, height, 1)).abs() < height / 4
    columns = (torch.arange(width, device=x.device) - uniform(0, width, 1)).abs() < width / 4
    hole = rows[:, None, :, None] & columns[:, None, None, :]  # [B, 1, H, W]
    return toned.masked_fill(hole, 0.0)
