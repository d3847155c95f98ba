"""Anybody's own images, in every shape that the documentation allows, and in some others."""

from pathlib import Path

import pytest

from fedwca.data.own_images import looks_like_images, own_images
from fedwca.data.raw import UNLABELED, Broken, Found
from fedwca.errors import UserError
from image_folders import decoded, labeled_files, put_images, request_for


def names(found: Found) -> list[str]:
    return [domain.name for domain in found.domains]


def complaint(path: Path | None, **rest: object) -> str:
    with pytest.raises(UserError) as caught:
        own_images(request_for(path, **rest))
    return str(caught.value)


def test_class_folders_are_labels_and_domains_come_by_name(tmp_path: Path) -> None:
    put_images(tmp_path, "b/dog/2.png", "b/dog/10.png", "b/cat/x.jpg", "a/dog/x.webp")
    found = own_images(request_for(tmp_path, image_size=64))
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
    found = own_images(request_for(tmp_path, classes=("dog", "cat")))
    assert found.classes == ("dog", "cat")
    assert found.warnings == ()
    assert labeled_files(found, "a", tmp_path) == [("a/1.jpg", UNLABELED), ("a/2.jpg", UNLABELED)]
    assert labeled_files(found, "b", tmp_path) == [("b/dog/1.jpg", 0), ("b/z.jpg", UNLABELED)]


def test_a_folder_of_source_images_is_a_domain_and_names_the_classes(tmp_path: Path) -> None:
    put_images(tmp_path / "clients", "a/1.jpg", "b/Cat/1.jpg", "b/fox/1.jpg")
    put_images(tmp_path / "labeled", "dog/1.jpg", "cat/1.jpg")
    found = own_images(request_for(tmp_path / "clients", source_path=tmp_path / "labeled"))
    assert names(found) == ["source", "a", "b"]
    assert found.classes == ("cat", "dog")
    source = [("labeled/cat/1.jpg", 0), ("labeled/dog/1.jpg", 1)]
    assert labeled_files(found, "source", tmp_path) == source
    clients = tmp_path / "clients"
    assert labeled_files(found, "b", clients) == [("b/Cat/1.jpg", 0), ("b/fox/1.jpg", UNLABELED)]
    assert found.warnings == (
        "b has folders that are none of the classes, whose images are used without a label: fox",
    )


@pytest.mark.parametrize("name", ["source", "labeled"])
def test_the_source_may_lie_among_the_clients_and_is_none_of_them(
    tmp_path: Path, name: str
) -> None:
    put_images(tmp_path, f"{name}/dog/1.jpg", f"{name}/cat/1.jpg", "a/1.jpg")
    found = own_images(request_for(tmp_path, source_path=tmp_path / name))
    assert names(found) == ["source", "a"]


def test_a_client_cannot_be_called_source_beside_another_source(tmp_path: Path) -> None:
    put_images(tmp_path, "clients/source/1.jpg", "labeled/dog/1.jpg", "labeled/cat/1.jpg")
    path = tmp_path / "clients"
    assert complaint(path, source_path=tmp_path / "labeled") == (
        f"rename the folder {path / 'source'}: the images of data.source_path are called 'source'"
    )


def test_a_source_domain_among_others_names_the_classes(tmp_path: Path) -> None:
    put_images(tmp_path, "a/fox/1.jpg", "a/cat/1.jpg", "b/dog/1.jpg", "b/cat/1.jpg")
    assert own_images(request_for(tmp_path, source="b")).classes == ("cat", "dog")
    assert own_images(request_for(tmp_path, source="other")).classes == ("cat", "dog", "fox")
    assert own_images(request_for(tmp_path)).classes == ("cat", "dog", "fox")


def test_given_classes_come_before_those_of_the_source(tmp_path: Path) -> None:
    put_images(tmp_path, "a/fox/1.jpg", "b/dog/1.jpg", "b/cat/1.jpg")
    found = own_images(request_for(tmp_path, source="b", classes=("fox", "dog")))
    assert found.classes == ("fox", "dog")
    assert labeled_files(found, "a", tmp_path) == [("a/fox/1.jpg", 0)]
    expected = [("b/cat/1.jpg", UNLABELED), ("b/dog/1.jpg", 1)]
    assert labeled_files(found, "b", tmp_path) == expected


def test_spellings_of_a_class_are_one_class(tmp_path: Path) -> None:
    put_images(tmp_path, "a/Desk Lamp/1.jpg", "a/mug/1.jpg", "b/desk_lamp/1.jpg", "b/MUG/1.jpg")
    found = own_images(request_for(tmp_path))
    assert found.classes == ("Desk Lamp", "MUG")
    assert labeled_files(found, "b", tmp_path) == [("b/MUG/1.jpg", 1), ("b/desk_lamp/1.jpg", 0)]
    assert found.warnings == ()


def test_spellings_that_one_domain_tells_apart_are_two_classes(tmp_path: Path) -> None:
    put_images(tmp_path, "x/A/1.jpg", "x/a/1.jpg", "y/a/1.jpg", "y/C/1.jpg", "y/C++/1.jpg")
    found = own_images(request_for(tmp_path))
    assert found.classes == ("A", "C", "C++", "a")
    assert labeled_files(found, "x", tmp_path) == [("x/A/1.jpg", 0), ("x/a/1.jpg", 3)]
    assert [label for _, label in labeled_files(found, "y", tmp_path)] == [1, 2, 3]


def test_a_name_like_two_classes_means_neither(tmp_path: Path) -> None:
    put_images(tmp_path, "x/C#/1.jpg", "x/C/1.jpg")
    found = own_images(request_for(tmp_path, classes=("C", "C++")))
    expected = [("x/C/1.jpg", 0), ("x/C#/1.jpg", UNLABELED)]
    assert labeled_files(found, "x", tmp_path) == expected


def test_images_that_lie_too_deep_are_named(tmp_path: Path) -> None:
    put_images(tmp_path, "a/dog/1.jpg", "a/dog/more/1.jpg", "a/cat/1.jpg", "a/x/y/z/1.jpg")
    put_images(tmp_path, "a/dog/.thumbs/1.jpg", "a/dog/notes/readme.txt")
    found = own_images(request_for(tmp_path))
    assert found.classes == ("cat", "dog")
    assert labeled_files(found, "a", tmp_path) == [("a/cat/1.jpg", 0), ("a/dog/1.jpg", 1)]
    assert found.warnings == ("the images in a/dog/more and a/x/y lie too deep and are left aside",)


def test_a_folder_images_between_domain_and_classes_is_skipped_over(tmp_path: Path) -> None:
    put_images(tmp_path, "a/images/dog/1.jpg", "a/images/cat/1.jpg", "b/Images/1.jpg", "b/2.jpg")
    found = own_images(request_for(tmp_path))
    assert found.classes == ("cat", "dog")
    assert labeled_files(found, "a", tmp_path) == [
        ("a/images/cat/1.jpg", 0),
        ("a/images/dog/1.jpg", 1),
    ]
    assert labeled_files(found, "b", tmp_path) == [
        ("b/2.jpg", UNLABELED),
        ("b/Images/1.jpg", UNLABELED),
    ]


def test_folders_without_images_are_left_out(tmp_path: Path) -> None:
    put_images(tmp_path, "a/dog/1.jpg", "a/cat/1.jpg", "notes/readme.txt", ".git/x.jpg")
    (tmp_path / "a" / "cow").mkdir()  # no image, no class
    found = own_images(request_for(tmp_path))
    assert names(found) == ["a"]
    assert found.classes == ("cat", "dog")
    assert found.warnings == (
        "notes has no images (<client>/*.jpg, or <client>/<class>/*.jpg for labeled images) "
        "and is left out",
    )


def test_linked_folders_and_links_that_lead_nowhere(tmp_path: Path) -> None:
    put_images(tmp_path / "elsewhere", "dog/1.jpg", "cat/1.jpg")
    path = tmp_path / "clients"
    path.mkdir()
    (path / "a").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "dog" / "0.jpg").symlink_to("gone")
    (tmp_path / "elsewhere" / "loop").symlink_to(path)
    (domain,) = own_images(request_for(path)).domains
    assert domain.names[1] == "a/dog/0.jpg"
    assert decoded(domain)[1] == Broken("it cannot be read (No such file or directory)")


def test_broken_source_images_are_named_by_the_folder_of_the_source(tmp_path: Path) -> None:
    put_images(tmp_path, "clients/a/1.jpg", "labeled/dog/1.jpg", "labeled/cat/1.jpg")
    (tmp_path / "labeled/cat/0.jpg").touch()
    paths = request_for(tmp_path / "clients", source_path=tmp_path / "labeled")
    source = own_images(paths).domains[0]
    assert source.names[0] == "labeled/cat/0.jpg"
    assert decoded(source)[0] == Broken("it is empty")


def test_paths_relative_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_images(tmp_path, "a/dog/1.jpg", "a/cat/1.jpg")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a/cat/1.jpg").write_bytes(b"")
    (domain,) = own_images(request_for(Path())).domains
    assert domain.names[0] == "a/cat/1.jpg"
    assert decoded(domain)[0] == Broken("it is empty")


def test_what_the_user_can_put_right(tmp_path: Path) -> None:
    layout = "<client>/*.jpg, or <client>/<class>/*.jpg for labeled images"
    labeled = put_images(tmp_path / "labeled", "dog/1.jpg", "cat/1.jpg")
    flat = put_images(tmp_path / "flat", "1.jpg", "2.jpg")
    assert complaint(flat) == (
        f"{flat} holds 1.jpg and maybe more images directly: put them into a folder for each client"
    )
    bare = tmp_path / "bare"
    bare.mkdir()
    assert (
        complaint(bare) == f"there are no images of clients in {bare}: put them there as {layout}"
    )
    deep = put_images(tmp_path / "deep", "a/train/dog/1.jpg")
    assert complaint(deep) == (
        f"there are no images of clients in {deep} (a/train/dog lie too deep): "
        f"put them there as {layout}"
    )
    assert complaint(labeled, source_path=labeled).startswith(
        "data.path and data.source_path are the same folder: "
    )
    unlabeled = put_images(tmp_path / "unlabeled", "a/1.jpg")
    assert complaint(unlabeled, source_path=tmp_path / "gone").startswith(
        f"there is no folder {tmp_path / 'gone'}: set data.source_path to "
    )
    assert complaint(labeled, source_path=flat) == (
        f"{flat} has no class folders with images: sort the source images into {flat}/<class>/"
    )


def test_what_looks_like_own_images(tmp_path: Path) -> None:
    assert looks_like_images(put_images(tmp_path / "0", "empty/x.txt", "site/1.jpg"))
    assert looks_like_images(put_images(tmp_path / "1", "site/dog/1.jpg"))
    assert looks_like_images(put_images(tmp_path / "2", "site/images/dog/1.jpg"))
    assert not looks_like_images(put_images(tmp_path / "3", "1.jpg"))
    assert not looks_like_images(put_images(tmp_path / "4", "site/dog/more/1.jpg", "x/._1.jpg"))
    assert not looks_like_images(tmp_path / "gone")


def test_where_nobody_has_labels_the_data_tell_no_classes(tmp_path: Path) -> None:
    found = own_images(request_for(put_images(tmp_path, "a/1.jpg")))
    assert found.classes == ()
    assert [domain.open().labels.tolist() for domain in found.domains] == [[-1]]
