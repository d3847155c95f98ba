"""Write a run as a TensorBoard event file: curves, cluster weights, example images."""

import base64
import io
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from PIL import Image

from fedwca._support.errors import missing_extra_error
from fedwca._support.files import read_optional_json, write_atomically
from fedwca._support.text import escape_unprintable, to_single_line
from fedwca.experiments.run_schema import READ_ERRORS, corrupt_run_error
from fedwca.report.runs import RunView, flat_records

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

__all__ = ["EVENTS", "write_events"]

# A fixed name, so that a new file replaces the old one.
EVENTS = "events.out.tfevents.0.fedwca"

_COSTS = ("bytes_down", "bytes_up", "seconds")
_NO_CURVE = ("round", "cluster", "correct", "total")  # numbers of a record
_LONGEST_NAME = 24  # characters of a client's name beside its weights

_Value = tuple[int, str, float | bytes]  # round, tag, and a number or a PNG


def write_events(run: RunView, folder: Path) -> Path:
    """Write a run's events into a folder, replacing earlier ones; return the file."""
    try:
        content = _encode(run, [*_curves(run), *_weight_maps(run), *_examples(run)])
    except (*READ_ERRORS, SyntaxError):  # Pillow's for a corrupt PNG
        raise corrupt_run_error(run.path) from None
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / EVENTS, content)
    return folder / EVENTS


# --- curves -------------------------------------------------------------------------------------


def _curves(run: RunView) -> Iterator[_Value]:
    for line in run.lines:
        values = {
            "accuracy/mean": line["accuracy"]["mean"],
            **{f"accuracy by domain/{d}": a for d, a in line["accuracy"]["domains"].items()},
            **{f"cost/{name}": line.get(name) for name in _COSTS},
        }
        for tag, value in values.items():
            if _is_number(value):
                yield line["round"], tag, float(value)
    yield from _client_curves(run)


def _client_curves(run: RunView) -> Iterator[_Value]:
    by_round: dict[tuple[int, str], list[float]] = {}
    for record in flat_records(run):
        number, client = record["round"], record["client"]
        for name, value in record.items():
            if name not in _NO_CURVE and _is_number(value):
                yield number, f"{name} by client/{client}", float(value)
                by_round.setdefault((number, name), []).append(float(value))
        for cluster, weight in enumerate(record["weights"] or ()):
            yield number, f"weights of {client}/{cluster}", float(weight)
    for (number, name), values in by_round.items():
        if name != "accuracy":  # the result line has its mean
            yield number, f"mean over clients/{name}", fmean(values)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


# --- images -------------------------------------------------------------------------------------


def _weight_maps(run: RunView) -> Iterator[_Value]:
    """Yield a heat map of all v_k for each round: a row for each client, a column per cluster."""
    rounds = run.weights
    if not rounds:
        return
    clients = list(dict.fromkeys(client for weights in rounds.values() for client in weights))
    columns = max(len(row) for weights in rounds.values() for row in weights.values())
    unknown = [math.nan] * columns

    def matrix(weights: Mapping[str, Sequence[float]]) -> list[list[float]]:
        return [[*map(float, weights.get(c, ())), *unknown][:columns] for c in clients]

    figure, image = _weight_figure(clients, matrix({}))
    for number, weights in rounds.items():
        image.set_data(matrix(weights))
        png = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # names in scripts that the font lacks
            figure.savefig(png, format="png")
        figure.set_layout_engine("none")  # the first layout suits all rounds
        yield number, "cluster weights by round", png.getvalue()


def _weight_figure(
    clients: Sequence[str], weights: list[list[float]]
) -> "tuple[Figure, AxesImage]":
    from matplotlib.figure import Figure  # slow to import

    columns = len(weights[0])
    names = [
        name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
        for name in map(to_single_line, clients)
    ]
    size = (min(3 + 0.3 * columns, 100), min(1 + 0.2 * len(names), 100))  # inches
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(weights, vmin=0, vmax=1, aspect="auto")
    axes.set_yticks(range(len(names)), names, fontsize=8, parse_math=False)
    axes.set_xticks(range(columns))
    axes.set_xlabel("cluster")
    figure.colorbar(image, ax=axes)
    return figure, image


def _examples(run: RunView) -> Iterator[_Value]:
    """Yield a strip of images for each client, if the run has stored any."""
    clients = read_optional_json(run.path / "examples.json").get("clients", {})
    for client, images in clients.items():
        if images:
            yield 0, f"examples/{client}", _join_images(images)


def _join_images(encoded: Sequence[str]) -> bytes:
    """Return images side by side, as one PNG."""
    contents = [io.BytesIO(base64.b64decode(text, validate=True)) for text in encoded]
    images = [Image.open(content, formats=["PNG"]).convert("RGB") for content in contents]
    strip = Image.new("RGB", (sum(i.width for i in images), max(i.height for i in images)))
    left = 0
    for image in images:
        strip.paste(image, (left, 0))
        left += image.width
    png = io.BytesIO()
    strip.save(png, "PNG")
    return png.getvalue()


# --- the event file -----------------------------------------------------------------------------


def _encode(run: RunView, values: list[_Value]) -> bytes:
    """Return the bytes of an event file, with the times of the run as far as they are known."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        raise missing_extra_error("event files need TensorBoard", "tensorboard") from None

    def make_summary(tag: str, content: float | bytes) -> Any:
        if isinstance(content, float):
            return Summary.Value(tag=tag, simple_value=content)
        with Image.open(io.BytesIO(content)) as image:
            width, height = image.size
        picture = Summary.Image(
            width=width, height=height, colorspace=3, encoded_image_string=content
        )
        return Summary.Value(tag=tag, image=picture)

    times = _end_times(run)
    stream = io.BytesIO()
    writer = RecordWriter(stream)
    start = Event(wall_time=min(times.values(), default=0.0), file_version="brain.Event:2")
    writer.write(start.SerializeToString())
    for number, tag, content in sorted(values, key=lambda value: value[0]):
        summary = Summary(value=[make_summary(escape_unprintable(tag), content)])
        event = Event(wall_time=times.get(number, 0.0), step=number, summary=summary)
        writer.write(event.SerializeToString())
    return stream.getvalue()


def _end_times(run: RunView) -> dict[int, float]:
    """Return when each round ended, counted from the creation of config.json."""
    time = (run.path / "config.json").stat().st_mtime
    times = {}
    for line in run.lines:
        time += float(line.get("seconds", 0.0))
        times[int(line["round"])] = time
    return times
