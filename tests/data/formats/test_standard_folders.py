"""PACS, Office-Home and Office-31 as people have them on disk."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedwca._support.errors import UserError
from fedwca.data.benchmarks.object_benchmarks import OFFICE31, OFFICE_HOME, PACS
from fedwca.data.formats.standard_folders import (
    StandardBenchmark,
    contains_standard_benchmark,
    find_standard_benchmark,
)
from fedwca.data.types import DecodedImage, RawBenchmark
from tests.support.image_folders import decoded, labeled_files, put_domains, put_images, request_for

PETS = StandardBenchmark(
    name="Pets",
    domains={"photo": ("photos",), "line_art": (), "toy": ()},
    classes=("cat", "guinea_pig"),
    counts={"photo": (2, 2), "line_art": (2, 2), "toy": (2, 2)},
)
COUNTED_IN_ALL = StandardBenchmark(
    PETS.name, PETS.domains, PETS.classes, {"photo": 4, "line_art": 4, "toy": 4}
)


def put_pets(root: Path) -> Path:
    """Every image of the list above, and none besides."""
    return put_domains(root, PETS.domains, PETS.classes, count=2)


def names(found: RawBenchmark) -> list[str]:
    return [domain.name for domain in found.domains]


def test_a_complete_benchmark_has_no_warnings(tmp_path: Path) -> None:
    put_pets(tmp_path)
    found = find_standard_benchmark(PETS, request_for(tmp_path, image_size=256))
    assert found.warnings == ()
    assert found.classes == ("cat", "guinea_pig")
    assert names(found) == ["photo", "line_art", "toy"]  # as the benchmark orders them
    assert labeled_files(found, "toy", tmp_path) == [
        ("toy/cat/0.jpg", 0),
        ("toy/cat/1.jpg", 0),
        ("toy/guinea_pig/0.jpg", 1),
        ("toy/guinea_pig/1.jpg", 1),
    ]
    pictures = [item for item in decoded(found.domains[0], 4) if isinstance(item, DecodedImage)]
    red = np.broadcast_to([255, 0, 0], (4, 4, 3))
    assert [np.array_equal(picture.pixels, red) for picture in pictures] == [True] * 4
    assert find_standard_benchmark(COUNTED_IN_ALL, request_for(tmp_path)).warnings == ()


def test_missing_and_surplus_images_are_reported_per_class(tmp_path: Path) -> None:
    put_pets(tmp_path)
    (tmp_path / "photo/cat/0.jpg").unlink()
    put_images(
        tmp_path, "photo/guinea_pig/2.jpg", "photo/guinea_pig/3.jpg", "photo/guinea_pig/4.jpg"
    )
    for file in (tmp_path / "toy/cat").iterdir():
        file.unlink()
    (tmp_path / "toy/cat").rmdir()
    assert find_standard_benchmark(PETS, request_for(tmp_path)).warnings == (
        "photo has 1 of 2 images in cat (1 missing) and "
        "5 images in guinea_pig (3 more than the standard list)",
        "toy has no folder cat",
    )
    assert find_standard_benchmark(COUNTED_IN_ALL, request_for(tmp_path)).warnings == (
        "photo has 6 images (2 more than the standard list)",
        "toy has 2 of 4 images (2 missing) and no folder cat",
    )


def test_folders_that_do_not_belong_are_ignored_and_named(tmp_path: Path) -> None:
    put_pets(tmp_path)
    put_images(tmp_path, "splits/x.jpg", "toy/dog/x.jpg", "photo/Guinea Pig/x.jpg")
    put_images(tmp_path, ".git/x.jpg", "__MACOSX/photo/cat/._0.jpg", "toy/.thumbs/x.jpg")
    (tmp_path / "readme.txt").touch()
    found = find_standard_benchmark(PETS, request_for(tmp_path))
    files = labeled_files(found, "photo", tmp_path)
    assert files[2:] == [("photo/Guinea Pig/x.jpg", 1)]  # the first of the two by name
    differences, ignored = found.warnings
    assert differences == "photo has 1 of 2 images in guinea_pig (1 missing)"
    assert ignored.endswith(": splits, photo/guinea_pig and toy/dog")


def test_missing_domains_are_named_and_two_are_enough(tmp_path: Path) -> None:
    put_domains(tmp_path, ["Photos", "LINE ART"], ["Cat", "guinea-pig"], count=2)
    (tmp_path / "toy" / "cat").mkdir(parents=True)  # a folder without images is no domain
    found = find_standard_benchmark(PETS, request_for(tmp_path))
    assert names(found) == ["photo", "line_art"]
    (warning,) = found.warnings
    assert warning.startswith(f"{tmp_path} lacks toy of Pets")


@pytest.mark.parametrize("there", [(), ("photo",)])
def test_fewer_than_two_domains_are_an_error(tmp_path: Path, there: tuple[str, ...]) -> None:
    put_domains(tmp_path, [*there, "other"], PETS.classes)
    with pytest.raises(UserError) as caught:
        find_standard_benchmark(PETS, request_for(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path} has {len(there)} of the domains of Pets")
    assert "photo, line_art and toy" in str(caught.value)


@pytest.mark.parametrize("nesting", ["", "Pets", "a/b", "a/b/c"])
def test_downloads_may_nest_up_to_three_levels(tmp_path: Path, nesting: str) -> None:
    put_domains(tmp_path / "0" / "few", ["photo", "toy"], PETS.classes)  # not the most domains
    put_pets(tmp_path / nesting)
    found = find_standard_benchmark(PETS, request_for(tmp_path))
    assert len(found.domains) == 3
    assert found.domains[0].files[0] == tmp_path / nesting / "photo/cat/0.jpg"
    assert contains_standard_benchmark(PETS, tmp_path)


def test_four_levels_are_too_many(tmp_path: Path) -> None:
    put_pets(tmp_path / "a/b/c/d")
    with pytest.raises(UserError, match="has 0 of the domains"):
        find_standard_benchmark(PETS, request_for(tmp_path))


def test_linked_folders_are_followed(tmp_path: Path) -> None:
    put_pets(tmp_path / "elsewhere")
    there = tmp_path / "pets"
    there.mkdir()
    for domain in PETS.domains:
        (there / domain).symlink_to(tmp_path / "elsewhere" / domain)
    (there / "photo" / "loop").symlink_to(there)
    found = find_standard_benchmark(PETS, request_for(there))
    assert [len(domain.files) for domain in found.domains] == [4, 4, 4]


def test_other_folders_are_not_detected_as_a_benchmark(tmp_path: Path) -> None:
    put_domains(tmp_path / "one", ["photo", "other"], PETS.classes)
    assert not contains_standard_benchmark(PETS, tmp_path / "one")
    put_domains(tmp_path / "many", ["photo", "toy"], ["cat", "cow", "hen"])  # most are others
    assert not contains_standard_benchmark(PETS, tmp_path / "many")
    put_domains(tmp_path / "some", ["photo", "toy"], ["cat"])
    assert contains_standard_benchmark(PETS, tmp_path / "some")
    assert not contains_standard_benchmark(PETS, tmp_path / "gone")


@pytest.mark.parametrize(
    ("benchmark", "classes", "totals"),
    [
        (PACS, 7, [2048, 2344, 1670, 3929]),
        (OFFICE_HOME, 65, [2427, 4365, 4439, 4357]),
        (OFFICE31, 31, [2817, 498, 795]),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_lists_are_complete(
    benchmark: StandardBenchmark, classes: int, totals: list[int]
) -> None:
    assert len(set(benchmark.classes)) == classes
    assert list(benchmark.classes) == sorted(benchmark.classes)
    counts = benchmark.counts.values()
    assert [sum(n) if isinstance(n, tuple) else n for n in counts] == totals
    assert all(len(n) == classes for n in counts if isinstance(n, tuple))


@pytest.mark.parametrize(
    ("benchmark", "nesting", "folders"),
    [
        (PACS, "", ["art_painting", "cartoon", "photo", "sketch"]),
        (PACS, "pacs_data", ["Art Painting", "cartoon", "photo", "sketch"]),
        (PACS, "kfold", ["art", "cartoon", "photo", "sketch"]),
        (OFFICE_HOME, "", ["Art", "Clipart", "Product", "Real World"]),
        (OFFICE_HOME, "OfficeHome", ["Art", "Clipart", "Product", "RealWorld"]),
        (OFFICE_HOME, "x/OfficeHomeDataset_10072016", ["Art", "Clipart", "Product", "Real_World"]),
        (OFFICE_HOME, "", ["Art", "Clipart", "Product", "rw"]),
        (OFFICE31, "", ["amazon", "dslr", "webcam"]),
        (OFFICE31, "", ["amazon/images", "dslr/images", "webcam/images"]),
        (
            OFFICE31,
            "office31/domain_adaptation_images",
            ["amazon/images", "dslr/images", "webcam/images"],
        ),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_benchmarks_in_their_usual_places(
    tmp_path: Path, benchmark: StandardBenchmark, nesting: str, folders: list[str]
) -> None:
    root = put_domains(tmp_path / nesting, folders, benchmark.classes)
    (root / "ImageInfo.csv").touch()
    found = find_standard_benchmark(benchmark, request_for(tmp_path))
    assert names(found) == list(benchmark.domains)
    assert found.classes == benchmark.classes
    last = found.domains[-1].name
    assert labeled_files(found, last, root) == [
        (f"{folders[-1]}/{name}/0.jpg", label) for label, name in enumerate(benchmark.classes)
    ]
    for other in (PACS, OFFICE_HOME, OFFICE31):
        assert contains_standard_benchmark(other, tmp_path) == (other is benchmark)


@pytest.mark.parametrize(
    ("benchmark", "folder"), [(PACS, "PACS"), (OFFICE31, "office31")], ids=["PACS", "Office-31"]
)
def test_the_real_files(benchmark: StandardBenchmark, folder: str) -> None:
    path = Path(os.environ.get("FEDWCA_TEST_DATA", "no-data")) / folder
    if not path.is_dir():
        pytest.skip(f"no real {folder}: set FEDWCA_TEST_DATA to a folder that holds {folder}/")
    found = find_standard_benchmark(benchmark, request_for(path))
    assert found.warnings == ()
    for domain in found.domains:
        images = domain.open()
        assert [benchmark.classes[n] for n in images.labels] == [
            f.parent.name for f in domain.files
        ]
        for item in images.decode(np.array([0, 100, len(domain.files) - 1]), 64):
            assert isinstance(item, DecodedImage)
            assert item.pixels.std() > 1  # it shows something


def test_an_empty_class_folder_does_not_hide_another_of_the_same_class(tmp_path: Path) -> None:
    put_domains(tmp_path, PETS.domains, PETS.classes)
    (tmp_path / "photo" / "CAT").mkdir()
    found = find_standard_benchmark(PETS, request_for(tmp_path))
    assert ("photo/cat/0.jpg", 0) in labeled_files(found, "photo", tmp_path)
