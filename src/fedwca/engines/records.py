"""Records as safetensors files: on disk, between processes, on the wire. Never pickle."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedwca.core.params import State
from fedwca.files import write_atomically
from fedwca.methods.base import Record

__all__ = ["Filed", "load_notes", "load_records", "place", "places", "save_records"]

_FORMAT = "fedwca-records-1"


def save_records(
    path: Path,
    records: Mapping[str, Record],
    *,
    notes: Mapping[str, Any] | None = None,
    durable: bool = True,
) -> None:
    """Write named records to one file, atomically: it is there whole or not at all.

    Names go into the header as JSON, so they may hold anything and keep their order; a tensor
    that stands in several places is stored once. `notes` is JSON to go with them. `durable` makes
    sure that the file survives a power cut.
    """
    found: list[list[str | int]] = []
    tensors: dict[int, tuple[int, Tensor]] = {}
    for group, record in records.items():
        for where, tensor in places(record):
            number, _ = tensors.setdefault(id(tensor), (len(tensors), tensor))
            found.append([group, *where, number])
        found.append([group, "", "", "", -1])  # so that an empty record comes back too
    content = {str(number): t.detach().cpu().contiguous() for number, t in tensors.values()}
    header = {"format": _FORMAT, "places": json.dumps(found), "notes": json.dumps(notes or {})}
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
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != _FORMAT:
                raise ValueError(f"{path} is not a {_FORMAT} file")
            tensors: dict[int, Tensor] = {}
            for group, kind, name, part, number in json.loads(header["places"]):
                record = records.setdefault(group, Record())
                if number < 0:
                    continue
                if number not in tensors:
                    tensors[number] = torch.as_tensor(file.get_tensor(str(number)))
                place(record, kind, name, part, tensors[number])
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return records


def load_notes(path: Path) -> dict[str, Any]:
    """What `save_records` was given to keep with the records."""
    with safetensors.safe_open(path, framework="pt") as file:
        notes: dict[str, Any] = json.loads((file.metadata() or {}).get("notes", "{}"))
    return notes


class Filed(Mapping[str, State]):
    """Models that lie in files: one is read whenever it is asked for, and not kept."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> State:
        return load_records(self._files[name])[""].models[""]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
