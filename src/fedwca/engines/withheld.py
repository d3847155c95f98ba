"""Replies without their models: what the server gets to see where it only learns sums."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedwca.core.params import State
from fedwca.engines.secure_sum import PublicKeys
from fedwca.methods.base import Declared, Method, Numbers, Record

__all__ = ["as_bytes", "as_tensor", "completed", "declared", "keys_of", "shown_of", "withheld"]

_KEYS = {f"key/{kind}": Numbers(torch.uint8, ("k",)) for kind in PublicKeys._fields}


def as_tensor(content: bytes) -> Tensor:
    """Bytes as a value that travels in a record."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def as_bytes(value: Tensor) -> bytes:
    """The other way round."""
    return value.numpy().tobytes()


def shown_of(method: Method, message: Record, template: State) -> list[str]:
    """Names of the weights that are shown: those that the method needs, and integer buffers."""
    needed = method.in_clear(message, template) or []
    return [n for n, t in template.items() if n in needed or not t.is_floating_point()]


def declared(due: Declared, shown: list[str], template: State) -> Declared:
    """What a reply holds instead of what the method declares."""
    values = {name: kind for name, kind in due.items() if isinstance(kind, Numbers)}
    parts = {f"shown/{n}": Numbers(template[n].dtype, tuple(template[n].shape)) for n in shown}
    return {**values, **parts, **_KEYS}


def withheld(reply: Record, shown: list[str], keys: PublicKeys) -> Record:
    """A site's reply without its model, but with what is shown of it and the keys for the sum."""
    parts = {f"shown/{name}": reply.models["local"][name] for name in shown}
    offered = {f"key/{kind}": as_tensor(key) for kind, key in keys._asdict().items()}
    return Record({}, {**reply.values, **parts, **offered})


def completed(record: Record, template: State) -> Record:
    """The reply as methods expect it, the weights that are not shown being the template's."""
    local = {n: record.values.get(f"shown/{n}", tensor) for n, tensor in template.items()}
    plain = {n: v for n, v in record.values.items() if not n.startswith(("shown/", "key/"))}
    return Record({"local": local}, plain)


def keys_of(values: Mapping[str, Tensor]) -> PublicKeys:
    """The keys that came with a reply."""
    return PublicKeys(*(as_bytes(values[name]) for name in _KEYS))
