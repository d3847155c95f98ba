"""`mini-digits`: five domains of digits, generated in seconds from data in the dependencies.

It replaces Digit-Five (MNIST, MNIST-M, SYNTH, SVHN, USPS) where nothing may be downloaded.  The
handwriting is real: the 1797 scans of scikit-learn's `load_digits` (Alpaydin and Kaynak, "Optical
recognition of handwritten digits", UCI, 1998), each used for one image of one domain only, so that
no two domains share a scan.  The photos are scikit-learn's two sample photos; the typefaces are
those that Matplotlib ships.

What each domain imitates:
  handwriting  MNIST: LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to
               document recognition", 1998.  White pen on black, centered, with a wide border.
  photo        MNIST-M: Ganin et al., "Domain-adversarial training of neural networks", 2016.
               |photo patch - digit| in each color channel.
  printed      SYNTH Digits: Ganin and Lempitsky, "Unsupervised domain adaptation by
               backpropagation", 2015.  Typefaces, colors, rotated, blurred.
  street       SVHN: Netzer et al., "Reading digits in natural images with unsupervised feature
               learning", 2011.  House numbers cropped with their neighbors, pale and blurred.
  postal       USPS: Hull, "A database for handwritten text recognition research", 1994.
               Zip-code digits, cropped to the pen, at 16 x 16.
"""

from functools import partial

import numpy as np
import scipy
from numpy.typing import NDArray

from fedwca._support.errors import UserError
from fedwca.data.benchmarks import mini_digits_styles as styles
from fedwca.data.formats.arrays import ImageArray
from fedwca.data.types import DataRequest, RawBenchmark, RawDomain

__all__ = [
    "CLASSES",
    "DOMAINS",
    "find_mini_digits",
    "make_domain",
    "make_mini_digits",
    "sample_ids",
]

DOMAINS: tuple[str, ...] = ("handwriting", "photo", "printed", "street", "postal")
CLASSES: tuple[str, ...] = tuple("0123456789")

LabeledArray = tuple[NDArray[np.uint8], NDArray[np.int64]]

_HANDWRITTEN = ("handwriting", "photo", "postal")
_PRINTED_PER_CLASS = 60
_INVERTED = 2 / 3  # share of dark print that is inverted


def find_mini_digits(request: DataRequest) -> RawBenchmark:
    """Return the five domains; they have no files, only a seed."""
    side = styles.SIDE
    if request.image_size != side:
        raise UserError(f"mini-digits has images of {side} pixels; set data.image_size to {side}")
    key = {"benchmark": "mini-digits", "version": 3, "seed": request.seed}
    domains = (
        RawDomain(name, (), {**key, "domain": name}, partial(_open_domain, name, request.seed))
        for name in DOMAINS
    )
    return RawBenchmark(CLASSES, tuple(domains))


def _open_domain(domain: str, seed: int) -> ImageArray:
    return ImageArray(*make_domain(domain, seed))


def make_mini_digits(seed: int = 0) -> dict[str, LabeledArray]:
    """Return each domain's images, uint8 [N, 32, 32, 3], and labels, int64 [N]."""
    return {domain: make_domain(domain, seed) for domain in DOMAINS}


def make_domain(domain: str, seed: int) -> LabeledArray:
    """Return images and labels of one domain; `seed` determines every byte."""
    rng = _rng(seed, DOMAINS.index(domain))
    if domain in _HANDWRITTEN:
        scans, digits = _load_scans()
        ids = sample_ids(seed)[domain]
        labels = digits[ids]
        images = _draw_handwritten(domain, scans[ids], rng)
    else:
        labels = np.repeat(np.arange(10, dtype=np.int64), _PRINTED_PER_CLASS)
        rng.shuffle(labels)
        draw = _draw_printed if domain == "printed" else _draw_street
        images = [draw(int(digit), rng) for digit in labels]
    return np.round(255 * np.stack(images)).astype(np.uint8), labels


def sample_ids(seed: int = 0) -> dict[str, NDArray[np.int64]]:
    """Return the rows of `load_digits` that each handwritten domain uses, in image order."""
    rng = _rng(seed, len(DOMAINS))
    _, digits = _load_scans()
    # Class after class, shuffled within each: taking every third row gives each domain a third of
    # every class, and the same number of images to within one.
    classes = [rng.permutation(np.flatnonzero(digits == digit)) for digit in range(10)]
    rows = np.concatenate(classes)
    step = len(_HANDWRITTEN)
    shares = {domain: rows[start::step] for start, domain in enumerate(_HANDWRITTEN)}
    return {domain: rng.permutation(share).astype(np.int64) for domain, share in shares.items()}


def _rng(seed: int, stream: int) -> np.random.Generator:
    """Return a random stream per domain: no domain's bytes depend on another's."""
    return np.random.default_rng([seed, stream])


def _load_scans() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    from sklearn.datasets import load_digits  # here because it takes seconds to import

    digits = load_digits()
    return digits.images.astype(np.float64), digits.target.astype(np.int64)


def _draw_handwritten(
    domain: str, scans: NDArray[np.float64], rng: np.random.Generator
) -> list[styles.Picture]:
    if domain == "photo":
        from sklearn.datasets import load_sample_images  # here for the same reason

        photos = [photo.astype(np.float64) / 255 for photo in load_sample_images().images]
        # The pen inverts the photo.
        return [np.abs(_cut_patch(photos, rng) - _draw_handwriting(scan, rng)) for scan in scans]
    draw = _draw_handwriting if domain == "handwriting" else _draw_postal
    return [draw(scan, rng) for scan in scans]


def _cut_patch(photos: list[styles.Picture], rng: np.random.Generator) -> styles.Picture:
    """Cut a piece of a photo, near or far, on which an inverted digit is visible."""
    for _ in range(20):
        photo = photos[int(rng.integers(len(photos)))]
        step = int(rng.integers(1, 4))
        reach = styles.SIDE * step
        top, left = (int(rng.integers(extent - reach)) for extent in photo.shape[:2])
        piece = photo[top : top + reach, left : left + reach]
        patch = piece.reshape(styles.SIDE, step, styles.SIDE, step, 3).mean(axis=(1, 3))
        patch = np.rot90(patch, int(rng.integers(4)))
        if rng.random() < 0.4:  # two photos have few colors
            patch = patch[:, :, rng.permutation(3)]
        # Mid-gray is its own inverse: there the digit would vanish.
        if np.abs(2 * patch - 1).mean() > 0.25:
            break
    return np.asarray(patch)


def _draw_handwriting(scan: styles.Picture, rng: styles.Rng) -> styles.Picture:
    """Draw a white pen on black, the digit in the middle two thirds."""
    height = rng.uniform(20, 23)
    ink = styles.fit_to_picture(
        styles.trace_pen(scan, 0.60), height, 0.86 * height, turn=rng.normal(0, 0.05)
    )
    return styles.to_gray_rgb(ink)


def _draw_postal(scan: styles.Picture, rng: styles.Rng) -> styles.Picture:
    """Draw the digit cropped to the pen, scanned at 16 x 16 and enlarged to 32 x 32."""
    pen = styles.trace_pen(scan, rng.uniform(0.46, 0.68))
    width = styles.SIDE * np.clip(rng.normal(0.86, 0.10), 0.6, 1.0)
    ink = styles.fit_to_picture(
        pen, styles.SIDE, width, turn=rng.normal(0, 0.04), slant=rng.normal(0.10, 0.16)
    )
    ink = scipy.ndimage.gaussian_filter(ink, rng.uniform(0.3, 0.9))
    coarse = ink.reshape(styles.SIDE // 2, 2, styles.SIDE // 2, 2).mean(axis=(1, 3))
    coarse = np.round(coarse * 15) / 15  # the scanner knew few levels
    smooth = scipy.ndimage.zoom(coarse, 2, order=1, mode="nearest", grid_mode=True)
    return styles.to_gray_rgb(smooth * rng.uniform(0.8, 1.0))


def _draw_printed(digit: int, rng: styles.Rng) -> styles.Picture:
    """Draw one typeface in two colors, sometimes with a neighbor, rotated and blurred."""
    text, center = styles.add_neighbors(digit, rng, chance=0.2)
    ink, middle = styles.draw_text(str(rng.choice(styles.FONTS)), text, center)
    height = rng.uniform(16, 25)
    bend = (rng.normal(0, 0.12), rng.normal(0, 0.1), 0.0, 0.0)
    ink = styles.fit_line(ink, middle, height, bend, rng.normal(0, 1.5, 2))
    ground = styles.make_background(rng)
    pen = styles.pick_color(rng, styles.pick_lightness(float(ground.mean()), rng, 0.35, 1.0), 0.15)
    done = _invert_dark_print(ground + ink[..., None] * (pen - ground), pen, ground, rng)
    return styles.blur_and_add_noise(done, rng.choice([0.3, 0.4, 0.7, 1.2]), rng, grain=0.01)


def _draw_street(digit: int, rng: styles.Rng) -> styles.Picture:
    """Draw a house number seen at an angle in bad light, its neighbors cut off by the frame."""
    text, center = styles.add_neighbors(digit, rng, chance=0.8)
    fonts = styles.BOLD_FONTS if rng.random() < 0.75 else styles.FONTS
    ink, middle = styles.draw_text(str(rng.choice(fonts)), text, center)
    bend = (rng.normal(0, 0.10), rng.normal(0, 0.12), *rng.normal(0, 0.005, 2))
    ink = styles.fit_line(ink, middle, rng.uniform(20, 28), bend, rng.normal(0, 1.2, 2))
    ground = styles.make_wall(rng)
    pen = styles.pick_muted_color(rng, styles.pick_lightness(float(ground.mean()), rng, 0.20, 0.55))
    done = _invert_dark_print(ground + ink[..., None] * (pen - ground), pen, ground, rng)
    shade = styles.make_gradient(rng) * rng.uniform(0.0, 0.35)
    return styles.blur_and_add_noise(
        done * (1 - shade[..., None]), rng.uniform(0.7, 1.7), rng, grain=0.015
    )


def _invert_dark_print(
    picture: styles.Picture, pen: styles.Picture, ground: styles.Picture, rng: styles.Rng
) -> styles.Picture:
    """Invert most dark print.

    SYNTH and SVHN are light on dark half the time, here five times in six: a source model of 600
    white-on-black scans reads dark print at chance level, which says nothing about adaptation.
    """
    is_dark = pen.mean() < ground.mean()
    return 1 - picture if is_dark and rng.random() < _INVERTED else picture
