"""Measure how long a run takes to start: find, decode and split images, build the model.

    python benchmarks/start.py                     # generated .mat files of Digit-Five's size
    python benchmarks/start.py --digit-five FOLDER --pacs FOLDER

Starts are repeated with a full cache, each in a new process. Memory is the process's peak resident
set, of which decoded images are pages of a file that the system may drop at any time.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measure import peak_memory

SETTINGS = {
    "digit-five": ("mnist", 32),
    "pacs": ("art_painting", 256),  # cropped to 224
}


def start(benchmark: str, path: str, cache: str) -> None:
    """Do what `fedwca run` does before training."""
    from fedwca.experiments.config import resolve
    from fedwca.experiments.inputs import load_data
    from fedwca.experiments.source import initialize_model

    source, size = SETTINGS[benchmark]
    data = {"benchmark": benchmark, "path": path, "source": source, "image_size": size}
    experiment = resolve({"data": data})
    loaded = load_data(experiment, Path(cache))
    clients = loaded.clients(source, experiment.data.partition, 0)
    initialize_model(experiment, loaded)
    images = sum(len(domain) for domain in loaded.domains.values())
    print(f"{images:,} images, {len(clients)} clients, peak memory {peak_memory():,.0f} MiB")


def measure(benchmark: str, path: Path) -> None:
    """Time a start with an empty cache, and two more."""
    with tempfile.TemporaryDirectory() as cache:
        for name in ("first", "second", "third"):
            started = time.perf_counter()
            command = [sys.executable, __file__, "--start", benchmark, str(path), cache]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            seconds = time.perf_counter() - started
            print(f"{benchmark:11} {name:7} {seconds:6.1f} s  {output.strip()}", flush=True)


def write_digits(folder: Path) -> None:
    """Write .mat files of the public sizes, with blurry noise that compresses like photos."""
    from scipy.io import savemat

    rng = np.random.default_rng(0)

    def images(count: int, side: int, *channels: int) -> np.ndarray:
        coarse = rng.integers(0, 256, (count, side // 4, side // 4, *channels), np.uint8)
        return coarse.repeat(4, axis=1).repeat(4, axis=2) // 2 + rng.integers(
            0, 16, (count, side, side, *channels), np.uint8
        )

    def one_hot(count: int) -> np.ndarray:
        return np.eye(10)[rng.integers(0, 10, count)]

    def column(count: int, first: int = 0) -> np.ndarray:
        return rng.integers(first, first + 10, (count, 1)).astype(np.uint8)

    def save(name: str, **content: np.ndarray) -> None:
        savemat(folder / name, content, do_compression=True)

    labels = {"label_train": one_hot(55_000), "label_test": one_hot(10_000)}
    save("mnist_data.mat", train_32=images(55_000, 32), test_32=images(10_000, 32), **labels)
    train, test = images(55_000, 28, 3), images(10_000, 28, 3)
    save("mnistm_with_label.mat", train=train, test=test, **labels)
    for part, count in (("train", 73_257), ("test", 26_032)):
        pixels = np.moveaxis(images(count, 32, 3), 0, -1)
        save(f"svhn_{part}_32x32.mat", X=pixels, y=column(count, first=1))
    labels = {"train_label": column(25_000), "test_label": column(9_000)}
    train, test = images(25_000, 32, 3), images(9_000, 32, 3)
    save("syn_number.mat", train_data=train, test_data=test, **labels)
    cells = np.empty((2, 2), dtype=object)
    for row, count in enumerate((7_438, 1_860)):
        cells[row, 0] = (images(count, 28) / 255)[:, None]
        cells[row, 1] = column(count)
    savemat(folder / "usps_28x28.mat", {"dataset": cells}, do_compression=True)


def main() -> None:
    if sys.argv[1:2] == ["--start"]:
        start(*sys.argv[2:5])
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--digit-five", type=Path, help="its folder; default: generated files")
    parser.add_argument("--pacs", type=Path, help="its folder; default: skipped")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as generated:
        if options.digit_five is None:
            print("generating the .mat files of Digit-Five …", flush=True)
            write_digits(Path(generated))
        measure("digit-five", options.digit_five or Path(generated))
    if options.pacs:
        measure("pacs", options.pacs)


if __name__ == "__main__":
    main()
