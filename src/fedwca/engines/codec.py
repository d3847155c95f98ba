"""Records as safetensors: in files, between processes and on the wire. Never pickle.

A record is encoded as named tensors and a list of rows (record, kind, name, part, tensor) in JSON
that says where each tensor belongs. Names of records, models and tensors may hold any text.
"""

import hashlib
import json
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedwca._support.files import write_atomically
from fedwca._support.text import parse_json
from fedwca.core.params import Weights
from fedwca.methods.base import Record
from fedwca.models.tensor_file import add_checksum, has_valid_checksum

__all__ = [
    "EMPTY_PAYLOAD",
    "LazyModels",
    "MissingError",
    "Payload",
    "Tensors",
    "Wire",
    "WireError",
    "load_records",
    "open_record",
    "pack",
    "read_tensors",
    "save_records",
    "unpack",
]

Wire = Literal["float32", "float16"]
Tensors = dict[str, Tensor]  # by hash
_FORMAT = "fedwca-records-2"


class WireError(ValueError):
    """Received data that cannot be read, or that the method does not declare."""


class MissingError(WireError):
    """A payload names tensors that it does not hold and this end does not have."""


# --- one encoding ---------------------------------------------------------------------------------


class _Place(NamedTuple):
    """Where a tensor belongs; `kind` is "" in the row that announces a record."""

    record: str
    kind: str
    name: str
    part: str
    tensor: str


def _encode(records: Mapping[str, Record], add: Callable[[Tensor, str], str]) -> list[_Place]:
    """Return the places of all tensors; `add` stores a tensor of a kind and returns its name."""
    places: list[_Place] = []
    for key, record in records.items():
        places.append(_Place(key, "", "", "", ""))  # so that an empty record is decoded too
        for name, weights in record.models.items():
            for part, tensor in weights.items():
                places.append(_Place(key, "models", name, part, add(tensor, "models")))
        for name, tensor in record.values.items():
            places.append(_Place(key, "values", name, "", add(tensor, "values")))
    return places


def _decode(places: list[_Place], find: Callable[[_Place], Tensor]) -> dict[str, Record]:
    records: dict[str, Record] = {}
    for place in places:
        record = records.setdefault(place.record, Record())
        if place.kind == "models":
            models = cast(dict[str, Weights], record.models)
            models.setdefault(place.name, {})[place.part] = find(place)
        elif place.kind == "values":
            record.values[place.name] = find(place)
    return records


def _parse_places(text: str) -> list[_Place]:
    """Read a list of places; WireError if it is anything else."""
    try:
        rows = parse_json(text)
    except ValueError:
        raise WireError("the list of tensors is not JSON") from None
    if not isinstance(rows, list) or not all(map(_is_row, rows)):
        raise WireError("the list of tensors has the wrong form")
    places = [
        _Place(record, kind, name, part, str(tensor)) for record, kind, name, part, tensor in rows
    ]
    if len({place[:4] for place in places}) < len(places):
        raise WireError("the list of tensors names a place twice")
    return places


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 5
        and all(isinstance(text, str) for text in row[:4])
        and row[1] in ("", "models", "values")
        and type(row[4]) in (str, int)  # earlier files hold numbers
    )


# --- files ----------------------------------------------------------------------------------------


def save_records(
    path: Path, records: Mapping[str, Record], *, durable: bool = True, checksum: bool = True
) -> None:
    """Write named records to one file atomically; a tensor in several places is stored once.

    `durable` syncs the file to disk and adds a checksum, unless the caller has its own.
    """
    numbers: dict[int, str] = {}
    tensors: Tensors = {}

    def add(tensor: Tensor, kind: str) -> str:
        if id(tensor) not in numbers:
            numbers[id(tensor)] = str(len(numbers))
            tensors[numbers[id(tensor)]] = tensor.detach().cpu().contiguous()
        return numbers[id(tensor)]

    header = {"format": _FORMAT, "places": json.dumps(_encode(records, add))}
    if durable and checksum:
        header = add_checksum(tensors, header)
    write_atomically(path, safetensors.torch.save(tensors, header), durable=durable)


def load_records(path: Path) -> dict[str, Record]:
    """Read a file of `save_records`; ValueError if it is not one or is corrupt."""
    with _open(path) as file:
        tensors = {name: torch.as_tensor(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        if not has_valid_checksum(tensors, file.metadata()):
            raise ValueError(f"{path} is corrupt: checksum mismatch")
        return _decode(_parse_places(file.metadata()["places"]), lambda p: tensors[p.tensor])


def open_record(path: Path) -> Record:
    """Return the only record of a file, with models that are read each time they are used."""
    with _open(path) as file:
        places = _parse_places(file.metadata()["places"])
        values = {
            place.name: torch.as_tensor(file.get_tensor(place.tensor))
            for place in places
            if place.kind == "values"
        }
    files = {place.name: (path, place.name) for place in places if place.kind == "models"}
    return Record(LazyModels(files), values)


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("format") != _FORMAT:
                raise ValueError(f"{path} is not a {_FORMAT} file")
            yield file
    except (safetensors.SafetensorError, KeyError, WireError) as error:
        raise ValueError(f"{path} is corrupt: {error}") from None


class LazyModels(Mapping[str, Weights]):
    """Models in files: each is read whenever it is used, and not kept in memory.

    Attributes:
        files: for each model its file and its name in that file.
    """

    def __init__(self, files: Mapping[str, tuple[Path, str]]) -> None:
        self.files = dict(files)

    def __getitem__(self, name: str) -> Weights:
        path, inner_name = self.files[name]
        (record,) = load_records(path).values()
        return record.models[inner_name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


# --- the wire -------------------------------------------------------------------------------------


class Payload(NamedTuple):
    """Records in a message. Each tensor is named by its hash and sent once.

    Attributes:
        places: where each tensor belongs, as JSON.
        blob: the tensors that the other end does not have, as safetensors.
    """

    places: str
    blob: bytes

    def nbytes(self) -> int:
        """Return the size on the wire."""
        return len(self.places.encode()) + len(self.blob)


EMPTY_PAYLOAD = Payload("[]", b"")


def pack(
    records: Mapping[str, Record], known: Collection[str] = (), wire: Wire = "float32"
) -> tuple[Payload, Tensors]:
    """Encode records for the wire; return also all their tensors as the other end gets them.

    Args:
        known: hashes of tensors that the other end has.
        wire: "float16" halves the weights of models; values stay as they are.
    """
    tensors: Tensors = {}

    def add(tensor: Tensor, kind: str) -> str:
        sent = _to_half(tensor) if kind == "models" and wire == "float16" else tensor
        sent = sent.detach().cpu().contiguous()
        name = _hash(sent)
        tensors[name] = sent
        return name

    places = json.dumps(_encode(records, add), separators=(",", ":"))
    new = {name: tensor for name, tensor in tensors.items() if name not in known}
    return Payload(places, safetensors.torch.save(new)), tensors


def unpack(payload: Payload, known: Mapping[str, Tensor]) -> tuple[dict[str, Record], Tensors]:
    """Decode a payload; return its records and all their tensors as they were sent.

    Both may share memory. `known` are tensors of this end by hash, from `pack` or `unpack`.
    """
    places = _parse_places(payload.places)
    available = ChainMap(read_tensors(payload.blob), cast(Tensors, known))
    names = dict.fromkeys(place.tensor for place in places if place.kind)
    if missing := [name for name in names if name not in available]:
        raise MissingError(f"{len(missing)} tensors are named but missing")
    tensors = {name: available[name] for name in names}
    # One float32 tensor for all places: a small payload may name one very often.
    single = {name: t.float() if t.dtype == torch.float16 else t for name, t in tensors.items()}
    records = _decode(
        places, lambda place: (single if place.kind == "models" else tensors)[place.tensor]
    )
    return records, tensors


def read_tensors(blob: bytes) -> Tensors:
    """Read tensors that are named by their hashes; WireError if one does not match its hash."""
    try:
        tensors = safetensors.torch.load(blob)
    except Exception as error:  # the parser and torch raise many kinds, all due to the sender
        raise WireError(f"the tensors cannot be read: {error}") from None
    for name, tensor in tensors.items():
        if _hash(tensor) != name:
            raise WireError("a tensor is corrupt: hash mismatch")
    return tensors


def _to_half(tensor: Tensor) -> Tensor:
    if tensor.dtype != torch.float32:
        return tensor
    half = tensor.half()
    # A value beyond float16, as a variance may be, is sent as it is.
    return half if bool(half.isfinite().all()) else tensor


def _hash(tensor: Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    # The bytes themselves: NumPy has no bfloat16, and a scalar has no last dimension.
    digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]
