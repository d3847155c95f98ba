"""PACS, Office-Home and Office-31 as people have them on disk."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedwca._support.errors import UserError
from fedwca.data.benchmarks.office31 import OFFICE31
from fedwca.data.benchmarks.office_home import OFFICE_HOME
from fedwca.data.benchmarks.pacs import PACS
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
        "toy has no folder cat (2 missing)",
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
    differences, duplicates, unknown = found.warnings
    assert differences == "photo has 1 of 2 images in guinea_pig (1 missing)"
    assert duplicates.endswith(": photo/guinea_pig")
    assert unknown.endswith(": splits and toy/dog")


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


def test_pacs_is_what_the_lists_say() -> None:
    assert list(PACS.domains) == ["art_painting", "cartoon", "photo", "sketch"]
    assert PACS.classes == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    totals = {domain: sum(counts) for domain, counts in PACS.counts.items()}  # type: ignore[arg-type]
    assert totals == {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
    assert sum(totals.values()) == 9991


@pytest.mark.parametrize(
    ("nesting", "art"),
    [
        ("", "art_painting"),
        ("PACS", "art_painting"),
        ("pacs_data", "Art Painting"),
        ("kfold", "art"),
    ],
)
def test_pacs_in_its_usual_places(tmp_path: Path, nesting: str, art: str) -> None:
    root = put_domains(tmp_path / nesting, [art, "cartoon", "photo", "sketch"], PACS.classes, 2)
    found = find_standard_benchmark(PACS, request_for(tmp_path))
    assert names(found) == list(PACS.domains)
    assert found.classes == PACS.classes
    assert labeled_files(found, "art_painting", root)[2:4] == [
        (f"{art}/elephant/0.jpg", 1),
        (f"{art}/elephant/1.jpg", 1),
    ]
    assert contains_standard_benchmark(PACS, tmp_path)
    assert not contains_standard_benchmark(OFFICE31, tmp_path)
    assert not contains_standard_benchmark(OFFICE_HOME, tmp_path)


def test_a_reduced_pacs_has_warnings_on_what_is_missing(tmp_path: Path) -> None:
    put_domains(tmp_path, PACS.domains, PACS.classes, 2)
    put_images(tmp_path, *(f"art_painting/dog/{number}.jpg" for number in range(2, 370)))
    warnings = find_standard_benchmark(PACS, request_for(tmp_path)).warnings
    assert len(warnings) == 4
    assert warnings[0] == (
        "art_painting has 370 of 379 images in dog (9 missing), "
        "2 of 255 images in elephant (253 missing), 2 of 285 images in giraffe (283 missing), "
        "2 of 184 images in guitar (182 missing), 2 of 201 images in horse (199 missing), "
        "2 of 295 images in house (293 missing) and 2 of 449 images in person (447 missing)"
    )


def test_office_home_is_what_the_lists_say() -> None:
    assert list(OFFICE_HOME.domains) == ["art", "clipart", "product", "real_world"]
    assert len(set(OFFICE_HOME.classes)) == 65
    assert list(OFFICE_HOME.classes) == sorted(OFFICE_HOME.classes)
    assert OFFICE_HOME.classes.index("TV") < OFFICE_HOME.classes.index("Table")
    assert list(OFFICE_HOME.counts.values()) == [2427, 4365, 4439, 4357]


@pytest.mark.parametrize("nesting", ["", "OfficeHome", "x/OfficeHomeDataset_10072016"])
@pytest.mark.parametrize("real", ["Real World", "RealWorld", "Real_World", "real", "rw"])
def test_office_home_in_its_usual_places(tmp_path: Path, nesting: str, real: str) -> None:
    folders = ["Art", "Clipart", "Product", real]
    root = put_domains(tmp_path / nesting, folders, OFFICE_HOME.classes)
    (root / "ImageInfo.csv").touch()
    found = find_standard_benchmark(OFFICE_HOME, request_for(tmp_path))
    assert names(found) == list(OFFICE_HOME.domains)
    assert labeled_files(found, "real_world", root) == [
        (f"{real}/{name}/0.jpg", label) for label, name in enumerate(OFFICE_HOME.classes)
    ]
    assert found.warnings == (
        "art has 65 of 2427 images (2362 missing)",
        "clipart has 65 of 4365 images (4300 missing)",
        "product has 65 of 4439 images (4374 missing)",
        "real_world has 65 of 4357 images (4292 missing)",
    )
    assert contains_standard_benchmark(OFFICE_HOME, tmp_path)
    assert not contains_standard_benchmark(PACS, tmp_path)
    assert not contains_standard_benchmark(OFFICE31, tmp_path)


def test_office_31_is_what_the_lists_say() -> None:
    assert list(OFFICE31.domains) == ["amazon", "dslr", "webcam"]
    assert len(OFFICE31.classes) == 31
    assert list(OFFICE31.classes) == sorted(OFFICE31.classes)
    assert (OFFICE31.classes[0], OFFICE31.classes[-1]) == ("back_pack", "trash_can")
    totals = [sum(counts) for counts in OFFICE31.counts.values()]  # type: ignore[arg-type]
    assert totals == [2817, 498, 795]
    assert {counts[-1] for counts in OFFICE31.counts.values()} == {64, 15, 21}  # type: ignore[index]


@pytest.mark.parametrize(
    ("nesting", "below"),
    [
        ("", ""),
        ("", "/images"),
        ("Original_images", "/images"),
        ("office31/domain_adaptation_images", "/images"),
    ],
)
def test_office_31_in_its_usual_places(tmp_path: Path, nesting: str, below: str) -> None:
    folders = [f"{domain}{below}" for domain in OFFICE31.domains]
    root = put_domains(tmp_path / nesting, folders, OFFICE31.classes, 1)
    (root / "amazon" / "interest_points").mkdir()  # features that some downloads bring along
    found = find_standard_benchmark(OFFICE31, request_for(tmp_path))
    assert names(found) == ["amazon", "dslr", "webcam"]
    assert labeled_files(found, "dslr", root) == [
        (f"dslr{below}/{name}/0.jpg", label) for label, name in enumerate(OFFICE31.classes)
    ]
    assert contains_standard_benchmark(OFFICE31, tmp_path)
    assert not contains_standard_benchmark(PACS, tmp_path)
    assert not contains_standard_benchmark(OFFICE_HOME, tmp_path)


def real_data(name: str) -> Path:
    folder = Path(os.environ.get("FEDWCA_TEST_DATA", "no-data")) / name
    if not folder.is_dir():
        pytest.skip(f"no real {name}: set FEDWCA_TEST_DATA to a folder that holds {name}/")
    return folder


def shapes(found: RawBenchmark) -> list[tuple[int, ...]]:
    """Of three images of each domain that can be read and show something."""
    return [
        item.pixels.shape
        for domain in found.domains
        for item in domain.open().decode(np.array([0, 100, len(domain.files) - 1]), 64)
        if isinstance(item, DecodedImage) and item.pixels.std() > 1
    ]


def test_the_real_pacs() -> None:
    found = find_standard_benchmark(PACS, request_for(real_data("PACS")))
    assert [len(domain.files) for domain in found.domains] == [2048, 2344, 1670, 3929]
    assert found.warnings == ()
    for domain in found.domains:
        labels = domain.open().labels
        assert [PACS.classes[label] for label in labels] == [f.parent.name for f in domain.files]
    assert shapes(found) == [(64, 64, 3)] * 12


def test_the_real_office_31() -> None:
    found = find_standard_benchmark(OFFICE31, request_for(real_data("office31")))
    assert [len(domain.files) for domain in found.domains] == [2817, 498, 795]
    assert found.warnings == ()
    for domain in found.domains:
        labels = domain.open().labels
        assert [OFFICE31.classes[n] for n in labels] == [f.parent.name for f in domain.files]
    assert shapes(found) == [(64, 64, 3)] * 9


def test_an_empty_class_folder_does_not_hide_another_of_the_same_class(tmp_path: Path) -> None:
    put_domains(tmp_path, PETS.domains, PETS.classes)
    (tmp_path / "photo" / "CAT").mkdir()
    found = find_standard_benchmark(PETS, request_for(tmp_path))
    assert ("photo/cat/0.jpg", 0) in labeled_files(found, "photo", tmp_path)
