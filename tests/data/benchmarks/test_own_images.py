"""Own images in every documented layout, and in some others."""

from pathlib import Path

import pytest

from fedwca._support.errors import UserError
from fedwca.data.benchmarks.own_images import contains_own_images, find_own_images
from fedwca.data.images import UNLABELED
from fedwca.data.types import BrokenImage, RawBenchmark
from tests.support.image_folders import decoded, labeled_files, put_images, request_for


def names(found: RawBenchmark) -> list[str]:
    return [domain.name for domain in found.domains]


def complaint(path: Path | None, **rest: object) -> str:
    with pytest.raises(UserError) as caught:
        find_own_images(request_for(path, **rest))
    return str(caught.value)


def test_class_folders_are_labels_and_domains_come_by_name(tmp_path: Path) -> None:
    put_images(tmp_path, "b/dog/2.png", "b/dog/10.png", "b/cat/x.jpg", "a/dog/x.webp")
    found = find_own_images(request_for(tmp_path, image_size=64))
    assert names(found) == ["a", "b"]
    assert found.classes == ("cat", "dog")
    assert found.warnings == ()
    assert labeled_files(found, "a", tmp_path) == [("a/dog/x.webp", 1)]
    assert labeled_files(found, "b", tmp_path) == [
        ("b/cat/x.jpg", 0),
        ("b/dog/10.png", 1),
        ("b/dog/2.png", 1),
    ]


def test_images_directly_in_a_client_have_no_label(tmp_path: Path) -> None:
    put_images(tmp_path, "a/1.jpg", "a/2.jpg", "b/z.jpg", "b/dog/1.jpg")
    found = find_own_images(request_for(tmp_path, classes=("dog", "cat")))
    assert found.classes == ("dog", "cat")
    assert found.warnings == ()
    assert labeled_files(found, "a", tmp_path) == [("a/1.jpg", UNLABELED), ("a/2.jpg", UNLABELED)]
    assert labeled_files(found, "b", tmp_path) == [("b/dog/1.jpg", 0), ("b/z.jpg", UNLABELED)]


def test_a_folder_of_source_images_is_a_domain_and_names_the_classes(tmp_path: Path) -> None:
    put_images(tmp_path / "clients", "a/1.jpg", "b/Cat/1.jpg", "b/fox/1.jpg")
    put_images(tmp_path / "labeled", "dog/1.jpg", "cat/1.jpg")
    found = find_own_images(request_for(tmp_path / "clients", source_path=tmp_path / "labeled"))
    assert names(found) == ["source", "a", "b"]
    assert found.classes == ("cat", "dog")
    source = [("labeled/cat/1.jpg", 0), ("labeled/dog/1.jpg", 1)]
    assert labeled_files(found, "source", tmp_path) == source
    clients = tmp_path / "clients"
    assert labeled_files(found, "b", clients) == [("b/Cat/1.jpg", 0), ("b/fox/1.jpg", UNLABELED)]
    (warning,) = found.warnings
    assert warning.startswith("b has folders that are not classes")
    assert warning.endswith(": fox")


@pytest.mark.parametrize("name", ["source", "labeled"])
def test_a_source_folder_among_the_clients_is_not_a_client(tmp_path: Path, name: str) -> None:
    put_images(tmp_path, f"{name}/dog/1.jpg", f"{name}/cat/1.jpg", "a/1.jpg")
    found = find_own_images(request_for(tmp_path, source_path=tmp_path / name))
    assert names(found) == ["source", "a"]


def test_a_client_must_not_be_named_source_if_there_is_another_source(tmp_path: Path) -> None:
    put_images(tmp_path, "clients/source/1.jpg", "labeled/dog/1.jpg", "labeled/cat/1.jpg")
    path = tmp_path / "clients"
    message = complaint(path, source_path=tmp_path / "labeled")
    assert f"rename folder {path / 'source'}" in message
    assert "data.source_path" in message


def test_a_source_domain_among_others_names_the_classes(tmp_path: Path) -> None:
    put_images(tmp_path, "a/fox/1.jpg", "a/cat/1.jpg", "b/dog/1.jpg", "b/cat/1.jpg")
    assert find_own_images(request_for(tmp_path, source="b")).classes == ("cat", "dog")
    assert find_own_images(request_for(tmp_path, source="other")).classes == ("cat", "dog", "fox")
    assert find_own_images(request_for(tmp_path)).classes == ("cat", "dog", "fox")


def test_requested_classes_take_precedence_over_those_of_the_source(tmp_path: Path) -> None:
    put_images(tmp_path, "a/fox/1.jpg", "b/dog/1.jpg", "b/cat/1.jpg")
    found = find_own_images(request_for(tmp_path, source="b", classes=("fox", "dog")))
    assert found.classes == ("fox", "dog")
    assert labeled_files(found, "a", tmp_path) == [("a/fox/1.jpg", 0)]
    expected = [("b/cat/1.jpg", UNLABELED), ("b/dog/1.jpg", 1)]
    assert labeled_files(found, "b", tmp_path) == expected


def test_spellings_of_a_class_are_one_class(tmp_path: Path) -> None:
    put_images(tmp_path, "a/Desk Lamp/1.jpg", "a/mug/1.jpg", "b/desk_lamp/1.jpg", "b/MUG/1.jpg")
    found = find_own_images(request_for(tmp_path))
    assert found.classes == ("Desk Lamp", "MUG")
    assert labeled_files(found, "b", tmp_path) == [("b/MUG/1.jpg", 1), ("b/desk_lamp/1.jpg", 0)]
    assert found.warnings == ()


def test_spellings_within_one_domain_are_two_classes(tmp_path: Path) -> None:
    put_images(tmp_path, "x/A/1.jpg", "x/a/1.jpg", "y/a/1.jpg", "y/C/1.jpg", "y/C++/1.jpg")
    found = find_own_images(request_for(tmp_path))
    assert found.classes == ("A", "C", "C++", "a")
    assert labeled_files(found, "x", tmp_path) == [("x/A/1.jpg", 0), ("x/a/1.jpg", 3)]
    assert [label for _, label in labeled_files(found, "y", tmp_path)] == [1, 2, 3]


def test_an_ambiguous_name_matches_no_class(tmp_path: Path) -> None:
    put_images(tmp_path, "x/C#/1.jpg", "x/C/1.jpg")
    found = find_own_images(request_for(tmp_path, classes=("C", "C++")))
    expected = [("x/C/1.jpg", 0), ("x/C#/1.jpg", UNLABELED)]
    assert labeled_files(found, "x", tmp_path) == expected


def test_images_that_are_too_deep_are_named(tmp_path: Path) -> None:
    put_images(tmp_path, "a/dog/1.jpg", "a/dog/more/1.jpg", "a/cat/1.jpg", "a/x/y/z/1.jpg")
    put_images(tmp_path, "a/dog/.thumbs/1.jpg", "a/dog/notes/readme.txt")
    found = find_own_images(request_for(tmp_path))
    assert found.classes == ("cat", "dog")
    assert labeled_files(found, "a", tmp_path) == [("a/cat/1.jpg", 0), ("a/dog/1.jpg", 1)]
    (warning,) = found.warnings
    assert "a/dog/more and a/x/y: too deep" in warning


def test_a_folder_named_images_above_the_classes_is_transparent(tmp_path: Path) -> None:
    put_images(tmp_path, "a/images/dog/1.jpg", "a/images/cat/1.jpg", "b/Images/1.jpg", "b/2.jpg")
    found = find_own_images(request_for(tmp_path))
    assert found.classes == ("cat", "dog")
    assert labeled_files(found, "a", tmp_path) == [
        ("a/images/cat/1.jpg", 0),
        ("a/images/dog/1.jpg", 1),
    ]
    assert labeled_files(found, "b", tmp_path) == [
        ("b/2.jpg", UNLABELED),
        ("b/Images/1.jpg", UNLABELED),
    ]


def test_folders_without_images_are_ignored(tmp_path: Path) -> None:
    put_images(tmp_path, "a/dog/1.jpg", "a/cat/1.jpg", "notes/readme.txt", ".git/x.jpg")
    (tmp_path / "a" / "cow").mkdir()  # no image, no class
    found = find_own_images(request_for(tmp_path))
    assert names(found) == ["a"]
    assert found.classes == ("cat", "dog")
    (warning,) = found.warnings
    assert warning.startswith("ignoring notes: no images")


def test_linked_folders_and_dangling_links(tmp_path: Path) -> None:
    put_images(tmp_path / "elsewhere", "dog/1.jpg", "cat/1.jpg")
    path = tmp_path / "clients"
    path.mkdir()
    (path / "a").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "dog" / "0.jpg").symlink_to("gone")
    (tmp_path / "elsewhere" / "loop").symlink_to(path)
    (domain,) = find_own_images(request_for(path)).domains
    assert domain.names[1] == "a/dog/0.jpg"
    reason = "cannot be read (No such file or directory)"
    assert decoded(domain)[1] == BrokenImage(reason)


def test_broken_source_images_are_named_by_the_folder_of_the_source(tmp_path: Path) -> None:
    put_images(tmp_path, "clients/a/1.jpg", "labeled/dog/1.jpg", "labeled/cat/1.jpg")
    (tmp_path / "labeled/cat/0.jpg").touch()
    paths = request_for(tmp_path / "clients", source_path=tmp_path / "labeled")
    source = find_own_images(paths).domains[0]
    assert source.names[0] == "labeled/cat/0.jpg"
    assert decoded(source)[0] == BrokenImage("empty file")


def test_paths_relative_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_images(tmp_path, "a/dog/1.jpg", "a/cat/1.jpg")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a/cat/1.jpg").write_bytes(b"")
    (domain,) = find_own_images(request_for(Path())).domains
    assert domain.names[0] == "a/cat/1.jpg"
    assert decoded(domain)[0] == BrokenImage("empty file")


def test_user_errors_name_the_folder_and_the_setting(tmp_path: Path) -> None:
    labeled = put_images(tmp_path / "labeled", "dog/1.jpg", "cat/1.jpg")
    flat = put_images(tmp_path / "flat", "1.jpg", "2.jpg")
    deep = put_images(tmp_path / "deep", "a/train/dog/1.jpg")
    (bare := tmp_path / "bare").mkdir()
    assert f"{flat} has images directly in it" in complaint(flat)
    assert f"{bare} has no images" in complaint(bare)
    assert "a/train/dog: too deep" in complaint(deep)
    assert "data.source_path" in complaint(labeled, source_path=labeled)
    for source in (flat, tmp_path / "gone"):
        message = complaint(labeled, source_path=source)
        assert str(source) in message
        assert "data.source_path" in message


def test_folders_that_contain_own_images(tmp_path: Path) -> None:
    assert contains_own_images(put_images(tmp_path / "0", "empty/x.txt", "site/1.jpg"))
    assert contains_own_images(put_images(tmp_path / "1", "site/dog/1.jpg"))
    assert contains_own_images(put_images(tmp_path / "2", "site/images/dog/1.jpg"))
    assert not contains_own_images(put_images(tmp_path / "3", "1.jpg"))
    assert not contains_own_images(put_images(tmp_path / "4", "site/dog/more/1.jpg", "x/._1.jpg"))
    assert not contains_own_images(tmp_path / "gone")


def test_without_any_labels_no_classes_are_known(tmp_path: Path) -> None:
    found = find_own_images(request_for(put_images(tmp_path, "a/1.jpg")))
    assert found.classes == ()
    assert [domain.open().labels.tolist() for domain in found.domains] == [[-1]]
