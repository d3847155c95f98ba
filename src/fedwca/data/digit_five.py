"""Digit-Five from the files that people have: own archives, the public `.mat` files, originals.

MNIST (LeCun 1998), SVHN (Netzer 2011), MNIST-M (Ganin 2016), USPS (Hull 1994), SYNTH (Ganin 2015).
The `.mat` files are those of the download that goes with "Moment matching for multi-source domain
adaptation" (Peng 2019).  Train and test images are used together, as the paper does.
"""

import gzip
import math
import os
import re
import struct
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedwca.data.arrays import StackedPictures, stacked_pictures
from fedwca.data.folders import nested
from fedwca.data.mat import mat_arrays, mat_shapes
from fedwca.data.mini_digits import CLASSES
from fedwca.data.npz import read_npz
from fedwca.data.raw import Found, RawDomain, Request
from fedwca.data.reading import reading
from fedwca.errors import UserError
from fedwca.files import open_file

__all__ = ["DIGIT_FIVE", "digit_five", "looks_like_digit_five"]

DIGIT_FIVE = ("mnist", "svhn", "mnist_m", "usps", "synth")

_DEPTH = 3
_ENDINGS = (".npz", ".mat", "ubyte", "ubyte.gz")
_NOT_MNIST = ("fashion", "kmnist", "notmnist")  # their files have the names of MNIST's
_ZERO_IS_TEN = ("svhn", "synth")
_LARGEST_IDX = 1 << 30  # bytes; MNIST has a twentieth of it
_IDX_MAGIC = {3: 2051, 1: 2049}  # by number of axes: images, labels

Labelled = tuple[NDArray[Any], NDArray[Any]]
Listed = dict[Path, dict[str, Path]]  # files by folder and spelling, the nearest folder first


class _Form(NamedTuple):
    """One way in which a domain comes: `parts` (train, test) of one or more files each."""

    name: str
    parts: tuple[tuple[str, ...], ...]
    read: Callable[..., list[Labelled]]  # given the files of one part


def digit_five(request: Request) -> Found:
    """Those of the five domains whose files are in the folder or up to 3 folders below it."""
    folder = request.path or Path()
    listed = _files_by_folder(folder)
    domains, missing, warnings = [], [], []
    for name in DIGIT_FIVE:
        form, parts = _find(name, listed)
        if not any(parts):
            missing.append(name)
            warnings.append(f"{name} is missing: no {_wanted(name)} in {folder}; it is left out")
            continue
        files, key = tuple(chain(*parts)), f"digit-five/{name}/{form.name}"
        domains.append(RawDomain(name, files, key, partial(_pictures, name, form, parts)))
        for names in (form.parts[i] for i, part in enumerate(parts) if not part):
            warnings.append(f"{name} lacks {' with '.join(names)} in {folder}; the rest is used")
    if len(domains) < 2:
        raise UserError(
            f"{folder} holds {len(domains)} of Digit-Five's domains, but two are needed: "
            f"put there {'; '.join(f'for {name} {_wanted(name)}' for name in missing)}"
        )
    return Found(CLASSES, tuple(domains), tuple(warnings))


def looks_like_digit_five(folder: Path) -> bool:
    """Whether files of two or more of the five domains are there, by their names alone."""
    listed = _files_by_folder(folder)
    return sum(any(_find(name, listed)[1]) for name in DIGIT_FIVE) >= 2


def _files_by_folder(folder: Path) -> Listed:
    """All files that may be of use; of spellings of one name in one folder, the first."""
    listed: Listed = {}
    for place, _ in nested(folder, _DEPTH):
        inner = place.relative_to(folder)
        not_mnist = any(word in str(inner).lower() for word in _NOT_MNIST)
        for name in _useful_names(place):
            if not (not_mnist and "ubyte" in name.lower()):
                listed.setdefault(place, {}).setdefault(_one_spelling(name, place), place / name)
    return dict(sorted(listed.items(), key=lambda item: (len(item[0].parts), item[0])))


def _useful_names(folder: Path) -> list[str]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.lower().endswith(_ENDINGS))
    except OSError:  # what lies around need not be readable
        return []
    return [name for name in names if not os.path.isdir(folder / name)]


def _one_spelling(name: str, folder: Path | None = None) -> str:
    """A name without what its spellings differ in, such as `MNIST-M.npz` and `mnist_m.npz`."""
    plain = re.sub(r"[-_. ]", "", name.lower().removesuffix(".gz"))
    if re.fullmatch("(train|test)32x32mat", plain):
        # SYNTH's files may have the names of SVHN's: then their folder tells.
        of_synth = folder is not None and folder.absolute().name.lower().startswith("syn")
        plain = ("synth" if of_synth else "svhn") + plain
    return re.sub(r"^syn(th)?(etic)?(number|digit)?s?", "synth", plain)


def _find(name: str, listed: Listed) -> tuple[_Form, list[tuple[Path, ...]]]:
    """The first form of which anything is there, and each part's files, () if not there."""
    found = [(form, [_find_part(part, listed) for part in form.parts]) for form in _FORMS[name]]
    return next((pair for pair in found if any(pair[1])), found[-1])


def _find_part(part: tuple[str, ...], listed: Listed) -> tuple[Path, ...]:
    """The files of a part, all from one folder: the labels of another copy may not fit."""
    names = [_one_spelling(name) for name in part]
    places = [there for there in listed.values() if there.keys() >= set(names)]
    return tuple(places[0][name] for name in names) if places else ()


def _wanted(name: str) -> str:
    *most, last = (" with ".join(form.parts[0]) for form in _FORMS[name])
    return f"{', '.join(most)} or {last}"


def _pictures(name: str, form: _Form, parts: list[tuple[Path, ...]]) -> StackedPictures:
    """All parts in one; each is checked by itself, so that no label slips to another image."""
    stacks = []
    for files in filter(None, parts):
        where = " with ".join(map(str, files))
        pairs = form.read(*files)
        if any(array.dtype.kind not in "uif" for pair in pairs for array in pair):
            raise UserError(f"{where} holds something else than numbers: download it anew")
        brightest = max(float(np.max(images, initial=0)) for images, _ in pairs)
        for images, labels in pairs:
            digits = _as_digits(where, labels, len(images), name in _ZERO_IS_TEN)
            stacks.append(stacked_pictures(where, _guessed_bytes(where, images, brightest), digits))
    if len({stack.images.shape[1:] for stack in stacks}) > 1:
        raise UserError(f"{where} differs from the rest of {name} in image size: download it anew")
    return StackedPictures(
        np.concatenate([stack.images for stack in stacks]),
        np.concatenate([stack.labels for stack in stacks]),
    )


def _guessed_bytes(where: str, images: NDArray[Any], brightest: float) -> NDArray[np.uint8]:
    """Some files count 0..255 in floats, some 0..1: the brightest pixel of the file tells."""
    if images.dtype == np.uint8:
        return images
    is_unit = images.dtype.kind == "f" and brightest <= 1.5
    scaled = np.rint(images * 255) if is_unit else np.rint(images)
    if not (np.min(scaled, initial=0) >= 0 and np.max(scaled, initial=0) <= 255):  # or NaN
        raise UserError(f"{where} has pixels outside 0..255: download it anew")
    return np.asarray(scaled, dtype=np.uint8)


def _as_digits(
    where: str, labels: NDArray[Any], count: int, zero_is_ten: bool
) -> NDArray[np.int64]:
    """Labels as digits, from a column of numbers or from one column for each digit."""
    if labels.shape == (count, len(CLASSES)):
        labels = labels.argmax(axis=1)
    elif labels.size == count:
        labels = labels.reshape(-1)
    if zero_is_ten:
        labels = np.where(labels == 10, 0, labels)
    wrong = labels[~np.isin(labels, np.arange(-1, len(CLASSES)))]
    if len(wrong):
        raise UserError(f"{where} has the label {wrong[0]}: label each image with its digit, 0..9")
    return labels.astype(np.int64)


def _read_npz(file: Path) -> list[Labelled]:
    stack = read_npz(file)
    return [(stack.images, stack.labels)]


def _read_mat(keys: str, file: Path) -> list[Labelled]:
    """Arrays of images and of labels in turn; `train_28` where there is no `train_32`."""
    there = mat_shapes(file)
    used = [key if key in there else key.replace("_32", "_28") for key in keys.split()]
    missing = [key for key, use in zip(keys.split(), used, strict=True) if use not in there]
    if missing:
        raise UserError(f"{file} has no array {missing[0]!r}: download it anew, or save it as .npz")
    content = mat_arrays(file, used)
    arrays = [np.asarray(content[key]) for key in used]
    return list(zip(arrays[::2], arrays[1::2], strict=True))


def _read_32x32(file: Path) -> list[Labelled]:
    """SVHN's own form, in which images follow each other along the last axis."""
    ((images, labels),) = _read_mat("X y", file)
    return [(np.moveaxis(images, -1, 0), labels)]


def _read_usps(file: Path) -> list[Labelled]:
    """Cells of train images [N, 1, 28, 28] and labels, test images and labels."""
    cells: Any = mat_arrays(file, ["dataset"]).get("dataset")
    if np.shape(cells) != (2, 2) or any(np.ndim(images) != 4 for images in cells[:, 0]):
        raise UserError(f"{file} has no 2×2 cells 'dataset' of images and labels: download it anew")
    return [(np.moveaxis(images, 1, -1), labels) for images, labels in cells]


def _read_idx(images: Path, labels: Path) -> list[Labelled]:
    return [(_idx(images, 3), _idx(labels, 1))]


def _idx(file: Path, axes: int) -> NDArray[np.uint8]:
    """The array in one of MNIST's own files, packed or not, whatever its name says."""
    with reading(file, "is cut short or damaged: download it anew"):
        with open_file(file) as stored:
            packed = stored.peek(2)[:2] == b"\x1f\x8b"
            stream = gzip.GzipFile(fileobj=stored) if packed else stored
            magic, *shape = struct.unpack(f">{1 + axes}I", stream.read(4 * (1 + axes)))
            # No more than is told, and one byte to see that there is no more.
            content = stream.read(min(math.prod(shape), _LARGEST_IDX) + 1)
        if magic != _IDX_MAGIC[axes]:
            raise UserError(f"{file} is not the file of MNIST that its name says: download it anew")
        return np.frombuffer(content, np.uint8).reshape(shape)


def _one(name: str, read: Callable[[Path], list[Labelled]]) -> _Form:
    return _Form(name.split(".")[-1], ((name,),), read)


_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_PUBLIC = {
    "mnist": (
        _one("mnist_data.mat", partial(_read_mat, "train_32 label_train test_32 label_test")),
        _Form("idx", (_TRAIN, _TEST), _read_idx),
    ),
    "svhn": (_Form("32x32", (("svhn_train_32x32.mat",), ("svhn_test_32x32.mat",)), _read_32x32),),
    "mnist_m": (
        _one("mnistm_with_label.mat", partial(_read_mat, "train label_train test label_test")),
    ),
    "usps": (_one("usps_28x28.mat", _read_usps),),
    "synth": (
        _one("syn_number.mat", partial(_read_mat, "train_data train_label test_data test_label")),
        _Form("32x32", (("synth_train_32x32.mat",), ("synth_test_32x32.mat",)), _read_32x32),
    ),
}
_FORMS = {name: (_one(f"{name}.npz", _read_npz), *_PUBLIC[name]) for name in DIGIT_FIVE}
