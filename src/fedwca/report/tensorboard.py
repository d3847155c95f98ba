"""Run folders as TensorBoard's event files: scalars, cluster weights, example images."""

import base64
import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from PIL import Image

from fedwca.errors import UserError
from fedwca.files import read_json, write_atomically
from fedwca.leftovers import sweep
from fedwca.notes import written_out
from fedwca.report.heat_map import heat_map
from fedwca.report.records import flat_records
from fedwca.report.runs import RunView
from fedwca.run_content import DAMAGED, damaged

__all__ = ["EVENTS", "scalars", "write_events"]

# One file of one name, so that a new one takes the old one's place whole or not at all.
EVENTS = "events.out.tfevents.0.fedwca"

_COSTS = ("bytes_down", "bytes_up", "seconds")
_NOT_MEANT = ("round", "cluster", "correct", "total")  # numbers of a record that make no curve
_LARGEST = 512  # side of an example image


class _Value(NamedTuple):
    """What is shown under a tag: a number or a PNG."""

    round: int
    tag: str
    shown: float | Image.Image


def write_events(run: RunView, folder: Path) -> Path:
    """Write a run's events into a folder, in place of those that were there; their file."""
    try:
        content = _encoded(run, [*_scalar_values(run), *_weight_maps(run), *_examples(run)])
    except DAMAGED:
        raise damaged(run.path) from None
    sweep(run.path)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / EVENTS, content)
    return folder / EVENTS


def scalars(run: RunView) -> dict[tuple[str, int], float]:
    """All numbers that have a curve, by tag and round."""
    return {(v.tag, v.round): v.shown for v in _scalar_values(run) if isinstance(v.shown, float)}


def _scalar_values(run: RunView) -> Iterator[_Value]:
    for line in run.lines:
        told = {
            "accuracy/mean": line["accuracy"]["mean"],
            **{f"accuracy by domain/{d}": a for d, a in line["accuracy"]["domains"].items()},
            **{f"cost/{name}": line.get(name) for name in _COSTS},
        }
        yield from (_Value(line["round"], tag, float(v)) for tag, v in told.items() if _known(v))
    by_round: dict[tuple[int, str], list[float]] = {}
    for record in flat_records(run):
        for name, number in _numbers(record).items():
            yield _Value(record["round"], f"{name} by client/{record['client']}", number)
            by_round.setdefault((record["round"], name), []).append(number)
        for c, share in enumerate(record["weights"] or ()):
            yield _Value(record["round"], f"weights of {record['client']}/{c}", float(share))
    for (number_of_round, name), numbers in by_round.items():
        if name != "accuracy":  # whose mean the run itself tells
            yield _Value(number_of_round, f"mean over clients/{name}", fmean(numbers))


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {n: float(v) for n, v in record.items() if n not in _NOT_MEANT and _known(v)}


def _known(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _weight_maps(run: RunView) -> Iterator[_Value]:
    """A picture of all v_k for each round."""
    rounds: dict[int, dict[str, list[float]]] = {}
    for record in flat_records(run):
        if record["weights"]:
            found = rounds.setdefault(record["round"], {})
            found[written_out(record["client"])] = [float(share) for share in record["weights"]]
    for number, weights in rounds.items():
        yield _Value(number, "cluster weights by round", heat_map(weights))


def _examples(run: RunView) -> Iterator[_Value]:
    """A strip of images for each client, where the run has kept some."""
    file = run.path / "examples.json"
    if not file.is_file():
        return
    try:
        kept = read_json(file)["clients"]
        strips = {
            name: _strip([_decoded(p) for p in found]) for name, found in kept.items() if found
        }
    except (*DAMAGED, SyntaxError, Image.DecompressionBombError):
        raise UserError(f"{file} is damaged: delete it, and go on without examples") from None
    for client, strip in strips.items():
        yield _Value(0, f"examples/{client}", strip)


def _strip(images: list[Image.Image]) -> Image.Image:
    strip = Image.new("RGB", (sum(i.width for i in images), max(i.height for i in images)))
    left = 0
    for image in images:
        strip.paste(image, (left, 0))
        left += image.width
    return strip


def _decoded(picture: str) -> Image.Image:
    with Image.open(io.BytesIO(base64.b64decode(picture, validate=True)), formats=["PNG"]) as image:
        if max(image.size) > _LARGEST:
            raise ValueError("an example is a small image")
        decoded: Image.Image = image.convert("RGB")
    return decoded


def _encoded(run: RunView, values: list[_Value]) -> bytes:
    """The bytes of an event file; times are those of the run, as far as its folder tells them."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        raise UserError(
            "TensorBoard is not installed: install it with pip install 'fedwca[tensorboard]'"
        ) from None

    def summary(tag: str, shown: float | Image.Image) -> Any:
        if isinstance(shown, float):
            return Summary.Value(tag=tag, simple_value=shown)
        png = io.BytesIO()
        shown.save(png, "PNG")
        picture = Summary.Image(
            width=shown.width,
            height=shown.height,
            colorspace=3,
            encoded_image_string=png.getvalue(),
        )
        return Summary.Value(tag=tag, image=picture)

    times = _times(run)
    stream = io.BytesIO()
    writer = RecordWriter(stream)
    start = Event(wall_time=min(times.values(), default=0.0), file_version="brain.Event:2")
    writer.write(start.SerializeToString())
    for number, tag, shown in sorted(values, key=lambda value: value.round):
        told = Summary(value=[summary(written_out(tag), shown)])
        event = Event(wall_time=times.get(number, 0.0), step=number, summary=told)
        writer.write(event.SerializeToString())
    return stream.getvalue()


def _times(run: RunView) -> dict[int, float]:
    """When each round was done, by the clock, counted from the settings on."""
    at = (run.path / "config.json").stat().st_mtime
    times = {}
    for line in run.lines:
        at += float(line.get("seconds", 0.0))
        times[int(line["round"])] = at
    return times
