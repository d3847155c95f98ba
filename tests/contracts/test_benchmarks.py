"""What holds for every benchmark; a new one needs a maker of small files here."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedwca.data import BENCHMARKS, Partition, Request, load_benchmark, recognise
from fedwca.data.digit_five import DIGIT_FIVE
from fedwca.data.office31 import OFFICE31
from fedwca.data.office_home import OFFICE_HOME
from fedwca.data.pacs import PACS
from fedwca.data.raw import Found, Pictures
from fedwca.data.standard_folders import Standard
from fedwca.errors import UserError
from fedwca.experiments.config import resolve
from fedwca.experiments.defaults import BENCHMARK_DEFAULTS
from image_folders import put_domains

ROOT = Path(__file__).parents[2]
WITH_FILES = [name for name, loader in BENCHMARKS.items() if loader.looks_like is not None]


def standard(benchmark: Standard) -> Callable[[Path], object]:
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
def test_its_folder_is_recognised_and_an_empty_one_is_not(name: str, folder: Path) -> None:
    looks_like = BENCHMARKS[name].looks_like
    assert looks_like is not None
    assert not looks_like(folder)
    MAKERS[name](folder)
    assert recognise(folder) == name


def decoded_twice() -> Pictures:
    raise AssertionError("decoded twice")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_it_loads_and_the_second_start_opens_no_file(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in MAKERS:
        MAKERS[name](folder)
    request = Request(folder if name in MAKERS else None, tmp_path / "cache")
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

    def closed(request: Request) -> Found:
        found = loader.find(request)
        return replace(found, domains=tuple(replace(d, open=decoded_twice) for d in found.domains))

    loader = BENCHMARKS[name]
    monkeypatch.setitem(BENCHMARKS, name, loader._replace(find=closed))
    assert load_benchmark(name, request).digests == first.digests


@pytest.mark.parametrize("name", WITH_FILES)
def test_without_its_files_it_says_what_to_set(name: str, tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UserError, match=r"set data\.path"):
        load_benchmark(name, Request(None, tmp_path / "cache"))
    with pytest.raises(UserError, match=r"is not a folder: set data\.path"):
        load_benchmark(name, Request(tmp_path / "nowhere", tmp_path / "cache"))
    with pytest.raises(UserError, match=r"set data\.path|put "):
        load_benchmark(name, Request(folder, tmp_path / "cache"))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_it_is_documented_and_has_settings_that_are_valid(name: str) -> None:
    assert f"| `{name}` |" in (ROOT / "docs" / "data.md").read_text()
    experiment = resolve({"data": {"benchmark": name, "source": "x"}})
    size = experiment.data.image_size
    assert (experiment.model.backbone == "lenet") == (size == 32)


def test_no_default_is_left_of_a_benchmark_that_is_gone() -> None:
    assert {*BENCHMARK_DEFAULTS} <= {*BENCHMARKS}
