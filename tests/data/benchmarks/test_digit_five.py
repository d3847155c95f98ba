"""Digit-Five from files: made here in each public layout, and the real ones where they are."""

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.io import savemat

from fedwca._support.errors import UserError
from fedwca.data.benchmarks.digit_five import DIGIT_FIVE, contains_digit_five, find_digit_five
from fedwca.data.types import DataRequest, DecodedImage, ImageReader, RawBenchmark, RawDomain

Array = NDArray[Any]

TRAIN, TEST = (3, 0, 7), (0, 9)


def picture(value: int, side: int, channels: int) -> Array:
    """One tone, but for a mark that tells rows, columns and channels apart."""
    pixels = np.full((side, side, channels), value, np.uint8)
    pixels[1, 2, 0] = 255
    return pixels


def pictures(digits: tuple[int, ...], side: int, channels: int, shade: int) -> Array:
    """Images whose tone tells the digit, and by its last place the part."""
    return np.stack([picture(10 * digit + shade, side, channels) for digit in digits])


def of_train(side: int, channels: int) -> Array:
    return pictures(TRAIN, side, channels, shade=1)


def of_test(side: int, channels: int) -> Array:
    return pictures(TEST, side, channels, shade=2)


def one_hot(digits: tuple[int, ...]) -> Array:
    return np.eye(10)[list(digits)]


def column(digits: tuple[int, ...], zero: int = 0, dtype: Any = np.uint8) -> Array:
    return np.array([[digit or zero] for digit in digits], dtype)


def mnist_mat(folder: Path, name: str = "mnist_data.mat") -> None:
    savemat(
        folder / name,
        {
            "train_32": of_train(32, 1)[..., 0].astype(float),
            "test_32": of_test(32, 1)[..., 0].astype(float),
            "train_28": np.zeros((3, 28, 28, 1)),
            "test_28": np.zeros((2, 28, 28, 1)),
            "label_train": one_hot(TRAIN),
            "label_test": one_hot(TEST),
        },
    )


def mnist_mat_28(folder: Path) -> None:
    arrays = {"train_28": of_train(28, 1), "test_28": of_test(28, 1)}
    labels = {"label_train": one_hot(TRAIN), "label_test": one_hot(TEST)}
    savemat(folder / "mnist_data.mat", arrays | labels)


def mnist_m_mat(folder: Path, **changed: Array) -> None:
    arrays = {"train": of_train(28, 3), "test": of_test(28, 3)}
    labels = {"label_train": one_hot(TRAIN), "label_test": one_hot(TEST)}
    savemat(folder / "mnistm_with_label.mat", arrays | labels | changed, do_compression=True)


def svhn_mat(file: Path, images: Array, digits: tuple[int, ...]) -> None:
    savemat(file, {"X": np.moveaxis(images, 0, -1), "y": column(digits, zero=10)})


def pair_mat(folder: Path, prefix: str) -> None:
    svhn_mat(folder / f"{prefix}train_32x32.mat", of_train(32, 3), TRAIN)
    svhn_mat(folder / f"{prefix}test_32x32.mat", of_test(32, 3), TEST)


def synth_mat(folder: Path, name: str = "syn_number.mat", zero: int = 0) -> None:
    savemat(
        folder / name,
        {
            "train_data": of_train(32, 3),
            "test_data": of_test(32, 3),
            "train_label": column(TRAIN, zero, np.float64),
            "test_label": column(TEST, zero, np.float64),
        },
    )


def usps_mat(folder: Path) -> None:
    cells = np.empty((2, 2), dtype=object)
    for row, (images, digits) in enumerate(((of_train(28, 1), TRAIN), (of_test(28, 1), TEST))):
        cells[row, 0] = (images.transpose(0, 3, 1, 2) / 255).astype(np.float32)
        cells[row, 1] = column(digits, dtype=np.int64)
    savemat(folder / "usps_28x28.mat", {"dataset": cells})


def idx(array: Array, magic: int) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()


def mnist_idx(folder: Path, spelling: str = "{}-{}-{}", packed: bool = False) -> None:
    for part, images, digits in (("train", of_train(28, 1), TRAIN), ("t10k", of_test(28, 1), TEST)):
        contents = {
            spelling.format(part, "images", "idx3-ubyte"): idx(images[..., 0], 2051),
            spelling.format(part, "labels", "idx1-ubyte"): idx(np.array(digits, np.uint8), 2049),
        }
        for name, content in contents.items():
            file = folder / (f"{name}.gz" if packed else name)
            file.write_bytes(gzip.compress(content) if packed else content)


def npz(folder: Path, name: str, shade: int = 1, zero: int = 0) -> None:
    images = pictures(TRAIN, 16, 1, shade)[..., 0]
    np.savez(folder / f"{name}.npz", images=images, labels=column(TRAIN, zero)[:, 0])


def found(folder: Path) -> RawBenchmark:
    return find_digit_five(DataRequest(folder, folder / "cache"))


def domain(folder: Path, name: str) -> RawDomain:
    return {raw.name: raw for raw in found(folder).domains}[name]


def decoded(images: ImageReader, size: int) -> list[Array]:
    shown = list(images.decode(np.arange(len(images.labels)), size))
    assert all(isinstance(one, DecodedImage) for one in shown)
    return [one.pixels for one in shown if isinstance(one, DecodedImage)]


def tones(folder: Path, name: str) -> list[tuple[int, int]]:
    """The tone of the domain's images, each with its label."""
    images = domain(folder, name).open()
    tone = [int(pixels[-1, -1, 0]) for pixels in decoded(images, 32)]
    return list(zip(tone, images.labels.tolist(), strict=True))


TRAIN_TONES = [(31, 3), (1, 0), (71, 7)]
TEST_TONES = [(2, 0), (92, 9)]
BOTH_TONES = TRAIN_TONES + TEST_TONES


@pytest.mark.parametrize(
    ("name", "write", "side", "channels", "key"),
    [
        ("mnist", mnist_mat, 32, 1, "digit-five/mnist/mat"),
        ("mnist", mnist_mat_28, 28, 1, "digit-five/mnist/mat"),
        ("mnist", mnist_idx, 28, 1, "digit-five/mnist/idx"),
        ("mnist_m", mnist_m_mat, 28, 3, "digit-five/mnist_m/mat"),
        ("svhn", lambda at: pair_mat(at, "svhn_"), 32, 3, "digit-five/svhn/32x32"),
        ("svhn", lambda at: pair_mat(at, ""), 32, 3, "digit-five/svhn/32x32"),
        ("synth", synth_mat, 32, 3, "digit-five/synth/mat"),
        ("synth", lambda at: synth_mat(at, zero=10), 32, 3, "digit-five/synth/mat"),
        ("synth", lambda at: pair_mat(at, "synth_"), 32, 3, "digit-five/synth/32x32"),
        ("usps", usps_mat, 28, 1, "digit-five/usps/mat"),
    ],
)
def test_every_public_layout_gives_train_then_test_with_their_labels(
    tmp_path: Path,
    name: str,
    write: Callable[[Path], None],
    side: int,
    channels: int,
    key: str,
) -> None:
    write(tmp_path)
    written = set(tmp_path.iterdir())
    npz(tmp_path, "mnist" if name == "usps" else "usps")
    raw = domain(tmp_path, name)
    assert raw.key == key
    assert set(raw.files) == written
    images = raw.open()
    assert images.labels.dtype == np.int64
    assert images.labels.tolist() == [*TRAIN, *TEST]
    expected = np.concatenate([of_train(side, channels), of_test(side, channels)])
    expected = np.broadcast_to(expected, (5, side, side, 3))
    assert np.array_equal(np.stack(decoded(images, side)), expected)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "MNIST_DATA.MAT"),
        ("mnist_m", "mnistm.npz"),
        ("mnist_m", "mnist-m.npz"),
        ("mnist_m", "MNIST_M.npz"),
        ("svhn", "SVHN.npz"),
        ("synth", "syn.npz"),
        ("synth", "SynthDigits.npz"),
        ("synth", "syn_numbers.mat"),
        ("synth", "SYN_DIGITS.mat"),
    ],
)
def test_files_are_found_in_all_spellings(tmp_path: Path, name: str, file: str) -> None:
    if file.endswith(".npz"):
        npz(tmp_path, file.removesuffix(".npz"))
    else:
        (mnist_mat if name == "mnist" else synth_mat)(tmp_path, file)
    npz(tmp_path, "usps")
    assert domain(tmp_path, name).files == (tmp_path / file,)
    assert tones(tmp_path, name) == (TRAIN_TONES if file.endswith(".npz") else BOTH_TONES)


def test_label_ten_is_the_digit_zero_in_npz_of_svhn_and_synth_only(tmp_path: Path) -> None:
    for name in ("svhn", "synth", "mnist"):
        npz(tmp_path, name, zero=10)
    assert tones(tmp_path, "svhn") == TRAIN_TONES
    assert tones(tmp_path, "synth") == TRAIN_TONES
    with pytest.raises(UserError, match=r"mnist\.npz has the label 10"):
        domain(tmp_path, "mnist").open()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("spelling", ["{}-{}-{}", "{}-{}.{}"])
def test_idx_files_may_be_gzipped_and_spelled_with_a_dot(
    tmp_path: Path, spelling: str, packed: bool
) -> None:
    mnist_idx(tmp_path, spelling, packed)
    npz(tmp_path, "usps")
    assert tones(tmp_path, "mnist") == BOTH_TONES


def test_idx_files_are_unpacked_by_content_not_by_name(tmp_path: Path) -> None:
    mnist_idx(tmp_path)
    for file in tmp_path.iterdir():  # browsers unpack on the way and leave the name
        file.rename(f"{file}.gz")
    npz(tmp_path, "usps")
    assert tones(tmp_path, "mnist") == BOTH_TONES


def test_npz_precedes_mat_and_mat_precedes_the_originals(tmp_path: Path) -> None:
    npz(tmp_path, "usps")
    mnist_idx(tmp_path)
    assert domain(tmp_path, "mnist").key == "digit-five/mnist/idx"
    below = tmp_path / "further" / "down"
    below.mkdir(parents=True)
    mnist_mat(below)
    assert domain(tmp_path, "mnist").files == (below / "mnist_data.mat",)
    npz(below, "mnist", shade=5)
    assert tones(tmp_path, "mnist") == [(35, 3), (5, 0), (75, 7)]


def test_of_two_copies_the_one_closer_to_the_folder_is_used(tmp_path: Path) -> None:
    npz(tmp_path, "usps")
    for place, shade in (("a/b", 5), ("z", 6)):
        (tmp_path / place).mkdir(parents=True)
        npz(tmp_path / place, "mnist", shade)
    assert tones(tmp_path, "mnist") == [(36, 3), (6, 0), (76, 7)]


def test_files_are_found_in_the_folders_of_their_downloads(tmp_path: Path) -> None:
    for place in ("MNIST/raw", "SVHN", "SynthDigits", "data/Digit-Five/mat"):
        (tmp_path / place).mkdir(parents=True)
    mnist_idx(tmp_path / "MNIST" / "raw", packed=True)
    pair_mat(tmp_path / "SVHN", "")
    synth = pictures((4,), 32, 3, shade=5)
    svhn_mat(tmp_path / "SynthDigits" / "train_32x32.mat", synth, (4,))
    svhn_mat(tmp_path / "SynthDigits" / "test_32x32.mat", synth, (4,))
    usps_mat(tmp_path / "data" / "Digit-Five" / "mat")
    mnist_m_mat(tmp_path / "data" / "Digit-Five" / "mat")
    for name in ("mnist", "svhn", "mnist_m", "usps"):
        assert tones(tmp_path, name) == BOTH_TONES
    assert tones(tmp_path, "synth") == [(45, 4), (45, 4)]
    everything = found(tmp_path)
    assert tuple(raw.name for raw in everything.domains) == DIGIT_FIVE
    assert everything.classes == tuple("0123456789")
    assert everything.warnings == ()


def test_files_more_than_three_levels_below_are_ignored(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    (deep / "d").mkdir(parents=True)
    npz(deep, "svhn")
    npz(deep, "usps")
    npz(deep / "d", "mnist")
    assert [raw.name for raw in found(tmp_path).domains] == ["svhn", "usps"]


def test_data_sets_with_mnists_file_names_are_ignored(tmp_path: Path) -> None:
    for place in ("FashionMNIST/raw", "KMNIST/raw", "MNIST/raw"):
        (tmp_path / place).mkdir(parents=True)
        mnist_idx(tmp_path / place)
    npz(tmp_path, "usps")
    for file in domain(tmp_path, "mnist").files:
        assert file.parent == tmp_path / "MNIST" / "raw"


def test_images_and_labels_come_from_the_same_folder(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        mnist_idx(tmp_path / place)
    (tmp_path / "a" / "train-labels-idx1-ubyte").unlink()
    npz(tmp_path, "usps")
    names = [str(file.relative_to(tmp_path)) for file in domain(tmp_path, "mnist").files]
    assert names == [
        "b/train-images-idx3-ubyte",
        "b/train-labels-idx1-ubyte",
        "a/t10k-images-idx3-ubyte",
        "a/t10k-labels-idx1-ubyte",
    ]


def test_half_of_a_pair_is_used_with_a_warning(tmp_path: Path) -> None:
    pair_mat(tmp_path, "")
    (tmp_path / "train_32x32.mat").unlink()
    mnist_idx(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    assert tones(tmp_path, "svhn") == TEST_TONES
    assert tones(tmp_path, "mnist") == TRAIN_TONES
    mnist, svhn, *_ = found(tmp_path).warnings
    assert "mnist lacks t10k-images-idx3-ubyte with t10k-labels-idx1-ubyte" in mnist
    assert "svhn lacks svhn_train_32x32.mat" in svhn


def test_missing_domains_are_named(tmp_path: Path) -> None:
    npz(tmp_path, "mnist_m")
    with pytest.raises(UserError, match=r"has 1 of .* synth\.npz, syn_number\.mat or "):
        found(tmp_path)
    npz(tmp_path, "svhn")
    there = found(tmp_path)
    assert [raw.name for raw in there.domains] == ["svhn", "mnist_m"]
    assert [warning.split(":")[0] for warning in there.warnings] == [
        "ignoring mnist",
        "ignoring usps",
        "ignoring synth",
    ]
    assert "usps.npz or usps_28x28.mat" in there.warnings[1]


def test_two_domains_suffice_to_detect_digit_five(tmp_path: Path) -> None:
    assert not contains_digit_five(tmp_path)
    for name in ("red", "green", "blue", "mnist2", "my_usps", "synthia"):
        npz(tmp_path, name)
    npz(tmp_path, "mnist")
    assert not contains_digit_five(tmp_path)
    (tmp_path / "SVHN").mkdir()
    (tmp_path / "SVHN" / "test_32x32.mat").write_bytes(b"not read")
    assert contains_digit_five(tmp_path)


def test_finding_reads_no_file(tmp_path: Path) -> None:
    for name in ("mnist_data.mat", "usps.npz", "svhn_train_32x32.mat", "svhn_test_32x32.mat"):
        (tmp_path / name).write_bytes(b"damaged")
    assert [raw.name for raw in found(tmp_path).domains] == ["mnist", "svhn", "usps"]


def complaint(folder: Path, name: str) -> str:
    npz(folder, "mnist" if name == "usps" else "usps")
    with pytest.raises(UserError) as caught:
        domain(folder, name).open()
    return str(caught.value)


def test_corrupt_files_are_named(tmp_path: Path) -> None:
    mnist_m_mat(tmp_path)
    file = tmp_path / "mnistm_with_label.mat"
    content = file.read_bytes()
    for damaged in (b"", b"damaged" * 100, content[: len(content) // 3], content[:-9]):
        file.write_bytes(damaged)
        assert complaint(tmp_path, "mnist_m").startswith(f"{file} is not a readable MATLAB file")
    savemat(tmp_path / "usps_28x28.mat", {"dataset": np.eye(2)})
    (tmp_path / "usps.npz").unlink()
    assert "usps_28x28.mat" in complaint(tmp_path, "usps")


def test_mat_files_of_version_7_3_must_be_converted(tmp_path: Path) -> None:
    file = tmp_path / "syn_number.mat"
    header = b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM"
    file.write_bytes(header + bytes(384) + b"\x89HDF\r\n\x1a\n" + bytes(100))
    assert complaint(tmp_path, "synth").startswith(f"{file} is a MATLAB 7.3 file")


@pytest.mark.parametrize(
    ("name", "file", "key"),
    [
        ("mnist", "mnist_data.mat", "train_32"),
        ("mnist_m", "mnistm_with_label.mat", "train"),
        ("svhn", "train_32x32.mat", "X"),
        ("synth", "syn_number.mat", "train_data"),
    ],
)
def test_missing_arrays_are_named(tmp_path: Path, name: str, file: str, key: str) -> None:
    savemat(tmp_path / file, {"other": np.zeros(3)})
    message = complaint(tmp_path, name)
    assert message.startswith(str(tmp_path / file))
    assert key in message


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train": np.full((3, 28, 28, 3), 256.0)}, "has pixels outside 0..255"),
        ({"train": np.full((3, 28, 28, 3), -1, np.int16)}, "has pixels outside 0..255"),
        ({"train": np.full((3, 28, 28, 3), np.nan)}, "has pixels outside 0..255"),
        ({"train": np.zeros((0, 28, 28, 3))}, "has images of shape (0, 28, 28, 3)"),
        ({"train": np.array(["text"])}, "has arrays that are not numbers"),
        ({"test": of_test(32, 3)}, "differs from the rest of mnist_m in image size"),
        ({"label_train": np.array([[1.0], [2.5], [3.0]])}, "has the label 2.5"),
        ({"label_train": np.array([[1.0], [np.inf], [3.0]])}, "has the label inf"),
        ({"label_train": one_hot(TEST)}, "needs one whole number in 'labels' for each of its 3"),
        (
            # As many labels as images in all, but the third train label is among the test's.
            {"label_train": one_hot(TRAIN[:2]), "label_test": one_hot((TRAIN[2], *TEST))},
            "needs one whole number in 'labels' for each of its 3",
        ),
    ],
)
def test_invalid_contents_are_rejected(
    tmp_path: Path, changed: dict[str, Array], words: str
) -> None:
    mnist_m_mat(tmp_path, **changed)
    assert f"mnistm_with_label.mat {words}" in complaint(tmp_path, "mnist_m")


def test_train_and_test_of_a_file_share_one_scale(tmp_path: Path) -> None:
    dark = np.ones((2, 28, 28, 3))  # 1 of 255, as the train images tell; not white
    mnist_m_mat(tmp_path, train=of_train(28, 3).astype(float), test=dark)
    npz(tmp_path, "usps")
    assert tones(tmp_path, "mnist_m") == [*TRAIN_TONES, (1, 0), (1, 9)]


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
@pytest.mark.parametrize("packed", [False, True])
def test_corrupt_idx_files_are_named(tmp_path: Path, name: str, packed: bool) -> None:
    mnist_idx(tmp_path, packed=packed)
    file = tmp_path / (f"{name}.gz" if packed else name)
    content = file.read_bytes()
    other_kind = (tmp_path / file.name.replace("images-idx3", "labels-idx1")).read_bytes()
    for damaged in (content[:-1], content[:6], b"", other_kind[:-1]):
        file.write_bytes(damaged)
        assert str(file) in complaint(tmp_path, "mnist")


def test_the_real_usps(tmp_path: Path) -> None:
    data = Path(os.environ.get("FEDWCA_TEST_DATA", "no-data")) / "digit-five"
    if not (data / "usps.npz").exists():
        pytest.skip("no real Digit-Five: set FEDWCA_TEST_DATA to a folder with digit-five/usps.npz")
    assert contains_digit_five(data)
    there = find_digit_five(DataRequest(data, tmp_path))
    usps = {raw.name: raw for raw in there.domains}["usps"].open()
    assert len(usps.labels) == 9298
    assert set(usps.labels.tolist()) == set(range(10))
    (first,) = usps.decode(np.array([0]), 32)
    assert isinstance(first, DecodedImage)
    assert (first.width, first.height) == (16, 16)
    assert first.pixels.shape == (32, 32, 3)
