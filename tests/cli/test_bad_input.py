"""Bad input ends with one sentence and exit code 2, and loses nothing."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwca._support.errors import describe_disk_error
from fedwca.engines.codec import save_records
from fedwca.methods import Record
from fedwca.report.runs import find_runs
from tests.cli.conftest import Invoke, Result, assert_error
from tests.support.tiny_settings import TINY

GREY = np.zeros((3, 8, 8), np.uint8)


def run_tiny(invoke: Invoke, data: Path, *more: str) -> Result:
    one_each = "--set=data.clients_per_domain=1"
    return invoke("run", *TINY, one_each, f"--set=data.path={data}", *more)


# --- arguments and settings ---------------------------------------------------------------------


@pytest.fixture
def odd_files(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[training\nlr=1")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    os.mkfifo(tmp_path / "pipe.toml")


@pytest.mark.usefixtures("odd_files")
@pytest.mark.parametrize(
    ("command", "named"),
    [
        *((f"run {name}.toml", f"{name}.toml") for name in ("none", "bad", "binary", "folder")),
        *((f"run {name}.toml", f"{name}.toml") for name in ("pipe",)),
        ("data check ~nosuchuser/images", "~nosuchuser"),
        ("reproduce main --data ~nosuchuser/images", "~nosuchuser"),
        ("adapt-client run --data ~nosuchuser/images", "~nosuchuser"),
        ("show circle", "circle"),
        ("show .", "not a run folder"),
        ("resume none", "runs/none"),
        ("compare", "runs"),
        ("compare folder.toml", "folder.toml"),
        ("list --runs bad.toml", "bad.toml"),
        # The typo is found before the first method is run.
        ("run --method source_only --method fedwac", "'fedwca'"),
        ("run --set data.benchmark=mini-digit", "'mini-digits'"),
        ("run --set data.benchmark=digit-five", "data.path"),
        ("run --set model.backbone=lenett", "'lenet'"),
        ("run --set method.name=[1]", "[1]"),
        *(
            (f"run --set {setting}", setting.partition("=")[0])
            for setting in (
                "data.path=5",
                "run.seed=99999999999999999999",
                "source.seed=99999999999999999999",
                "training.batch_size=99999999999999999999",
                "model.bottleneck=100000000000",
                "data.image_size=64",
                "run.device=meta",
                "run.device=gpu9",
                "source.weights=nothing.safetensors",
            )
        ),
    ],
)
def test_an_invalid_argument_is_named(
    invoke: Invoke, tmp_path: Path, command: str, named: str
) -> None:
    assert_error(invoke(*command.split()), named)
    assert not (tmp_path / "runs").exists()


# --- messages -----------------------------------------------------------------------------------


def test_a_domain_is_shown_without_control_codes(invoke: Invoke, npz_folder: Path) -> None:
    (npz_folder / "dim.npz").rename(npz_folder / "dim\x1b[31m\udcff.npz")
    result = invoke("data", "check", str(npz_folder))
    assert result.code == 0
    assert r"dim\u001b[31m\udcff" in result.out


def test_error_messages_are_short_and_have_no_control_codes(invoke: Invoke) -> None:
    result = invoke("run", f"--set=data.benchmark=\x1b[2J{'x' * 90_000}")
    assert_error(result)
    assert result.err.rstrip("\n").isprintable()
    assert len(result.err) < 2100


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: ..."),
        ImportError("lib.so: failed to map segment from shared object"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        OSError(errno.EAGAIN, "a process cannot start"),
    ],
)
def test_out_of_memory_is_a_user_error(
    invoke: Invoke, npz_folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("fedwca.experiments.runner.load_data", fail)
    assert_error(run_tiny(invoke, npz_folder), "out of memory")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EDQUOT, "the disk is full"),
        (errno.EROFS, "cannot write"),
        (errno.EACCES, "cannot use"),
    ],
)
def test_a_disk_error_names_the_file(number: int, words: str) -> None:
    error = OSError(number, os.strerror(number), "w.pth")
    assert describe_disk_error(error).startswith(f"{words} w.pth")


def test_output_that_cannot_encode_a_path_shows_it_escaped(
    npz_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "猫\udcff"
    shutil.copytree(npz_folder, folder)
    command = [sys.executable, "-m", "fedwca.cli", "data", "check", str(folder)]
    latin = {**os.environ, "PYTHONIOENCODING": "iso-8859-1", "FEDWCA_CACHE": str(tmp_path / "c")}
    result = subprocess.run(command, env=latin, capture_output=True, cwd=tmp_path, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
    assert rb"\u732b\udcff" in result.stdout


def test_a_run_whose_output_is_closed_stops(npz_folder: Path, tmp_path: Path) -> None:
    words = ["run", *TINY, f"--set=data.path={npz_folder}", "--set=training.rounds=50"]
    with subprocess.Popen(
        [sys.executable, "-m", "fedwca.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "FEDWCA_CACHE": str(tmp_path / "cache")},
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read().decode()
    assert (process.returncode, err) == (128 + 13, "")


# --- data ---------------------------------------------------------------------------------------


def test_missing_data(invoke: Invoke, npz_folder: Path, tmp_path: Path) -> None:
    assert_error(run_tiny(invoke, tmp_path / "none"), "data.path")
    (tmp_path / "empty").mkdir()
    assert_error(run_tiny(invoke, tmp_path / "empty"), ".npz")
    assert_error(run_tiny(invoke, npz_folder, "--set=data.source=cleen"), "'clean'")
    digits = ("--set=data.benchmark=digit-five", f"--set=data.path={npz_folder}")
    assert_error(invoke("run", *digits), "mnist.npz")


def test_a_nan_image_is_named(invoke: Invoke, npz_folder: Path) -> None:
    images = np.random.default_rng(0).random((20, 16, 16, 3))
    images[7, 3, 3, 0] = np.nan
    np.savez(npz_folder / "dim.npz", images=images, labels=np.arange(20) % 3)
    assert_error(run_tiny(invoke, npz_folder), "dim.npz", "0..1")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"labels": np.zeros(3, int)}, "no array 'images'"),
        ({"images": np.zeros((3, 8, 8), np.int32)}, "store uint8, or floats 0..1"),
        ({"images": np.full((3, 8, 8), 7.0)}, "outside 0..1"),
        ({"images": np.zeros((3, 8), np.uint8)}, "shape (3, 8"),
        ({"images": np.zeros((0, 8, 8), np.uint8)}, "at least one image"),
        ({"images": np.zeros(())}, "images of shape ()"),
        ({"images": np.zeros((0, 8, 8))}, "at least one image"),
        ({"images": np.zeros((5, 0, 8))}, "at least one image"),
        (
            {"images": np.zeros((3, 8, 8), np.uint8), "labels": np.zeros(2, int)},
            "for each of its 3",
        ),
        ({"images": GREY, "labels": np.zeros(3)}, "one whole number"),
        ({"images": GREY, "labels": np.array([0, -7, 1])}, "has the label -7"),
        ({"images": GREY, "labels": np.array([0, 10**9, 1])}, "go up to 1000000000"),
        ({"images": GREY, "labels": np.array([0, 255, 1], np.uint8)}, "only 4 of these classes"),
    ],
)
def test_arrays_of_the_wrong_kind(
    invoke: Invoke, npz_folder: Path, arrays: dict[str, Any], words: str
) -> None:
    np.savez(npz_folder / "dim.npz", **arrays)
    assert_error(run_tiny(invoke, npz_folder), words)


def test_a_label_beyond_the_classes(invoke: Invoke, tmp_path: Path) -> None:
    for name in ("mnist", "svhn", "mnist_m", "usps", "synth"):
        np.savez(tmp_path / f"{name}.npz", images=GREY, labels=np.array([0, 1, 255], np.uint8))
    digits = ("--set=data.benchmark=digit-five", f"--set=data.path={tmp_path}")
    assert_error(invoke("run", *digits), "has the label 255", "0..9")


def test_a_corrupt_cache_is_rebuilt(invoke: Invoke, npz_folder: Path, tmp_path: Path) -> None:
    assert run_tiny(invoke, npz_folder)[0] == 0
    before = find_runs(tmp_path / "runs")[0][0].last["accuracy"]
    for number, damage in enumerate([lambda b: b[:-100], lambda b: b"", lambda b: b"[]"]):
        for file in (tmp_path / "cache").rglob("*"):
            if file.is_file():
                file.write_bytes(damage(file.read_bytes()))
        assert run_tiny(invoke, npz_folder, "--runs", f"again{number}")[0] == 0
        assert find_runs(tmp_path / f"again{number}")[0][0].last["accuracy"] == before


def test_a_file_that_is_not_an_archive(invoke: Invoke, npz_folder: Path) -> None:
    whole = (npz_folder / "dim.npz").read_bytes()
    for content in (b"", b"hello", whole[:200], whole[: len(whole) // 2]):
        (npz_folder / "dim.npz").write_bytes(content)
        assert_error(run_tiny(invoke, npz_folder), "dim.npz", "not a readable .npz")


def test_unlabeled_source(invoke: Invoke, npz_folder: Path) -> None:
    np.savez(npz_folder / "clean.npz", images=np.zeros((9, 8, 8), np.uint8))
    assert_error(run_tiny(invoke, npz_folder), "data.source")


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("source.weights=none.safetensors", "none.safetensors"),
        ("source.weights=dim.npz", "dim.npz"),
        ("method.clustering_layer=3", "2 convolution layers"),
        ("data.clients_per_domain=3", "clients_per_domain"),
        ("source.lr=1e30", "source.lr"),
    ],
)
def test_a_setting_that_does_not_fit_the_data(
    invoke: Invoke, npz_folder: Path, tmp_path: Path, setting: str, named: str
) -> None:
    few = {"images": np.zeros((2, 8, 8), np.uint8), "labels": np.array([0, 1])}
    np.savez(npz_folder / "dim.npz", **few)
    shutil.copy(npz_folder / "dim.npz", tmp_path)
    assert_error(run_tiny(invoke, npz_folder, f"--set={setting}"), named)
    if named == "source.lr":  # a model that diverged is not stored
        assert not list((tmp_path / "cache").glob("source/*"))


def test_a_run_folder_of_another_config(invoke: Invoke, npz_folder: Path, tmp_path: Path) -> None:
    assert run_tiny(invoke, npz_folder)[0] == 0
    (run,) = (tmp_path / "runs").iterdir()
    config = run / "config.json"
    config.write_text(config.read_text().replace('"rounds": 2', '"rounds": 3'))
    before = (run / "results.jsonl").read_bytes()
    assert_error(run_tiny(invoke, npz_folder), run.name)
    assert (run / "results.jsonl").read_bytes() == before
    assert_error(invoke("resume", str(run)), run.name)


def test_data_that_changed_since_the_run_began(invoke: Invoke, npz_folder: Path) -> None:
    assert run_tiny(invoke, npz_folder)[0] == 0
    with np.load(npz_folder / "dim.npz") as archive:
        images, labels = archive["images"].copy(), archive["labels"]
    images[5] = 0
    np.savez(npz_folder / "dim.npz", images=images, labels=labels)
    assert_error(run_tiny(invoke, npz_folder), "--runs")
    (npz_folder / "dim.npz").unlink()
    (npz_folder / "clean.npz").unlink()
    (npz_folder / "noisy.npz").unlink()
    assert run_tiny(invoke, npz_folder)[0] == 0  # the data are gone, the result stands


def test_a_new_class_trains_a_new_source_model(invoke: Invoke, npz_folder: Path) -> None:
    assert run_tiny(invoke, npz_folder, "--method", "source_only")[0] == 0
    images = np.random.default_rng(0).integers(0, 255, (20, 16, 16), np.uint8)
    np.savez(npz_folder / "more.npz", images=images, labels=np.arange(20) % 4)
    more = ("--method", "source_only", "--runs", "again")
    assert run_tiny(invoke, npz_folder, *more).code == 0


# --- hard but legal: these must work ------------------------------------------------------------


@pytest.mark.parametrize("clients", [1, 2, 3])
@pytest.mark.parametrize("method", ["local", "fedavg", "fedwca"])
def test_one_two_and_three_clients(
    invoke: Invoke, npz_folder: Path, clients: int, method: str
) -> None:
    (npz_folder / "noisy.npz").unlink()
    more = (f"--set=data.clients_per_domain={clients}", "--method", method)
    assert run_tiny(invoke, npz_folder, *more).code == 0
    assert len(find_runs(Path("runs"))[0][0].last["clients"]) == clients


def test_a_client_with_one_image_and_an_empty_class(invoke: Invoke, npz_folder: Path) -> None:
    one = np.zeros((1, 16, 16, 3), np.uint8)
    np.savez(npz_folder / "dim.npz", images=one, labels=np.array([2]))
    images = np.random.default_rng(0).integers(0, 255, (40, 16, 16), np.uint8)
    np.savez(npz_folder / "noisy.npz", images=images, labels=np.zeros(40, int))
    assert run_tiny(invoke, npz_folder).code == 0
    last = find_runs(Path("runs"))[0][0].last
    assert last["clients"]["dim"]["accuracy"] is None
    assert last["clients"]["noisy"]["accuracy"] is not None


def test_clients_without_labels_get_health_instead_of_accuracy(
    invoke: Invoke, npz_folder: Path
) -> None:
    for name in ("dim", "noisy"):
        with np.load(npz_folder / f"{name}.npz") as archive:
            images = archive["images"]
        np.savez(npz_folder / f"{name}.npz", images=images)
    assert run_tiny(invoke, npz_folder).code == 0
    last = find_runs(Path("runs"))[0][0].last
    assert last["accuracy"]["mean"] is None
    assert all(0 < client["confidence"] <= 1 for client in last["clients"].values())
    assert invoke("show", str(find_runs(Path("runs"))[0][0].path)).code == 0


# --- disks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "cannot write"), (errno.EIO, "cannot use")],
)
def test_a_disk_that_fails_in_the_last_checkpoint_loses_nothing(
    invoke: Invoke, npz_folder: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    def failing(path: Path, records: dict[str, Record], **more: Any) -> None:
        if "checkpoint-00002" in str(path):
            raise OSError(code, os.strerror(code), str(path))
        save_records(path, records, **more)

    with monkeypatch.context() as patch:
        patch.setattr("fedwca.experiments.checkpoint.save_records", failing)
        assert_error(run_tiny(invoke, npz_folder), words, "checkpoint-00002")
    view = find_runs(Path("runs"))[0][0]
    assert not view.done
    assert [path.stem for path in view.path.glob("checkpoint-*")] == ["checkpoint-00001"]
    assert run_tiny(invoke, npz_folder).code == 0
    assert find_runs(Path("runs"))[0][0].done


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte, where the machine lets us mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_really_full_and_a_really_read_only_disk(
    invoke: Invoke, npz_folder: Path, small_disk: Path
) -> None:
    def remount(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(small_disk)], check=True)

    runs = ("--runs", str(small_disk / "runs"))
    (small_disk / "ballast").write_bytes(bytes(900_000))
    assert_error(run_tiny(invoke, npz_folder, *runs), "the disk is full")
    (small_disk / "ballast").unlink()
    remount("ro,size=8m")
    assert_error(run_tiny(invoke, npz_folder, *runs), "--runs")
    remount("rw,size=8m")
    assert run_tiny(invoke, npz_folder, *runs).code == 0
    assert find_runs(small_disk / "runs")[0][0].done


def test_a_bug_ends_with_code_one_and_a_log(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("oh")

    monkeypatch.setattr("fedwca.experiments.config.resolve", broken)
    code, _, err = invoke("run")
    assert code == 1
    assert "failed unexpectedly (RuntimeError: oh)" in err
    log = Path(err.split("please report it with ")[1].strip())
    assert "RuntimeError: oh" in log.read_text()
    log.unlink()
