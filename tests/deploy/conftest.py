"""Images for three sites and a source model, for tests on real processes."""

from pathlib import Path

import pytest

from fedwca.data.types import Benchmark
from fedwca.models import save_weights
from tests.support.deployment import SITES, source_model
from tests.support.sites import write_images


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory, tiny_benchmark: Benchmark) -> Path:
    folder = tmp_path_factory.mktemp("images")
    domains = dict(zip(["clean", *SITES], [*tiny_benchmark.domains.values()] * 2, strict=False))
    world = Benchmark("tiny", tiny_benchmark.classes, domains, tiny_benchmark.transform)
    assert write_images(folder, world, count=30, test=10) == SITES
    save_weights(source_model(world.classes), folder / "source.safetensors", classes=world.classes)
    return folder
