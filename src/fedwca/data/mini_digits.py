"""`mini-digits`: five domains of digits, made in seconds from what the dependencies carry.

It stands in for Digit-Five (MNIST, MNIST-M, SYNTH, SVHN, USPS) wherever nothing may be
downloaded.  The handwriting is real: the 1797 scans of scikit-learn's `load_digits` (Alpaydin and
Kaynak, "Optical recognition of handwritten digits", UCI, 1998), each used for one image of one
domain only, so that no scan of one domain is known from another.  The photos are scikit-learn's
two sample photos; the typefaces are those that Matplotlib ships.

What each domain imitates:
  handwriting  MNIST: LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to
               document recognition", 1998.  White pen on black, centred, with a wide border.
  photo        MNIST-M: Ganin et al., "Domain-adversarial training of neural networks", 2016.
               |photo patch - digit| in each colour channel.
  printed      SYNTH Digits: Ganin and Lempitsky, "Unsupervised domain adaptation by
               backpropagation", 2015.  Typefaces, colours, turned, blurred.
  street       SVHN: Netzer et al., "Reading digits in natural images with unsupervised feature
               learning", 2011.  House numbers cut out with their neighbours, pale and unsharp.
  postal       USPS: Hull, "A database for handwritten text recognition research", 1994.
               Zip-code digits, cropped to the pen, at 16 x 16.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import scipy
from numpy.typing import NDArray

from fedwca.data import mini_digits_looks as looks
from fedwca.data.arrays import StackedPictures
from fedwca.data.raw import Found, RawDomain, Request
from fedwca.errors import UserError

__all__ = ["CLASSES", "DOMAINS", "make_domain", "make_mini_digits", "mini_digits", "sample_ids"]

DOMAINS: tuple[str, ...] = ("handwriting", "photo", "printed", "street", "postal")
CLASSES: tuple[str, ...] = tuple("0123456789")

Labelled = tuple[NDArray[np.uint8], NDArray[np.int64]]

_WRITTEN = ("handwriting", "photo", "postal")
_PER_PRINTED_CLASS = 60
_NEGATIVES = 2 / 3  # of dark print


def mini_digits(request: Request) -> Found:
    """The benchmark as a loader finds it; it has no files, only a seed."""
    side = looks.SIDE
    if request.image_size != side:
        raise UserError(f"mini-digits has images of {side} pixels: set data.image_size to {side}")
    key = {"benchmark": "mini-digits", "version": 3, "seed": request.seed}
    domains = (
        RawDomain(name, (), {**key, "domain": name}, partial(_pictures, name, request.seed))
        for name in DOMAINS
    )
    return Found(CLASSES, tuple(domains))


def _pictures(domain: str, seed: int) -> StackedPictures:
    return StackedPictures(*make_domain(domain, seed))


def make_mini_digits(seed: int = 0) -> dict[str, Labelled]:
    """Each domain's images, uint8 [N, 32, 32, 3], and labels, int64 [N]; `seed` fixes all bytes."""
    return {domain: make_domain(domain, seed) for domain in DOMAINS}


def make_domain(domain: str, seed: int) -> Labelled:
    """Images and labels of one domain."""
    rng = _rng(seed, DOMAINS.index(domain))
    if domain in _WRITTEN:
        scans, truth = _scans()
        mine = sample_ids(seed)[domain]
        labels = truth[mine]
        pictures = _written(domain, scans[mine], rng)
    else:
        labels = np.repeat(np.arange(10, dtype=np.int64), _PER_PRINTED_CLASS)
        rng.shuffle(labels)
        look = _printed if domain == "printed" else _street
        pictures = [look(int(digit), rng) for digit in labels]
    return np.round(255 * np.stack(pictures)).astype(np.uint8), labels


def sample_ids(seed: int = 0) -> dict[str, NDArray[np.int64]]:
    """Which rows of `load_digits` each handwritten domain uses, in the order of its images."""
    rng = _rng(seed, len(DOMAINS))
    _, truth = _scans()
    # Class after class, shuffled within each: dealing them in turn gives each domain its third of
    # every class, and the same number of images to within one.
    deck = np.concatenate([rng.permutation(np.flatnonzero(truth == digit)) for digit in range(10)])
    hands = {domain: deck[place :: len(_WRITTEN)] for place, domain in enumerate(_WRITTEN)}
    return {domain: rng.permutation(hand).astype(np.int64) for domain, hand in hands.items()}


def _rng(seed: int, stream: int) -> np.random.Generator:
    """A stream of its own for each domain: no domain's bytes depend on how another is made."""
    if seed < 0:
        raise UserError(f"The seed of mini-digits must be 0 or more, not {seed}.")
    return np.random.default_rng([seed, stream])


def _scans() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    from sklearn.datasets import load_digits  # here, since it takes seconds to import

    digits = load_digits()
    return digits.images.astype(np.float64), digits.target.astype(np.int64)


def _written(
    domain: str, scans: NDArray[np.float64], rng: np.random.Generator
) -> list[looks.Picture]:
    if domain == "photo":
        from sklearn.datasets import load_sample_images  # here for the same reason

        photos = [photo.astype(np.float64) / 255 for photo in load_sample_images().images]
        return [_photo(scan, _patch(photos, rng), rng) for scan in scans]
    look = _handwriting if domain == "handwriting" else _postal
    return [look(scan, rng) for scan in scans]


def _patch(photos: list[looks.Picture], rng: np.random.Generator) -> looks.Picture:
    """A piece of a photo, near or far, on which an inverted digit can be seen."""
    for _ in range(20):
        photo = photos[int(rng.integers(len(photos)))]
        step = int(rng.integers(1, 4))
        reach = looks.SIDE * step
        top, left = (int(rng.integers(extent - reach)) for extent in photo.shape[:2])
        piece = photo[top : top + reach, left : left + reach]
        patch = piece.reshape(looks.SIDE, step, looks.SIDE, step, 3).mean(axis=(1, 3))
        patch = np.rot90(patch, int(rng.integers(4)))
        if rng.random() < 0.4:  # two photos have few colours
            patch = patch[:, :, rng.permutation(3)]
        # Mid-grey is its own inverse: there the digit would vanish.
        if np.abs(2 * patch - 1).mean() > 0.25:
            break
    return np.asarray(patch)


def _handwriting(scan: looks.Picture, rng: looks.Rng) -> looks.Picture:
    """White pen on black, the digit in the middle two thirds."""
    height = rng.uniform(20, 23)
    ink = looks.placed(looks.pen(scan, 0.60), height, 0.86 * height, turn=rng.normal(0, 0.05))
    return looks.grey(ink)


def _photo(scan: looks.Picture, patch: looks.Picture, rng: looks.Rng) -> looks.Picture:
    """The digit inverts the photo where the pen went."""
    height = rng.uniform(20, 23)
    ink = looks.placed(looks.pen(scan, 0.60), height, 0.86 * height, turn=rng.normal(0, 0.05))
    return np.abs(patch - looks.grey(ink))


def _postal(scan: looks.Picture, rng: looks.Rng) -> looks.Picture:
    """Cropped to the pen, scanned at 16 x 16, shown at 32 x 32 with the grey that this leaves."""
    pen = looks.pen(scan, rng.uniform(0.46, 0.68))
    width = looks.SIDE * np.clip(rng.normal(0.86, 0.10), 0.6, 1.0)
    ink = looks.placed(
        pen, looks.SIDE, width, turn=rng.normal(0, 0.04), slant=rng.normal(0.10, 0.16)
    )
    ink = scipy.ndimage.gaussian_filter(ink, rng.uniform(0.3, 0.9))
    coarse = ink.reshape(looks.SIDE // 2, 2, looks.SIDE // 2, 2).mean(axis=(1, 3))
    coarse = np.round(coarse * 15) / 15  # the scanner knew few levels
    smooth = scipy.ndimage.zoom(coarse, 2, order=1, mode="nearest", grid_mode=True)
    return looks.grey(smooth * rng.uniform(0.8, 1.0))


def _printed(digit: int, rng: looks.Rng) -> looks.Picture:
    """One typeface, two colours, sometimes a neighbour, turned and blurred."""
    text, centre = looks.with_neighbours(digit, rng, chance=0.2)
    ink, middle = looks.glyphs(str(rng.choice(looks.FONTS)), text, centre)
    height = rng.uniform(16, 25)
    bend = (rng.normal(0, 0.12), rng.normal(0, 0.1), 0.0, 0.0)
    ink = looks.line(ink, middle, height, bend, rng.normal(0, 1.5, 2))
    ground = looks.ground(rng)
    pen = looks.colour(rng, looks.apart(float(ground.mean()), rng, 0.35, 1.0), 0.15)
    done = _mostly_light_print(ground + ink[..., None] * (pen - ground), pen, ground, rng)
    return looks.soft(done, rng.choice([0.3, 0.4, 0.7, 1.2]), rng, grain=0.01)


def _street(digit: int, rng: looks.Rng) -> looks.Picture:
    """A house number seen askew in bad light, its neighbours cut off by the frame."""
    text, centre = looks.with_neighbours(digit, rng, chance=0.8)
    fonts = looks.BOLD_FONTS if rng.random() < 0.75 else looks.FONTS
    ink, middle = looks.glyphs(str(rng.choice(fonts)), text, centre)
    bend = (rng.normal(0, 0.10), rng.normal(0, 0.12), *rng.normal(0, 0.005, 2))
    ink = looks.line(ink, middle, rng.uniform(20, 28), bend, rng.normal(0, 1.2, 2))
    ground = looks.wall(rng)
    pen = looks.dusty(rng, looks.apart(float(ground.mean()), rng, 0.20, 0.55))
    done = _mostly_light_print(ground + ink[..., None] * (pen - ground), pen, ground, rng)
    shade = looks.ramp(rng) * rng.uniform(0.0, 0.35)
    return looks.soft(done * (1 - shade[..., None]), rng.uniform(0.7, 1.7), rng, grain=0.015)


def _mostly_light_print(
    picture: looks.Picture, pen: looks.Picture, ground: looks.Picture, rng: looks.Rng
) -> looks.Picture:
    """Turn most dark print into its negative.

    SYNTH and SVHN are light on dark half the time. Here it is five times in six: a source model
    of 600 white-on-black scans reads dark print at chance, and what nobody can read at the start
    tells nothing about methods that adapt.
    """
    is_dark = pen.mean() < ground.mean()
    return 1 - picture if is_dark and rng.random() < _NEGATIVES else picture
