"""Bad input ends with one sentence and exit code 2, and loses nothing."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwca._support.errors import describe_disk_error
from fedwca.engines.codec import save_records
from fedwca.methods import Record
from fedwca.report.runs import find_runs
from tests.fuzz.harness import within_bounds
from tests.support.tiny_settings import TINY

Fedwca = Callable[..., tuple[int, str]]
GREY = np.zeros((3, 8, 8), np.uint8)


@pytest.fixture
def fedwca(invoke: Callable[..., Any]) -> Fedwca:
    """Call a command; return its exit code and stderr."""

    def call(*arguments: str) -> tuple[int, str]:
        code, _, err = invoke(*arguments)
        return code, err

    return call


def run_tiny(fedwca: Fedwca, data: Path, *more: str) -> tuple[int, str]:
    one_each = "--set=data.clients_per_domain=1"
    return fedwca("run", *TINY, one_each, f"--set=data.path={data}", *more)


def check_error(result: tuple[int, str], *expected: str) -> None:
    code, err = result
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    for text in expected:
        assert text in err


def test_a_missing_config_file(fedwca: Fedwca) -> None:
    check_error(fedwca("run", "nowhere.toml"), "nowhere.toml does not exist")


def test_a_config_that_is_not_toml(fedwca: Fedwca, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[training\nlr=1")
    check_error(fedwca("run", "bad.toml"), "not valid TOML")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    check_error(fedwca("run", "binary.toml"), "not valid TOML")
    check_error(fedwca("run", str(tmp_path)), "cannot be read")


def test_pipes_and_devices_are_no_config_files(fedwca: Fedwca, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with within_bounds(seconds=20):
        check_error(fedwca("run", "pipe.toml"), "pipe.toml cannot be read", "not a regular file")
        check_error(fedwca("run", "/dev/zero"), "/dev/zero cannot be read")


def test_an_unknown_home_folder_and_circular_links(fedwca: Fedwca, tmp_path: Path) -> None:
    nobody = "~nosuchuser/images"
    check_error(fedwca("data", "check", nobody), "there is no home folder for ~nosuchuser")
    check_error(fedwca("reproduce", "main", "--data", nobody), "there is no home folder")
    check_error(fedwca("adapt-client", "run", "--data", nobody), "there is no home folder")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    check_error(fedwca("show", "circle"), "is not a run folder")


def test_a_domain_is_shown_without_control_codes(
    invoke: Callable[..., Any], npz_folder: Path
) -> None:
    (npz_folder / "dim.npz").rename(npz_folder / "dim\x1b[31m\udcff.npz")
    result = invoke("data", "check", str(npz_folder))
    assert result.code == 0
    assert r"dim\u001b[31m\udcff" in result.out


def test_values_too_large_or_too_deep_for_a_parser(fedwca: Fedwca, tmp_path: Path) -> None:
    for value in ("9" * 5000, "0x" + "f" * 5000, "[" * 3000 + "]" * 3000):
        (tmp_path / "wild.toml").write_text(f"[training]\nlr = {value}\n")
        check_error(fedwca("run", "wild.toml"), "wild.toml is not valid TOML")
        check_error(fedwca("run", f"--set=training.lr={value}"), "training.lr")
        check_error(fedwca("run", f"--set=method.name={value}"), "there is no method")
    check_error(fedwca("run", "--set=method.name=[1]"), "there is no method [1]")


def test_error_messages_are_short_and_have_no_control_codes(fedwca: Fedwca) -> None:
    code, err = fedwca("run", "--set=data.source=x", f"--set=data.benchmark=\x1b[2J{'x' * 90_000}")
    assert code == 2
    assert err.startswith("error: ")
    assert err.rstrip("\n").isprintable()
    assert len(err) < 2100


def test_out_of_memory_is_a_user_error(
    fedwca: Fedwca, npz_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: ..."),
        ImportError("lib.so: failed to map segment from shared object"),
    ):

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("fedwca.experiments.runner.load_data", fail)
        check_error(run_tiny(fedwca, npz_folder), "out of memory")


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EAGAIN])
def test_a_process_that_cannot_start_is_out_of_memory(
    fedwca: Fedwca, npz_folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fedwca.experiments.runner.load_data", fail)
    check_error(run_tiny(fedwca, npz_folder), "out of memory", "workers")


def test_full_read_only_and_unreadable_have_messages_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "w.pth"
    file.write_bytes(b"")

    def sentence(number: int, path: Path) -> str:
        return describe_disk_error(OSError(number, os.strerror(number), str(path)))

    assert "the disk is full" in sentence(errno.EDQUOT, file)
    assert "cannot write" in sentence(errno.EACCES, tmp_path / "new")
    assert "cannot write" in sentence(errno.EROFS, file)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)  # root may read all
    assert f"cannot read {file}" in sentence(errno.EACCES, file)


def test_a_bug_is_reported_even_if_no_log_can_be_written(
    invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LookupError("ours")

    def no_folder(*_: object, **__: object) -> None:
        raise FileNotFoundError("No usable temporary directory")

    monkeypatch.setattr("fedwca.cli.results.find_runs", fail)
    monkeypatch.setattr("tempfile.NamedTemporaryFile", no_folder)
    result = invoke("list")
    assert result.code == 1
    assert "failed unexpectedly (LookupError: ours); please report it with" in result.err
    assert "FEDWCA_DEBUG" in result.err


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


def test_a_run_whose_output_is_closed_stops_with_a_message(
    npz_folder: Path, tmp_path: Path
) -> None:
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
    assert process.returncode == 128 + 13
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "rerun the same command" in err


def test_misspelled_settings_and_wrong_types(fedwca: Fedwca) -> None:
    check_error(fedwca("run", "--set", "training.epoch=2"), "did you mean 'epochs'?")
    check_error(fedwca("run", "--set", "training.lr=fast"), "training.lr", "valid number")
    check_error(fedwca("run", "--method", "fedavgg"), "did you mean 'fedavg'?")
    check_error(fedwca("run", "--set", "data.benchmark=mini-digit"), "did you mean 'mini-digits'?")
    check_error(fedwca("run", "--set", "model.backbone=lenett"), "lenet")


def test_a_typo_in_the_last_method_is_found_before_the_first_is_run(
    fedwca: Fedwca, tmp_path: Path
) -> None:
    check_error(fedwca("run", "--method", "source_only", "--method", "fedwac"), "did you mean")
    assert not (tmp_path / "runs").exists()


def test_missing_data(fedwca: Fedwca, npz_folder: Path, tmp_path: Path) -> None:
    check_error(run_tiny(fedwca, tmp_path / "none"), "is not a folder", "data.path")
    (tmp_path / "empty").mkdir()
    check_error(run_tiny(fedwca, tmp_path / "empty"), "no .npz file")
    check_error(run_tiny(fedwca, npz_folder, "--set=data.source=cleen"), "did you mean 'clean'")
    check_error(fedwca("run", "--set=data.benchmark=digit-five"), "set data.path to their folder")
    digits = ("--set=data.benchmark=digit-five", f"--set=data.path={npz_folder}")
    check_error(fedwca("run", *digits), "mnist.npz")


def test_a_nan_image_is_named(fedwca: Fedwca, npz_folder: Path) -> None:
    images = np.random.default_rng(0).random((20, 16, 16, 3))
    images[7, 3, 3, 0] = np.nan
    np.savez(npz_folder / "dim.npz", images=images, labels=np.arange(20) % 3)
    check_error(run_tiny(fedwca, npz_folder), "dim.npz", "number 7", "remove or repair")


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
        ({"images": GREY, "labels": np.array([0, 10**9, 1])}, "has the label 1000000000"),
        ({"images": GREY, "labels": np.array([0, 2**64 - 1, 1], np.uint64)}, "has the label 1844"),
        ({"images": GREY, "labels": np.array([0, 255, 1], np.uint8)}, "only 4 of these classes"),
    ],
)
def test_arrays_of_the_wrong_kind(
    fedwca: Fedwca, npz_folder: Path, arrays: dict[str, Any], words: str
) -> None:
    np.savez(npz_folder / "dim.npz", **arrays)
    check_error(run_tiny(fedwca, npz_folder), words)


def test_a_label_beyond_the_classes(fedwca: Fedwca, tmp_path: Path) -> None:
    for name in ("mnist", "svhn", "mnist_m", "usps", "synth"):
        np.savez(tmp_path / f"{name}.npz", images=GREY, labels=np.array([0, 1, 255], np.uint8))
    digits = ("--set=data.benchmark=digit-five", f"--set=data.path={tmp_path}")
    check_error(fedwca("run", *digits), "has the label 255", "0..9")


def test_a_corrupt_cache_is_rebuilt(fedwca: Fedwca, npz_folder: Path, tmp_path: Path) -> None:
    assert run_tiny(fedwca, npz_folder)[0] == 0
    before = find_runs(tmp_path / "runs")[0][0].last["accuracy"]
    for number, damage in enumerate([lambda b: b[:-100], lambda b: b"", lambda b: b"[]"]):
        for file in (tmp_path / "cache").rglob("*"):
            if file.is_file():
                file.write_bytes(damage(file.read_bytes()))
        assert run_tiny(fedwca, npz_folder, "--runs", f"again{number}")[0] == 0
        assert find_runs(tmp_path / f"again{number}")[0][0].last["accuracy"] == before


def test_a_file_that_is_not_an_archive(fedwca: Fedwca, npz_folder: Path) -> None:
    whole = (npz_folder / "dim.npz").read_bytes()
    for content in (b"", b"hello", whole[:200], whole[: len(whole) // 2]):
        (npz_folder / "dim.npz").write_bytes(content)
        check_error(run_tiny(fedwca, npz_folder), "dim.npz", "not a readable .npz")


def test_fewer_images_than_clients(fedwca: Fedwca, npz_folder: Path) -> None:
    np.savez(npz_folder / "dim.npz", images=np.zeros((2, 8, 8), np.uint8), labels=np.array([0, 1]))
    result = run_tiny(fedwca, npz_folder, "--set=data.clients_per_domain=3")
    check_error(result, "2 images for 3 clients", "clients_per_domain to at most 2")


def test_unlabeled_source(fedwca: Fedwca, npz_folder: Path) -> None:
    np.savez(npz_folder / "clean.npz", images=np.zeros((9, 8, 8), np.uint8))
    check_error(run_tiny(fedwca, npz_folder), "has no labels", "data.source")


def test_a_weights_file_that_does_not_fit(fedwca: Fedwca, npz_folder: Path, tmp_path: Path) -> None:
    missing = f"--set=source.weights={tmp_path / 'none.safetensors'}"
    check_error(run_tiny(fedwca, npz_folder, missing), "none.safetensors")
    other = tmp_path / "other.npz"
    other.write_bytes(b"x")
    check_error(run_tiny(fedwca, npz_folder, f"--set=source.weights={other}"), "other.npz")


def test_an_unknown_device(fedwca: Fedwca, npz_folder: Path) -> None:
    check_error(run_tiny(fedwca, npz_folder, "--set=run.device=gpu9"), "run.device", "cpu")


def test_an_unknown_layer(fedwca: Fedwca, npz_folder: Path) -> None:
    result = run_tiny(fedwca, npz_folder, "--set=method.clustering_layer=3")
    check_error(result, "2 convolution layers", "choose 1 to 2")


def test_a_run_folder_of_another_config(fedwca: Fedwca, npz_folder: Path, tmp_path: Path) -> None:
    assert run_tiny(fedwca, npz_folder)[0] == 0
    (run,) = (tmp_path / "runs").iterdir()
    config = run / "config.json"
    config.write_text(config.read_text().replace('"rounds": 2', '"rounds": 3'))
    before = (run / "results.jsonl").read_bytes()
    check_error(run_tiny(fedwca, npz_folder), "another configuration")
    assert (run / "results.jsonl").read_bytes() == before
    check_error(fedwca("resume", str(run)), "must be named")


def test_data_that_changed_since_the_run_began(fedwca: Fedwca, npz_folder: Path) -> None:
    assert run_tiny(fedwca, npz_folder)[0] == 0
    with np.load(npz_folder / "dim.npz") as archive:
        images, labels = archive["images"].copy(), archive["labels"]
    images[5] = 0
    np.savez(npz_folder / "dim.npz", images=images, labels=labels)
    check_error(run_tiny(fedwca, npz_folder), "data have changed", "--runs")
    (npz_folder / "dim.npz").unlink()
    (npz_folder / "clean.npz").unlink()
    (npz_folder / "noisy.npz").unlink()
    assert run_tiny(fedwca, npz_folder)[0] == 0  # the data are gone, the result stands


def test_a_new_class_trains_a_new_source_model(fedwca: Fedwca, npz_folder: Path) -> None:
    assert run_tiny(fedwca, npz_folder, "--method", "source_only")[0] == 0
    images = np.random.default_rng(0).integers(0, 255, (20, 16, 16), np.uint8)
    np.savez(npz_folder / "more.npz", images=images, labels=np.arange(20) % 4)
    more = ("--method", "source_only", "--runs", "again")
    assert run_tiny(fedwca, npz_folder, *more) == (0, "")


def test_a_source_model_that_diverges_is_not_kept(
    fedwca: Fedwca, npz_folder: Path, tmp_path: Path
) -> None:
    result = run_tiny(fedwca, npz_folder, "--set=source.lr=1e30", "--method", "source_only")
    check_error(result, "lower source.lr")
    assert not list((tmp_path / "cache").glob("source/*"))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("data.path=5", "data.path"),
        ("data.path=~nosuchuser/x", "no such user"),
        ("run.seed=99999999999999999999", "run.seed"),
        ("source.seed=99999999999999999999", "source.seed"),
        ("training.batch_size=99999999999999999999", "training.batch_size"),
        ("model.bottleneck=100000000000", "model.bottleneck"),
        ("data.image_size=64", "set data.image_size to 32"),
        ("run.device=meta", "run.device"),
        ("method.clustering_layer=some", "'all'"),
        ("method.training.lr=1", "section.name, such as"),
        ("source.weights=nothing.safetensors", "source.weights"),
    ],
)
def test_invalid_settings(fedwca: Fedwca, setting: str, words: str, tmp_path: Path) -> None:
    check_error(fedwca("run", "--set", setting), words)
    assert not (tmp_path / "runs").exists()


def test_folders_that_are_not_runs(fedwca: Fedwca, tmp_path: Path) -> None:
    check_error(fedwca("show", str(tmp_path)), "is not a run folder")
    check_error(fedwca("resume", str(tmp_path / "none")), "is not a run folder")
    check_error(fedwca("compare"), "nothing to compare")
    check_error(fedwca("compare", str(tmp_path)), "is not a run folder")


def test_an_unknown_option_ends_with_code_two(fedwca: Fedwca) -> None:
    code, err = fedwca("run", "--sed", "1")
    assert code == 2
    assert "--sed" in err


# --- hard but legal: these must work ------------------------------------------------------------


@pytest.mark.parametrize("clients", [1, 2, 3])
@pytest.mark.parametrize("method", ["local", "fedavg", "fedwca"])
def test_one_two_and_three_clients(
    fedwca: Fedwca, npz_folder: Path, clients: int, method: str
) -> None:
    (npz_folder / "noisy.npz").unlink()
    more = (f"--set=data.clients_per_domain={clients}", "--method", method)
    assert run_tiny(fedwca, npz_folder, *more) == (0, "")
    assert len(find_runs(Path("runs"))[0][0].last["clients"]) == clients


def test_a_client_with_one_image_and_an_empty_class(fedwca: Fedwca, npz_folder: Path) -> None:
    one = np.zeros((1, 16, 16, 3), np.uint8)
    np.savez(npz_folder / "dim.npz", images=one, labels=np.array([2]))
    images = np.random.default_rng(0).integers(0, 255, (40, 16, 16), np.uint8)
    np.savez(npz_folder / "noisy.npz", images=images, labels=np.zeros(40, int))
    assert run_tiny(fedwca, npz_folder) == (0, "")
    last = find_runs(Path("runs"))[0][0].last
    assert last["clients"]["dim"]["accuracy"] is None
    assert last["clients"]["noisy"]["accuracy"] is not None


def test_clients_without_labels_get_health_instead_of_accuracy(
    fedwca: Fedwca, npz_folder: Path
) -> None:
    for name in ("dim", "noisy"):
        with np.load(npz_folder / f"{name}.npz") as archive:
            images = archive["images"]
        np.savez(npz_folder / f"{name}.npz", images=images)
    assert run_tiny(fedwca, npz_folder) == (0, "")
    last = find_runs(Path("runs"))[0][0].last
    assert last["accuracy"]["mean"] is None
    assert all(0 < client["confidence"] <= 1 for client in last["clients"].values())
    assert fedwca("show", str(find_runs(Path("runs"))[0][0].path)) == (0, "")


# --- disks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "cannot write"), (errno.EIO, "cannot use")],
)
def test_a_disk_that_fails_in_the_last_checkpoint_loses_nothing(
    fedwca: Fedwca, npz_folder: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    def failing(path: Path, records: dict[str, Record], **more: Any) -> None:
        if "checkpoint-00002" in str(path):
            raise OSError(code, os.strerror(code), str(path))
        save_records(path, records, **more)

    with monkeypatch.context() as patch:
        patch.setattr("fedwca.experiments.checkpoint.save_records", failing)
        check_error(run_tiny(fedwca, npz_folder), words, "checkpoint-00002")
    view = find_runs(Path("runs"))[0][0]
    assert not view.done
    assert [path.stem for path in view.path.glob("checkpoint-*")] == ["checkpoint-00001"]
    assert run_tiny(fedwca, npz_folder) == (0, "")
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
    fedwca: Fedwca, npz_folder: Path, small_disk: Path
) -> None:
    def remount(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(small_disk)], check=True)

    runs = ("--runs", str(small_disk / "runs"))
    (small_disk / "ballast").write_bytes(bytes(900_000))
    check_error(run_tiny(fedwca, npz_folder, *runs), "the disk is full", "free some space")
    (small_disk / "ballast").unlink()
    remount("ro,size=8m")
    check_error(run_tiny(fedwca, npz_folder, *runs), "cannot write", "choose another --runs")
    remount("rw,size=8m")
    assert run_tiny(fedwca, npz_folder, *runs) == (0, "")
    assert find_runs(small_disk / "runs")[0][0].done


def test_the_installed_command_shows_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedwca.cli", "run", "nowhere.toml"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: nowhere.toml does not exist")
    assert "Traceback" not in done.stderr


def test_a_bug_ends_with_code_one_and_a_log(
    fedwca: Fedwca, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("oh")

    monkeypatch.setattr("fedwca.experiments.config.resolve", broken)
    code, err = fedwca("run")
    assert code == 1
    assert "failed unexpectedly (RuntimeError: oh)" in err
    log = Path(err.split("please report it with ")[1].strip())
    assert "RuntimeError: oh" in log.read_text()
    log.unlink()
