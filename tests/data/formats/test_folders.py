"""Folders, and links that lead from one to another and back."""

import os
from pathlib import Path

import pytest

from fedwca._support.errors import UserError
from fedwca.data.benchmarks import detect_benchmark
from fedwca.data.formats.folders import list_folder, walk_folders
from tests.support.image_folders import put_domains, put_images


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
    (tmp_path / "linked").symlink_to("z")
    images, folders = list_folder(tmp_path)
    names = ["10.webp", "a.Tiff", "b.JPG", "c.gif", "circle.jpg"]
    assert [file.name for file in images] == names
    assert [folder.name for folder in folders] == ["d.jpg", "linked", "y", "z"]


def test_a_folder_that_cannot_be_listed_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone cannot be read \(No such file"):
        list_folder(tmp_path / "gone")


def test_a_benchmark_among_circular_links_is_found(tmp_path: Path, scans: list[str]) -> None:
    put_circles(tmp_path)
    put_domains(tmp_path / "inner", ("Art", "Clipart"), ("Alarm_Clock", "Backpack"))
    assert detect_benchmark(tmp_path) == "office-home"
    assert scans


def test_walking_visits_each_folder_once_nearest_first(tmp_path: Path) -> None:
    put_circles(tmp_path)
    put_images(tmp_path / "a/deep/deeper", "x.jpg")
    found = [folder.relative_to(tmp_path).as_posix() for folder, _ in walk_folders(tmp_path)]
    assert found == [".", "a", "b", "a/deep", "a/deep/deeper"]
    assert [folder.name for folder, _ in walk_folders(tmp_path / "a", 1)] == ["a", "b0", "deep"]
    assert list(walk_folders(tmp_path / "gone")) == []
