"""The paper's figures 4 to 6 from run folders, as PDF and PNG."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from fedwca._support.files import read_optional_json, write_atomically
from fedwca.report.runs import RunView

if TYPE_CHECKING:  # slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["accuracy_figure", "cluster_image_figure", "save_figures", "weight_figure"]

PAPER_ROUNDS = (2, 50)  # r of the two heat maps in the paper
_IMAGES = 4  # of each client


def save_figures(
    source: str, rows: Mapping[str, Sequence[RunView]], folder: Path, stem: str
) -> list[Path]:
    """Draw and save all figures of a source domain, from the runs of each row; return the files."""
    firsts = {name: runs[0] for name, runs in rows.items() if runs[0].weights}
    paths = _save(accuracy_figure(source, rows), folder, f"{stem}-accuracy")
    if firsts:
        paths += _save(weight_figure(source, firsts), folder, f"{stem}-weights")
    if "fedwca" in firsts:
        images = cluster_image_figure(source, firsts["fedwca"])
        paths += _save(images, folder, f"{stem}-clusters")
    return paths


def accuracy_figure(source: str, rows: Mapping[str, Sequence[RunView]]) -> "Figure":
    """Draw the accuracy of each row by target domain, mean over trials (Fig. 4).

    Args:
        rows: the runs of each row of the table, by its name.
    """
    domains = list(
        dict.fromkeys(d for runs in rows.values() for r in runs for d in r.domain_accuracies)
    )
    figure, axes = _figure(1.5 + 1.4 * len(domains), 3)
    width = 0.8 / max(1, len(rows))
    for place, (name, runs) in enumerate(rows.items()):
        values = [
            [100 * a for r in runs if (a := r.domain_accuracies.get(d)) is not None]
            for d in domains
        ]
        axes.bar(
            [x + (place - (len(rows) - 1) / 2) * width for x in range(len(domains))],
            [fmean(v) if v else 0.0 for v in values],
            width,
            yerr=[stdev(v) if len(v) > 1 else 0.0 for v in values],
            capsize=2,
            label=name,
        )
    axes.set_xticks(range(len(domains)), domains)
    axes.set_ylabel("accuracy (%)")
    axes.set_ylim(0, 100)
    axes.set_title(f"source {source}")
    axes.legend(fontsize=8, ncols=2)
    return figure


def weight_figure(source: str, rows: Mapping[str, RunView]) -> "Figure":
    """Draw the cluster weights v_k of one run of each row, early and late (Fig. 5).

    Drawn are rounds r = 2 and r = 50, or the last that the run has.
    """
    from matplotlib.figure import Figure

    shown = {name: run for name, run in rows.items() if run.weights}
    figure = Figure(figsize=(8, 1 + 3.2 * max(1, len(shown))), layout="constrained")
    grid = figure.subplots(max(1, len(shown)), 2, squeeze=False)
    for (name, run), line in zip(shown.items(), grid, strict=True):
        for axes, wanted in zip(line, PAPER_ROUNDS, strict=True):
            number = max((r for r in run.weights if r <= wanted), default=min(run.weights))
            _draw_weights(axes, run.weights[number])
            axes.set_title(f"{name}, source {source}, r = {number}", fontsize=9)
    return figure


def _draw_weights(axes: "Axes", weights: Mapping[str, Sequence[float]]) -> None:
    columns = max(map(len, weights.values()))
    matrix = np.full((len(weights), columns), np.nan)
    for place, row in enumerate(weights.values()):
        matrix[place, : len(row)] = row
    axes.imshow(matrix, vmin=0, vmax=1, aspect="auto", cmap="Blues")
    axes.set_yticks(range(len(weights)), list(weights), fontsize=6, parse_math=False)
    axes.set_xticks(range(columns))
    axes.set_xlabel("cluster", fontsize=8)


def cluster_image_figure(source: str, run: RunView) -> "Figure":
    """Draw a few images of each client, by cluster (Fig. 6)."""
    from matplotlib.figure import Figure

    pictures = read_optional_json(run.path / "examples.json").get("clients", {})
    members: dict[int, list[str]] = {}
    for client, cluster in run.clusters.items():
        members.setdefault(cluster, []).append(client)
    most = max(map(len, members.values()), default=1)
    size = (1 + 1.3 * most, 0.6 + 0.6 * len(members))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(max(1, len(members)), most, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for line, (cluster, clients) in zip(grid, sorted(members.items()), strict=False):
        for axes, client in zip(line, clients, strict=False):
            axes.set_title(client, fontsize=6, pad=2, parse_math=False)
            if pictures.get(client):
                axes.imshow(_join(pictures[client][:_IMAGES]))
        line[0].text(
            -0.05, 0.5, f"cluster {cluster}", transform=line[0].transAxes, ha="right", va="center"
        ).set_fontsize(7)
    figure.suptitle(f"source {source}", fontsize=9)
    return figure


def _join(encoded: Sequence[str]) -> Any:
    """Return images side by side, [H, W, 3]."""
    images = [Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB") for text in encoded]
    return np.concatenate([np.asarray(image) for image in images], axis=1)


def _figure(width: float, height: float) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _save(figure: "Figure", folder: Path, stem: str) -> list[Path]:
    """Write a figure as stem.pdf and stem.png."""
    paths = [folder / f"{stem}.pdf", folder / f"{stem}.png"]
    for path in paths:
        content = io.BytesIO()
        # Without the date, equal figures are equal files.
        dated = {"CreationDate": None} if path.suffix == ".pdf" else {}
        figure.savefig(content, format=path.suffix[1:], dpi=200, metadata=dated)
        write_atomically(path, content.getvalue())
    return paths
