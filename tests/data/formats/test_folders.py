"""Folders, and links that lead from one to another and back."""

import os
from pathlib import Path

import pytest

from fedwca._support.errors import UserError
from fedwca.data.benchmarks import detect_benchmark
from fedwca.data.benchmarks.own_images import find_own_images, scan_domain
from fedwca.data.formats.folders import list_folder, walk_folders
from tests.support.image_folders import put_domains, put_images, request_for


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that are scanned; more than a thousand mean an endless loop."""
    scanned: list[str] = []
    scandir = os.scandir

    def counted(folder: str = ".") -> object:
        scanned.append(str(folder))
        assert len(scanned) < 1000
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", counted)
    return scanned


def put_circles(folder: Path, number: int = 100) -> Path:
    """Links of a folder to itself, and of two folders in it to each other."""
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    for count in range(number):
        (folder / f"round{count}").symlink_to(".")
        (folder / "a" / f"b{count}").symlink_to("../b")
        (folder / "b" / f"a{count}").symlink_to("../a")
    return folder


def test_folders_list_images_by_name_and_nothing_hidden(tmp_path: Path) -> None:
    put_images(
        tmp_path, "b.JPG", "a.Tiff", "._a.jpg", ".hidden.png", "notes.txt", "c.gif", "10.webp"
    )
    put_images(tmp_path, "z/x.jpg", "d.jpg/x.jpg", "__MACOSX/x.jpg", ".git/x.jpg", "y/x.jpg")
    (tmp_path / "circle.jpg").symlink_to("circle.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    names = [file.name for file in list_folder(tmp_path).images]
    assert names == ["10.webp", "a.Tiff", "b.JPG", "c.gif", "circle.jpg"]
    assert [folder.name for folder in list_folder(tmp_path).folders] == ["d.jpg", "y", "z"]


def test_a_folder_that_cannot_be_listed_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone cannot be read \(No such file"):
        list_folder(tmp_path / "gone")


def test_links_to_ancestors_are_ignored_and_others_followed(tmp_path: Path) -> None:
    put_images(tmp_path / "elsewhere", "x.jpg")
    (tmp_path / "here/inner").mkdir(parents=True)
    for name, target in (("self", "."), ("up", ".."), ("root", "/"), ("on", "../elsewhere")):
        (tmp_path / "here" / name).symlink_to(target)
    (tmp_path / "alias").symlink_to("here")
    for place in ("here", "alias"):
        names = [folder.name for folder in list_folder(tmp_path / place).folders]
        assert names == ["inner", "on"]


def test_walking_visits_each_folder_once_nearest_first(tmp_path: Path) -> None:
    put_circles(tmp_path)
    put_images(tmp_path / "a/deep/deeper", "x.jpg")
    found = [folder.relative_to(tmp_path).as_posix() for folder, _ in walk_folders(tmp_path)]
    assert found == [".", "a", "b", "a/deep", "a/deep/deeper"]
    assert [folder.name for folder, _ in walk_folders(tmp_path / "a", 1)] == ["a", "b0", "deep"]
    assert list(walk_folders(tmp_path / "gone")) == []


def test_circular_links_are_visited_once(tmp_path: Path, scans: list[str]) -> None:
    put_circles(tmp_path)
    with pytest.raises(UserError, match="no images in a known layout"):
        detect_benchmark(tmp_path)
    assert scans


def test_images_among_circular_links_are_found(tmp_path: Path, scans: list[str]) -> None:
    put_domains(tmp_path / "inner", ("Art", "Clipart"), ("Alarm_Clock", "Backpack"))
    for count in range(100):
        (tmp_path / "inner" / f"up{count}").symlink_to("..")
        (tmp_path / f"round{count}").symlink_to(".")
    assert detect_benchmark(tmp_path) == "office-home"
    found = find_own_images(request_for(tmp_path / "inner"))
    assert [domain.name for domain in found.domains] == ["Art", "Clipart"]


def test_a_folder_behind_many_links_is_reported_once_as_too_deep(
    tmp_path: Path, scans: list[str]
) -> None:
    put_images(tmp_path / "far", "x.jpg")
    put_images(tmp_path / "client/class", "x.jpg")
    for count in range(100):
        (tmp_path / "client/class" / f"link{count}").symlink_to("../../far")
    (deep,) = scan_domain("client", tmp_path / "client").too_deep
    assert deep.name == "link0"
