"""What holds for every benchmark; a new one needs a maker of small files here."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedwca._support.errors import UserError
from fedwca.data import BENCHMARKS, DataRequest, Partition, detect_benchmark, load_benchmark
from fedwca.data.benchmarks.digit_five import DIGIT_FIVE
from fedwca.data.benchmarks.object_benchmarks import OFFICE31, OFFICE_HOME, PACS
from fedwca.data.formats.standard_folders import StandardBenchmark
from fedwca.data.types import ImageReader, RawBenchmark
from fedwca.experiments.config import resolve
from fedwca.experiments.defaults import BENCHMARK_DEFAULTS
from tests.support.image_folders import put_domains

ROOT = Path(__file__).parents[2]
WITH_FILES = [name for name, loader in BENCHMARKS.items() if loader.detect is not None]


def standard(benchmark: StandardBenchmark) -> Callable[[Path], object]:
    return lambda folder: put_domains(folder, benchmark.domains, benchmark.classes, count=2)


def archives(names: tuple[str, ...]) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        images = np.random.default_rng(0).integers(0, 255, (40, 12, 12), np.uint8)
        for name in names:
            np.savez(folder / f"{name}.npz", images=images, labels=np.arange(40) % 10)

    return make


MAKERS: dict[str, Callable[[Path], object]] = {
    "digit-five": archives(DIGIT_FIVE),
    "pacs": standard(PACS),
    "office-home": standard(OFFICE_HOME),
    "office-31": standard(OFFICE31),
    "npz": archives(("north", "south")),
    "images": lambda folder: put_domains(folder, ("dock", "gate"), ("bolt", "nut"), count=5),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "files"
    made.mkdir()
    return made


@pytest.mark.parametrize("name", WITH_FILES)
def test_its_folder_is_detected_and_an_empty_one_is_not(name: str, folder: Path) -> None:
    detect = BENCHMARKS[name].detect
    assert detect is not None
    assert not detect(folder)
    MAKERS[name](folder)
    assert detect_benchmark(folder) == name


def decoded_twice() -> ImageReader:
    raise AssertionError("decoded twice")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_it_loads_and_the_second_start_opens_no_file(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in MAKERS:
        MAKERS[name](folder)
    request = DataRequest(folder if name in MAKERS else None, tmp_path / "cache")
    first = load_benchmark(name, request)
    assert len(first.classes) >= 2
    assert len(first.domains) >= 2
    for domain in first.domains.values():
        assert domain.images.shape == (len(domain), 32, 32, 3)
        assert isinstance(domain.images, np.memmap)
        assert not domain.images.flags.writeable
    assert first.transform == BENCHMARKS[name].transform(32)
    source = next(iter(first.domains))
    assert len(first.source(source)) == len(first.domains[source])
    assert {c.domain for c in first.clients(source, Partition(2), 0)} == {*first.domains} - {source}

    def closed(request: DataRequest) -> RawBenchmark:
        found = loader.find(request)
        return replace(found, domains=tuple(replace(d, open=decoded_twice) for d in found.domains))

    loader = BENCHMARKS[name]
    monkeypatch.setitem(BENCHMARKS, name, loader._replace(find=closed))
    assert load_benchmark(name, request).digests == first.digests


@pytest.mark.parametrize("name", WITH_FILES)
def test_without_its_files_it_says_what_to_set(name: str, tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UserError, match=r"set data\.path"):
        load_benchmark(name, DataRequest(None, tmp_path / "cache"))
    with pytest.raises(UserError, match=r"is not a folder; set data\.path"):
        load_benchmark(name, DataRequest(tmp_path / "nowhere", tmp_path / "cache"))
    with pytest.raises(UserError, match=r"set data\.path|put |add "):
        load_benchmark(name, DataRequest(folder, tmp_path / "cache"))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_it_is_documented_and_has_settings_that_are_valid(name: str) -> None:
    assert f"| `{name}` |" in (ROOT / "docs" / "data.md").read_text()
    experiment = resolve({"data": {"benchmark": name, "source": "x"}})
    size = experiment.data.image_size
    assert (experiment.model.backbone == "lenet") == (size == 32)


def test_defaults_exist_for_known_benchmarks_only() -> None:
    assert {*BENCHMARK_DEFAULTS} <= {*BENCHMARKS}
