"""Digit-Five in any of its forms: your own `.npz`, the public `.mat` files, or the originals.

MNIST (LeCun 1998), SVHN (Netzer 2011), MNIST-M (Ganin 2016), USPS (Hull 1994), SYNTH (Ganin 2015).
The `.mat` files are those of the download for "Moment matching for multi-source domain
adaptation" (Peng 2019). Train and test images are used together, as in the paper.
"""

import gzip
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

from fedwca._support.errors import UserError
from fedwca._support.files import open_regular_file
from fedwca.data.benchmarks.mini_digits import CLASSES
from fedwca.data.formats.arrays import (
    ImageArray,
    explain_read_errors,
    read_mat,
    read_npz,
    validate_image_array,
)
from fedwca.data.formats.folders import walk_folders
from fedwca.data.types import DataRequest, RawBenchmark, RawDomain

__all__ = ["DIGIT_FIVE", "contains_digit_five", "find_digit_five"]

DIGIT_FIVE = ("mnist", "svhn", "mnist_m", "usps", "synth")

_DEPTH = 3
_SUFFIXES = (".npz", ".mat", "ubyte", "ubyte.gz")
_NOT_MNIST = ("fashion", "kmnist", "notmnist")  # their files are named like MNIST's
_ZERO_IS_TEN = ("svhn", "synth")
_IDX_MAGIC = {3: 2051, 1: 2049}  # by number of axes: images, labels

LabeledArray = tuple[NDArray[Any], NDArray[Any]]
FilesByFolder = dict[Path, dict[str, Path]]  # by normalized name; the nearest folder first


class _Form(NamedTuple):
    """One form in which a domain is distributed.

    Attributes:
        name: part of the key of the domain's cache entry.
        parts: file names of each part (train, test).
        read: reads the files of one part.
    """

    name: str
    parts: tuple[tuple[str, ...], ...]
    read: Callable[..., list[LabeledArray]]


def find_digit_five(request: DataRequest) -> RawBenchmark:
    """Return those of the five domains whose files are in the folder or up to 3 levels below."""
    folder = request.path or Path()
    files_by_folder = _list_files(folder)
    domains, warnings = [], []
    for name in DIGIT_FIVE:
        form, parts = _find_form(name, files_by_folder)
        if not any(parts):
            warnings.append(f"ignoring {name}: no {_expected_files(name)} in {folder}")
            continue
        files, key = tuple(chain(*parts)), f"digit-five/{name}/{form.name}"
        domains.append(RawDomain(name, files, key, partial(_read_domain, name, form, parts)))
        for names in (form.parts[i] for i, part in enumerate(parts) if not part):
            warnings.append(f"{name} lacks {' with '.join(names)} in {folder}; using the rest")
    if len(domains) < 2:
        raise UserError(
            f"{folder} has {len(domains)} of Digit-Five's domains, but two are needed; "
            f"add files: {'; '.join(warnings)}"
        )
    return RawBenchmark(CLASSES, tuple(domains), tuple(warnings))


def contains_digit_five(folder: Path) -> bool:
    """Return whether files of two or more of the five domains are there, by their names alone."""
    files_by_folder = _list_files(folder)
    return sum(any(_find_form(name, files_by_folder)[1]) for name in DIGIT_FIVE) >= 2


def _list_files(folder: Path) -> FilesByFolder:
    """Return all files that may be useful; of several spellings in one folder, the first."""
    files_by_folder: FilesByFolder = {}
    for place, _ in walk_folders(folder, _DEPTH):
        below = str(place.relative_to(folder)).lower()
        not_mnist = any(word in below for word in _NOT_MNIST)
        _, _, names = next(os.walk(place), ("", [], []))  # a folder that cannot be read is skipped
        for name in sorted(names):
            is_useful = name.lower().endswith(_SUFFIXES)
            if is_useful and not (not_mnist and "ubyte" in name.lower()):
                files = files_by_folder.setdefault(place, {})
                files.setdefault(_normalize(name, place), place / name)
    return dict(sorted(files_by_folder.items(), key=lambda item: (len(item[0].parts), item[0])))


def _normalize(name: str, folder: Path | None = None) -> str:
    """Return one name for all spellings, such as `MNIST-M.npz` and `mnist_m.npz`."""
    plain = re.sub(r"[-_. ]", "", name.lower().removesuffix(".gz"))
    if re.fullmatch("(train|test)32x32mat", plain):
        # SYNTH's files may be named like SVHN's: then their folder decides.
        is_synth = folder is not None and folder.absolute().name.lower().startswith("syn")
        plain = ("synth" if is_synth else "svhn") + plain
    return re.sub(r"^syn(th)?(etic)?(number|digit)?s?", "synth", plain)


def _find_form(name: str, files_by_folder: FilesByFolder) -> tuple[_Form, list[tuple[Path, ...]]]:
    """Return the first form that is present, and each part's files, () for a missing part."""
    found = [
        (form, [_find_part(part, files_by_folder) for part in form.parts]) for form in _FORMS[name]
    ]
    return next((pair for pair in found if any(pair[1])), found[-1])


def _find_part(part: tuple[str, ...], files_by_folder: FilesByFolder) -> tuple[Path, ...]:
    """Return the files of a part, all from one folder: labels of another copy may not match."""
    names = [_normalize(name) for name in part]
    complete = [files for files in files_by_folder.values() if files.keys() >= set(names)]
    return tuple(complete[0][name] for name in names) if complete else ()


def _expected_files(name: str) -> str:
    *most, last = (" with ".join(form.parts[0]) for form in _FORMS[name])
    return f"{', '.join(most)} or {last}"


def _read_domain(name: str, form: _Form, parts: list[tuple[Path, ...]]) -> ImageArray:
    """Read and concatenate all parts; each is validated separately, so that no labels shift."""
    arrays = []
    for files in filter(None, parts):
        where = " with ".join(map(str, files))
        pairs = form.read(*files)
        if any(array.dtype.kind not in "uif" for pair in pairs for array in pair):
            raise UserError(f"{where} has arrays that are not numbers; download it again")
        brightest = max(float(np.max(images, initial=0)) for images, _ in pairs)
        for images, labels in pairs:
            digits = _convert_labels(where, labels, len(images), name in _ZERO_IS_TEN)
            pixels = _scale_to_bytes(where, images, brightest)
            arrays.append(validate_image_array(where, pixels, digits))
    if len({array.images.shape[1:] for array in arrays}) > 1:
        raise UserError(f"{where} differs from the rest of {name} in image size; download it again")
    return ImageArray(
        np.concatenate([array.images for array in arrays]),
        np.concatenate([array.labels for array in arrays]),
    )


def _scale_to_bytes(where: str, images: NDArray[Any], brightest: float) -> NDArray[np.uint8]:
    """Return bytes; floats are 0..255 in some files and 0..1 in others, by the brightest pixel."""
    if images.dtype == np.uint8:
        return images
    is_unit = images.dtype.kind == "f" and brightest <= 1.5
    scaled = np.rint(images * 255) if is_unit else np.rint(images)
    if not (np.min(scaled, initial=0) >= 0 and np.max(scaled, initial=0) <= 255):  # or NaN
        raise UserError(f"{where} has pixels outside 0..255; download it again")
    return np.asarray(scaled, dtype=np.uint8)


def _convert_labels(
    where: str, labels: NDArray[Any], count: int, zero_is_ten: bool
) -> NDArray[np.int64]:
    """Return labels as digits, from a column of numbers or from one column per digit."""
    if labels.shape == (count, len(CLASSES)):
        labels = labels.argmax(axis=1)
    elif labels.size == count:
        labels = labels.reshape(-1)
    if zero_is_ten:
        labels = np.where(labels == 10, 0, labels)
    wrong = labels[~np.isin(labels, np.arange(-1, len(CLASSES)))]
    if len(wrong):
        raise UserError(f"{where} has the label {wrong[0]}; label each image with its digit, 0..9")
    return labels.astype(np.int64)


def _read_npz(file: Path) -> list[LabeledArray]:
    array = read_npz(file)
    return [(array.images, array.labels)]


def _read_mat(keys: str, file: Path) -> list[LabeledArray]:
    """Read pairs of images and labels by their keys; `train_28` if there is no `train_32`."""
    for names in (keys.split(), keys.replace("_32", "_28").split()):
        content = read_mat(file, names)
        if all(name in content for name in names):
            arrays = [np.asarray(content[name]) for name in names]
            return list(zip(arrays[::2], arrays[1::2], strict=True))
    wanted = ", ".join(keys.split())
    raise UserError(f"{file} needs the arrays {wanted}; download it again, or save it as .npz")


def _read_32x32(file: Path) -> list[LabeledArray]:
    """Read SVHN's own form, in which the last axis counts images."""
    ((images, labels),) = _read_mat("X y", file)
    return [(np.moveaxis(images, -1, 0), labels)]


def _read_usps(file: Path) -> list[LabeledArray]:
    """Read cells of train images [N, 1, 28, 28] and labels, test images and labels."""
    cells: Any = read_mat(file, ["dataset"]).get("dataset")
    if np.shape(cells) != (2, 2) or any(np.ndim(images) != 4 for images in cells[:, 0]):
        raise UserError(
            f"{file} has no 2×2 cells 'dataset' of images and labels; download it again"
        )
    return [(np.moveaxis(images, 1, -1), labels) for images, labels in cells]


def _read_idx_pair(images: Path, labels: Path) -> list[LabeledArray]:
    return [(_read_idx(images, 3), _read_idx(labels, 1))]


def _read_idx(file: Path, axes: int) -> NDArray[np.uint8]:
    """Read one of MNIST's own files, gzipped or not, whatever its name says."""
    with explain_read_errors(file, "is truncated or corrupt; download it again"):
        with open_regular_file(file) as stored:
            is_gzip = stored.peek(2)[:2] == b"\x1f\x8b"
            stream = gzip.GzipFile(fileobj=stored) if is_gzip else stored
            magic, *shape = struct.unpack(f">{1 + axes}I", stream.read(4 * (1 + axes)))
            content = stream.read()
        if magic != _IDX_MAGIC[axes]:
            raise UserError(f"{file} is not the MNIST file that its name says; download it again")
        return np.frombuffer(content, np.uint8).reshape(shape)


def _single_file(name: str, read: Callable[[Path], list[LabeledArray]]) -> _Form:
    return _Form(name.split(".")[-1], ((name,),), read)


_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_MNIST_KEYS = "train_32 label_train test_32 label_test"
_MNIST_M_KEYS = "train label_train test label_test"
_SYNTH_KEYS = "train_data train_label test_data test_label"
_PUBLIC = {
    "mnist": (
        _single_file("mnist_data.mat", partial(_read_mat, _MNIST_KEYS)),
        _Form("idx", (_TRAIN, _TEST), _read_idx_pair),
    ),
    "svhn": (_Form("32x32", (("svhn_train_32x32.mat",), ("svhn_test_32x32.mat",)), _read_32x32),),
    "mnist_m": (_single_file("mnistm_with_label.mat", partial(_read_mat, _MNIST_M_KEYS)),),
    "usps": (_single_file("usps_28x28.mat", _read_usps),),
    "synth": (
        _single_file("syn_number.mat", partial(_read_mat, _SYNTH_KEYS)),
        _Form("32x32", (("synth_train_32x32.mat",), ("synth_test_32x32.mat",)), _read_32x32),
    ),
}
_FORMS = {name: (_single_file(f"{name}.npz", _read_npz), *_PUBLIC[name]) for name in DIGIT_FIVE}
