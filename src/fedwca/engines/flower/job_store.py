"""The jobs of a round as they are sent: encoded once, with their tensors in files."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedwca.engines.codec import Payload, Tensors, Wire, pack
from fedwca.methods.base import Record

__all__ = ["JobStore", "StoredTensors"]


class JobStore:
    """Encodes jobs into files, so that memory does not grow with the number of sites.

    A tensor that several jobs share is stored once.

    Args:
        folder: where to create the files.
        wire: how weights travel.
    """

    def __init__(self, folder: Path, wire: Wire) -> None:
        self._folder, self._wire = folder, wire
        self._files: dict[str, Path] = {}  # by the tensor's hash
        self._places: dict[str, str] = {}  # by site
        self._hashes: dict[str, set[str]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, site: str, records: Mapping[str, Record]) -> None:
        """Encode a site's job."""
        payload, tensors = pack(records, self._files.keys(), self._wire)
        path = self._folder / f"{len(self._places)}.safetensors"
        path.write_bytes(payload.blob)
        self._files.update(dict.fromkeys(tensors.keys() - self._files.keys(), path))
        self._places[site], self._hashes[site] = payload.places, set(tensors)

    def tensors(self, site: str) -> "StoredTensors":
        """Return the tensors of a site's job by hash."""
        return StoredTensors({name: self._files[name] for name in self._hashes[site]})

    def payload(self, site: str, known: set[str]) -> Payload:
        """Return a site's job without the tensors that the site has."""
        names = self._hashes[site] - known
        new: Tensors = {}
        for path in {self._files[name] for name in names}:
            with safetensors.safe_open(path, framework="pt") as file:
                inside = [name for name in file.keys() if name in names]  # noqa: SIM118
                new.update({name: torch.as_tensor(file.get_tensor(name)) for name in inside})
        return Payload(self._places[site], safetensors.torch.save(new))

    def delete(self) -> None:
        """Delete the files."""
        shutil.rmtree(self._folder, ignore_errors=True)


class StoredTensors(Mapping[str, Tensor]):
    """Tensors by hash, each read from its file whenever it is asked for."""

    def __init__(self, files: dict[str, Path]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> Tensor:
        with safetensors.safe_open(self._files[name], framework="pt") as file:
            return torch.as_tensor(file.get_tensor(name))

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
