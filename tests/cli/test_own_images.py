"""Own images, from a folder to a result."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedwca.models import read_class_names, read_weights
from fedwca.report.runs import find_runs
from tests.conftest import CLASSES, draw_domain

SETTINGS = [
    "--set=data.benchmark=images",
    "--set=data.path=sites",
    "--set=data.image_size=20",  # of which 17 are seen at a time
    "--set=model.backbone=lenet",
    "--set=source.epochs=2",
    "--set=source.lr=0.02",
    "--set=training.rounds=2",
    "--set=training.epochs=1",
    "--set=training.batch_size=16",
    "--set=run.workers=1",
]


def write_images(folder: Path, seed: int, count: int, *, sorted_by_class: bool) -> None:
    drawn = draw_domain(seed, count, 0.9, 0.1, 0.05 * (1 + seed))
    for row, (pixels, label) in enumerate(zip(drawn.images, drawn.labels, strict=True)):
        place = folder / CLASSES[label] if sorted_by_class else folder
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(pixels)).save(place / f"{row:03d}.png")


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Two sites without labels, one with, and labeled source images beside them."""
    write_images(tmp_path / "sites" / "dock", 1, 30, sorted_by_class=False)
    write_images(tmp_path / "sites" / "gate", 2, 30, sorted_by_class=False)
    write_images(tmp_path / "sites" / "yard", 3, 30, sorted_by_class=True)
    write_images(tmp_path / "source", 0, 60, sorted_by_class=True)
    return tmp_path / "sites"


def last_line() -> dict[str, Any]:
    (view,), problems = find_runs(Path("runs"))
    assert not problems
    return view.last


def test_a_folder_of_source_images_and_sites_without_labels(
    invoke: Callable[..., Any], sites: Path
) -> None:
    said = invoke("run", *SETTINGS, "--set=data.source_path=source")
    assert said.code == 0, said.err
    clients = last_line()["clients"]
    assert list(clients) == ["dock", "gate", "yard"]
    assert clients["dock"]["accuracy"] is None
    assert clients["yard"]["accuracy"] is not None
    (run,) = Path("runs").iterdir()
    held = json.loads((run / "clients.json").read_text())
    assert held["classes"] == list(CLASSES)
    assert len(held["clients"]["dock"]["train"]) == 30  # nothing to score, so all is trained on
    assert len(held["clients"]["yard"]["train"]) == 19  # 64 % of 30
    shares = [
        name for part in ("train", "validation", "test") for name in held["clients"]["yard"][part]
    ]
    files = [path.relative_to(sites).as_posix() for path in (sites / "yard").rglob("*.png")]
    assert sorted(shares) == sorted(files)  # by name, so that anybody can tell who got what


def test_a_labeled_site_can_be_the_source(invoke: Callable[..., Any], sites: Path) -> None:
    said = invoke("run", *SETTINGS, "--set=data.source=yard")
    assert said.code == 0, said.err
    assert list(last_line()["clients"]) == ["dock", "gate"]


def test_just_a_model_with_its_class_names(
    invoke: Callable[..., Any], sites: Path, tmp_path: Path
) -> None:
    made = invoke(
        "run", *SETTINGS, "--set=data.source_path=source", "--method=source_only", "--runs=first"
    )
    assert made.code == 0, made.err
    (model,) = (tmp_path / "first").rglob("source.safetensors")
    assert read_class_names(model) == CLASSES
    said = invoke("run", *SETTINGS, f"--set=source.weights={model}", "--method=source_only")
    assert said.code == 0, said.err
    assert "given source model" in said.out
    (before,), _ = find_runs(tmp_path / "first")
    assert last_line()["accuracy"] == before.last["accuracy"]

    # A file that carries no names needs them as a setting.
    torch.save(read_weights(model), tmp_path / "model.pth")
    bare = [*SETTINGS, "--set=source.weights=model.pth", "--method=source_only", "--runs=second"]
    said = invoke("run", *bare, "--set=data.classes=bar,post,square")
    assert said.code == 0, said.err
    (view,), _ = find_runs(Path("second"))
    assert view.last["accuracy"] == before.last["accuracy"]


def test_models_that_do_not_fit_are_rejected(
    invoke: Callable[..., Any], sites: Path, tmp_path: Path
) -> None:
    invoke(
        "run", *SETTINGS, "--set=data.source_path=source", "--method=source_only", "--runs=first"
    )
    (model,) = (tmp_path / "first").rglob("source.safetensors")
    torch.save(read_weights(model), tmp_path / "model.pth")
    cases = {
        "set data.classes": ["--set=source.weights=model.pth"],
        "is the only class": ["--set=source.weights=model.pth", "--set=data.classes=bar"],
        "do not fit this network": ["--set=source.weights=model.pth", "--set=data.classes=a,b"],
        "every class once": ["--set=source.weights=model.pth", "--set=data.classes=a,b,a"],
        "the same classes": [f"--set=source.weights={model}", "--set=data.classes=post,bar,square"],
        "set data.source": [],
    }
    for words, settings in cases.items():
        said = invoke("run", *SETTINGS, *settings)
        assert (said.code, said.err.count("\n")) == (2, 1)
        assert words in said.err
    assert not Path("runs").exists()


def test_two_sources_at_once_are_rejected(invoke: Callable[..., Any], sites: Path) -> None:
    said = invoke("run", *SETTINGS, "--set=data.source_path=source", "--set=data.source=yard")
    assert said.code == 2
    assert "data.source_path" in said.err


def test_broken_files_are_named_and_counted(invoke: Callable[..., Any], sites: Path) -> None:
    for number in range(5):
        file = sites / "gate" / f"{number:03d}.png"
        file.write_bytes(file.read_bytes()[:60] if number else b"")
    said = invoke("run", *SETTINGS, "--set=data.source_path=source")
    assert said.code == 0, said.err
    assert "gate: 5 of 30 images cannot be read" in said.out
    assert "gate/000.png (empty file)" in said.out
    assert "and 2 more" in said.out
    assert last_line()["clients"]["gate"]["total"] == 0

    said = invoke("data", "check", "sites")
    assert said.code == 0, said.err
    assert said.out.count("broken: gate: gate/00") == 5


def test_a_client_of_broken_files_only_is_skipped(invoke: Callable[..., Any], sites: Path) -> None:
    for file in (sites / "gate").iterdir():
        file.write_text("not an image")
    said = invoke("run", *SETTINGS, "--set=data.source_path=source", "--method=source_only")
    assert said.code == 0, said.err
    assert "gate: 30 of 30 images cannot be read, skipping the domain" in said.out
    assert list(last_line()["clients"]) == ["dock", "yard"]


def test_names_that_are_not_text_are_escaped(invoke: Callable[..., Any], sites: Path) -> None:
    (sites / "dock").rename(sites / "do\nck \x1b[31m")
    (sites / "gate").rename(sites / os.fsdecode(b"g\xffte"))
    said = invoke("run", *SETTINGS, "--set=data.source_path=source", "--method=source_only")
    assert said.code == 0, said.err
    assert list(last_line()["clients"]) == ["do\\u000ack \\u001b[31m", "g\\udcffte", "yard"]
    said = invoke("data", "check", "sites")
    assert said.code == 0, said.err
    said.out.encode()  # nothing that a strict terminal would refuse


def test_settings_without_effect_are_rejected(invoke: Callable[..., Any], sites: Path) -> None:
    cases = {
        "set data.benchmark": ["--set=data.path=sites"],
        "are for own images": ["--set=data.benchmark=pacs", "--set=data.classes=a,b"],
        "data.clients_per_domain": [*SETTINGS, "--set=data.size_dirichlet=1"],
    }
    for words, settings in cases.items():
        said = invoke("run", *settings, "--set=data.source=yard")
        assert (said.code, said.err.count("\n")) == (2, 1)
        assert words in said.err


def test_names_stay_as_they_are_written(invoke: Callable[..., Any], sites: Path) -> None:
    (sites / "yard").rename(sites / "1.50")
    sites.rename(sites.parent / "2024")
    said = invoke(
        "run", *SETTINGS, "--set=data.path=2024", "--set=data.source=1.50", "--method=source_only"
    )
    assert said.code == 0, said.err
    assert list(last_line()["clients"]) == ["dock", "gate"]


def test_a_source_of_one_image_leaves_no_run_behind(
    invoke: Callable[..., Any], sites: Path
) -> None:
    for file in sorted((sites / "yard").rglob("*.png"))[1:]:
        file.unlink()
    settings = [*SETTINGS, "--set=data.source=yard", "--set=data.classes=bar,post,square"]
    said = invoke("run", *settings)
    assert said.code == 2
    assert "fewer than two labeled images" in said.err
    assert not Path("runs").exists()


def test_check_counts_and_prints_the_next_command(invoke: Callable[..., Any], sites: Path) -> None:
    (sites / "empty").mkdir()
    said = invoke("data", "check", "sites")
    assert said.code == 0
    rows = {line.split()[0]: line.split()[1:] for line in said.out.splitlines() if line.strip()}
    assert rows["dock"] == ["30", "0", "–", "–", "16×16", "0"]
    assert rows["yard"] == ["30", "30", "3", "of", "3", "10", "bar", "16×16", "0"]
    assert rows["all"] == ["90", "30", "0"]
    assert "data.benchmark=images --set data.path=sites --set data.source=yard" in said.out
    assert "--set model.weights=" in said.out
    assert "empty: no images" in said.err


def test_check_and_preview_need_no_labels_at_all(invoke: Callable[..., Any], sites: Path) -> None:
    for path in (sites / "yard").rglob("*.png"):
        path.unlink()
    said = invoke("data", "check", "sites")
    assert said.code == 0, said.err
    assert "no known classes" in said.out
    assert "--set source.weights=MODEL.safetensors --set data.classes=NAME,NAME,…" in said.out
    assert invoke("data", "preview", "sites", "-o", "sheet.png").code == 0
    with Image.open("sheet.png") as sheet:
        assert sheet.width > 100


@pytest.mark.parametrize("command", ["check", "preview"])
def test_missing_and_empty_folders(
    invoke: Callable[..., Any], tmp_path: Path, command: str
) -> None:
    said = invoke("data", command, "nowhere")
    assert (said.code, "is not a folder" in said.err) == (2, True)
    (tmp_path / "bare").mkdir()
    said = invoke("data", command, "bare")
    assert (said.code, "no images in a known layout" in said.err) == (2, True)
    said = invoke("data", command, "bare", "--benchmark", "pacz")
    assert (said.code, "did you mean 'pacs'?" in said.err) == (2, True)


def test_the_generated_benchmark_can_be_checked_too(invoke: Callable[..., Any]) -> None:
    said = invoke("data", "check", "mini-digits")
    assert said.code == 0
    assert "handwriting" in said.out
    assert "fedwca run --set data.benchmark=mini-digits --set data.source=handwriting" in said.out


def test_skewed_clients_are_saved_with_the_run(invoke: Callable[..., Any], sites: Path) -> None:
    skewed = [
        "--set=data.source_path=source",
        "--set=data.clients_per_domain=2",
        "--set=data.size_dirichlet=0.3",
        "--set=data.images_per_client=12",
    ]
    said = invoke("run", *SETTINGS, *skewed, "--method=source_only")
    assert said.code == 0, said.err
    (run,) = Path("runs").iterdir()
    clients = json.loads((run / "clients.json").read_text())["clients"]
    assert list(clients) == [f"{site}/{n}" for site in ("dock", "gate", "yard") for n in (0, 1)]
    sizes = [len(held["train"]) for held in clients.values()]
    assert max(sizes) == 12
    assert min(sizes) < 12
    said = invoke("run", *SETTINGS, *skewed, "--set=data.label_dirichlet=0.5")
    assert (said.code, "no labels to skew" in said.err) == (2, True)
