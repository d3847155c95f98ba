"""The paper's figures hold the numbers of their runs."""

from pathlib import Path

import pytest
from PIL import Image

from fedwca.report.runs import read_run
from fedwca.reproduce.figures import accuracy_figure, save_figures, weight_figure
from tests.support.made_up_runs import make_run


def test_bars_are_means_over_trials_by_domain(tmp_path: Path) -> None:
    runs = [read_run(make_run(tmp_path / str(seed), seed=seed)) for seed in (0, 1)]
    (axes,) = accuracy_figure("photo", {"fedwca": runs}).axes
    domains = list(runs[0].domain_accuracies)
    assert [label.get_text() for label in axes.get_xticklabels()] == domains
    heights = [bar.get_height() for bar in axes.patches]
    expected = [50 * sum(run.domain_accuracies[d] for run in runs) for d in domains]  # type: ignore
    assert heights == pytest.approx(expected)


def test_heat_maps_are_of_round_2_and_of_round_50_or_the_last(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path, rounds=5))
    early, late = weight_figure("photo", {"fedwca": run}).axes
    for axes, number in ((early, 2), (late, 4)):
        shown = axes.images[0].get_array().tolist()
        assert shown == [pytest.approx(row) for row in run.weights[number].values()]
        assert f"r = {number}" in axes.get_title()


def test_figures_are_saved_as_pdf_and_png(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "runs"))
    (tmp_path / "out").mkdir()
    paths = save_figures("photo", {"fedwca": [run]}, tmp_path / "out", "figures")
    assert sorted(path.name for path in paths) == sorted(
        f"figures-{kind}.{suffix}"
        for kind in ("accuracy", "weights", "clusters")
        for suffix in ("pdf", "png")
    )
    for path in paths:
        if path.suffix == ".pdf":
            assert path.read_bytes().startswith(b"%PDF-")
        else:
            with Image.open(path) as image:
                assert len(image.convert("RGB").getcolors(1 << 24) or ()) > 2
