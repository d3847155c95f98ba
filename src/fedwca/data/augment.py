"""Turn stored pixels into network input: crop, flip, normalize."""

from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "DIGITS",
    "OBJECTS",
    "Transform",
    "digit_transform",
    "object_transform",
    "strong_view",
    "weak_view",
]

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


def weak_view(x: Tensor, rng: torch.Generator) -> Tensor:
    """Change position and brightness of network input [B, 3, H, W], but not its style.

    Each image is rotated by up to 15°, scaled and shifted by up to a tenth, changed in contrast
    and brightness, and loses a square of half its side. All amounts are relative to the image, so
    digits of 32 pixels and photos of 224 change alike. Nothing is mirrored: a mirrored digit is
    another character.
    """
    draw = _Draw(len(x), rng, x.device)
    moved = _move(x, draw, angle=0.262, scale=0.1, shift=0.1)
    toned = moved * draw.uniform(0.6, 1.4, 1, 1, 1) + draw.uniform(-0.4, 0.4, 1, 1, 1)
    return toned.masked_fill(_hole(x, draw, torch.tensor(0.5)), 0.0)


def strong_view(x: Tensor, rng: torch.Generator) -> Tensor:
    """Change position and style of network input [B, 3, H, W], so that only shape remains.

    Each image is moved (rotation and shear by up to 15° and 10°, scale 0.8 to 1.2, shift by up to
    a tenth), and then, each with its own probability: filtered by a random convolution (Xu et al.,
    ICLR 2021), inverted, changed in gain and offset of every channel, covered by smooth texture
    and noise, blurred, and it loses a square. As in `weak_view`, all amounts are relative to the
    image, and nothing is mirrored.
    """
    draw = _Draw(len(x), rng, x.device)
    x = _move(x, draw, angle=0.262, shear=0.175, scale=0.2, shift=0.1)
    x = torch.where(draw.chance(0.5), _random_convolution(x, draw), x)
    x = torch.where(draw.chance(0.5), -x, x)
    toned = x * draw.uniform(0.5, 1.5, 3, 1, 1) + draw.uniform(-0.5, 0.5, 3, 1, 1)
    x = torch.where(draw.chance(0.8), toned, x)
    x = torch.where(draw.chance(0.5), x + _texture(x, draw), x)
    x = torch.where(draw.chance(0.3), F.avg_pool2d(x, 3, stride=1, padding=1), x)
    hole = _hole(x, draw, draw.uniform(0.1, 0.35, 1))
    return x.masked_fill(hole & draw.chance(0.5), 0.0)


class _Draw:
    """Draws a number for each of `count` images, on the images' device."""

    def __init__(self, count: int, rng: torch.Generator, device: torch.device) -> None:
        self._count, self._rng, self._device = count, rng, device

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        numbers = torch.rand(self._count, *shape, generator=self._rng)
        return (low + (high - low) * numbers).to(self._device)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(self._count, *shape, generator=self._rng).to(self._device)

    def chance(self, probability: float) -> Tensor:
        """Return [B, 1, 1, 1]: True with this probability for each image."""
        return self.uniform(0, 1, 1, 1, 1) < probability

    def one_of(self, *numbers: int) -> int:
        """Return one of the numbers, the same for all images."""
        return numbers[int(torch.randint(len(numbers), (1,), generator=self._rng))]


def _move(
    x: Tensor, draw: _Draw, *, angle: float, scale: float, shift: float, shear: float = 0.0
) -> Tensor:
    """Rotate and shear (radians), scale and shift (relative to the side) by up to these amounts."""
    turn, size = draw.uniform(-angle, angle), draw.uniform(1 - scale, 1 + scale)
    slant = draw.uniform(-shear, shear).tan() if shear else torch.zeros_like(turn)
    cos, sin = size * turn.cos(), size * turn.sin()
    rows = [torch.stack([cos, cos * slant - sin], 1), torch.stack([sin, sin * slant + cos], 1)]
    linear = torch.stack(rows, 1)  # [B, 2, 2]
    # Coordinates go from -1 to 1, so that a side is 2.
    moves = torch.cat([linear, draw.uniform(-2 * shift, 2 * shift, 2, 1)], dim=2)
    grid = F.affine_grid(moves, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def _random_convolution(x: Tensor, draw: _Draw) -> Tensor:
    """Mix each image with a copy filtered by a random kernel of its own, of 1 to 7 pixels."""
    count, channels, height, width = x.shape
    side = draw.one_of(1, 3, 5, 7)
    kernels = draw.normal(channels, channels, side, side) / (channels * side**2) ** 0.5
    filtered = F.conv2d(
        x.reshape(1, count * channels, height, width),
        kernels.reshape(count * channels, channels, side, side),
        padding=side // 2,
        groups=count,
    ).view(x.shape)
    share = draw.uniform(0, 1, 1, 1, 1)
    return share * x + (1 - share) * filtered


def _texture(x: Tensor, draw: _Draw) -> Tensor:
    """Return smooth random patches of color plus pixel noise, of random strength."""
    coarse = draw.normal(3, 4, 4)
    smooth = F.interpolate(coarse, x.shape[2:], mode="bilinear", align_corners=False)
    noise = draw.normal(3, *x.shape[2:])
    return draw.uniform(0, 0.5, 1, 1, 1) * smooth + draw.uniform(0, 0.2, 1, 1, 1) * noise


def _hole(x: Tensor, draw: _Draw, side: Tensor) -> Tensor:
    """Return the mask [B, 1, H, W] of a random square; `side` is relative to the image's."""
    marks = []
    for length in x.shape[2:]:
        middle, half = draw.uniform(0, length, 1), side.to(x.device) * length / 2
        marks.append((torch.arange(length, device=x.device) - middle).abs() < half)
    rows, columns = marks
    return rows[:, None, :, None] & columns[:, None, None, :]
