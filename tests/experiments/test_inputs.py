"""What a run reads, and what is said about it."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedwca.experiments.config import resolve
from fedwca.experiments.inputs import load_data, log_warnings, simulated_clients


@pytest.mark.parametrize(
    ("unscored", "warned"), [((), False), (("dim/1",), True), (("dim/0", "dim/1"), False)]
)
def test_clients_without_test_images_are_named_if_others_have_some(
    npz_folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    unscored: tuple[str, ...],
    warned: bool,
) -> None:
    data = {"benchmark": "npz", "path": npz_folder, "source": "clean", "image_size": 16}
    experiment = resolve({"data": {**data, "clients_per_domain": 2}})
    benchmark = load_data(experiment, tmp_path / "cache")
    found = [c for c in simulated_clients(experiment, benchmark) if c.domain == "dim"]
    clients = [replace(c, test=None) if c.name in unscored else c for c in found]
    log_warnings(experiment, benchmark, clients)
    assert [unscored[0] in record.getMessage() for record in caplog.records] == [True] * warned
