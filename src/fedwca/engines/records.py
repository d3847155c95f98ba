"""Records as safetensors files: on disk, between processes, on the wire. Never pickle."""

import json
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedwca.files import write_atomically
from fedwca.methods.base import Record

__all__ = ["load_records", "save_records"]

_FORMAT = "fedwca-records-1"


def save_records(path: Path, records: Mapping[str, Record], *, durable: bool = True) -> None:
    """Write named records to one file, atomically: it is there whole or not at all.

    Names go into the header as JSON, so they may hold anything and keep their order; a tensor
    that stands in several places is stored once. `durable` makes sure that the file survives a
    power cut.
    """
    places: list[list[str | int]] = []
    tensors: dict[int, tuple[int, Tensor]] = {}
    for group, record in records.items():
        for where, tensor in _walk(record):
            number, _ = tensors.setdefault(id(tensor), (len(tensors), tensor))
            places.append([group, *where, number])
        places.append([group, "", "", "", -1])  # so that an empty record comes back too
    content = {str(number): t.detach().cpu().contiguous() for number, t in tensors.values()}
    blob = safetensors.torch.save(content, {"format": _FORMAT, "places": json.dumps(places)})
    write_atomically(path, blob, durable=durable)


def _walk(record: Record) -> list[tuple[tuple[str, str, str], Tensor]]:
    models = [
        (("models", model, name), tensor)
        for model, state in record.models.items()
        for name, tensor in state.items()
    ]
    return models + [(("values", name, ""), tensor) for name, tensor in record.values.items()]


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
                if kind == "models":
                    record.models.setdefault(name, {})[part] = tensors[number]
                else:
                    record.values[name] = tensors[number]
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return records
