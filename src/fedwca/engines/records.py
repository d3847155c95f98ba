"""Records as safetensors files: on disk, between processes, on the wire. Never pickle."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedwca.core.params import State
from fedwca.files import write_atomically
from fedwca.methods.base import Record
from fedwca.models.states import is_whole, sealed
from fedwca.parsing import parse_json

__all__ = ["Filed", "filed_record", "load_records", "place", "places", "save_records"]

_FORMAT = "fedwca-records-2"


def save_records(path: Path, records: Mapping[str, Record], *, durable: bool = True) -> None:
    """Write named records to one file, atomically: it is there whole or not at all.

    Names go into the header as JSON, so they may hold anything and keep their order; a tensor
    that stands in several places is stored once. `durable` makes sure that the file survives a
    power cut, and has it carry a digest by which later damage is noticed.
    """
    found: list[list[str | int]] = []
    tensors: dict[int, tuple[int, Tensor]] = {}
    for group, record in records.items():
        for where, tensor in places(record):
            number, _ = tensors.setdefault(id(tensor), (len(tensors), tensor))
            found.append([group, *where, number])
        found.append([group, "", "", "", -1])  # so that an empty record comes back too
    content = {str(number): t.detach().cpu().contiguous() for number, t in tensors.values()}
    header = {"format": _FORMAT, "places": json.dumps(found)}
    if durable:
        header = sealed(content, header)
    write_atomically(path, safetensors.torch.save(content, header), durable=durable)


def places(record: Record) -> list[tuple[tuple[str, str, str], Tensor]]:
    """All tensors of a record, each with where it stands in it; `place` puts one there."""
    models = [
        (("models", model, name), tensor)
        for model, state in record.models.items()
        for name, tensor in state.items()
    ]
    return models + [(("values", name, ""), tensor) for name, tensor in record.values.items()]


def place(record: Record, kind: str, name: str, part: str, tensor: Tensor) -> None:
    """Put a tensor where it stood in the record that it came from."""
    if kind == "models":
        # A record in the making holds dicts.
        cast(dict[str, State], record.models).setdefault(name, {})[part] = tensor
    else:
        record.values[name] = tensor


def load_records(path: Path) -> dict[str, Record]:
    """Read what `save_records` wrote; ValueError if it is not that, or not whole."""
    records: dict[str, Record] = {}
    with _opened(path) as file:
        tensors = {name: torch.as_tensor(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        if not is_whole(tensors, file.metadata()):
            raise ValueError(f"{path} is damaged: its digest is not what it was")
        for group, kind, name, part, number in _places(file):
            record = records.setdefault(group, Record())
            if number >= 0:
                place(record, kind, name, part, tensors[str(number)])
    return records


def filed_record(path: Path) -> Record:
    """The record of a file that holds one, its models still in it; ValueError as above."""
    with _opened(path) as file:
        found = _places(file)
        models = {name: (path, name) for _, kind, name, _, _ in found if kind == "models"}
        values = {
            name: torch.as_tensor(file.get_tensor(str(number)))
            for _, kind, name, _, number in found
            if kind == "values"
        }
    return Record(Filed(models), values)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("format") != _FORMAT:
                raise ValueError(f"{path} is not a {_FORMAT} file")
            yield file
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _places(file: Any) -> list[tuple[str, str, str, str, int]]:
    rows = parse_json(file.metadata()["places"])
    if not isinstance(rows, list) or not all(map(_is_row, rows)):
        raise ValueError("is damaged: it does not tell where its tensors stand")
    return [tuple(row) for row in rows]


def _is_row(row: object) -> bool:
    return isinstance(row, list) and [type(part) for part in row] == [str, str, str, str, int]


class Filed(Mapping[str, State]):
    """Models that lie in files: one is read whenever it is asked for, and not kept.

    Attributes:
        places: of each model, its file, and its name in there.
    """

    def __init__(self, places: Mapping[str, tuple[Path, str]]) -> None:
        self.places = dict(places)

    def __getitem__(self, name: str) -> State:
        path, inside = self.places[name]
        (record,) = load_records(path).values()
        return record.models[inside]

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)
