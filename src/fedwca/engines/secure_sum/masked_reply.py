"""Replies without their model: the weights that the server must see, and keys for the secure sum.

Bytes travel as values of type uint8, in replies as well as in the steps of a sum.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedwca.core.params import Weights
from fedwca.engines.secure_sum.protocol import PublicKeys
from fedwca.methods.base import Method, Numbers, Record, Schema
from fedwca.methods.capabilities import LOCAL, SupportsSums

__all__ = [
    "bytes_to_tensor",
    "mask_reply",
    "masked_schema",
    "public_keys",
    "restore_model",
    "visible_weights",
    "tensor_to_bytes",
]

_KEYS = {f"key/{kind}": Numbers(torch.uint8, ("k",)) for kind in PublicKeys._fields}


def bytes_to_tensor(content: bytes) -> Tensor:
    """Return bytes as a value of a record."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def tensor_to_bytes(value: Tensor) -> bytes:
    """Return the bytes of such a value."""
    return value.numpy().tobytes()


def visible_weights(method: Method, message: Record, template: Weights) -> list[str]:
    """Return the names of weights in clear: those that the method needs, and integer buffers."""
    named = method.visible_weights(message, template) if isinstance(method, SupportsSums) else []
    return [n for n, t in template.items() if n in named or not t.is_floating_point()]


def masked_schema(schema: Schema, visible: list[str], template: Weights) -> Schema:
    """Return the schema of a masked reply, from that of the whole reply."""
    values = {name: kind for name, kind in schema.items() if isinstance(kind, Numbers)}
    weights = {f"shown/{n}": Numbers(template[n].dtype, tuple(template[n].shape)) for n in visible}
    return {**values, **weights, **_KEYS}


def mask_reply(reply: Record, visible: list[str], keys: PublicKeys) -> Record:
    """Return a site's reply with the visible weights and the keys in place of its model."""
    weights = {f"shown/{name}": reply.models[LOCAL][name] for name in visible}
    key_values = {f"key/{kind}": bytes_to_tensor(key) for kind, key in keys._asdict().items()}
    return Record({}, {**reply.values, **weights, **key_values})


def restore_model(record: Record, template: Weights) -> Record:
    """Return a masked reply as methods expect it: weights not visible are the template's."""
    local = {n: record.values.get(f"shown/{n}", tensor) for n, tensor in template.items()}
    values = {n: v for n, v in record.values.items() if not n.startswith(("shown/", "key/"))}
    return Record({LOCAL: local}, values)


def public_keys(values: Mapping[str, Tensor]) -> PublicKeys:
    """Return the keys of a masked reply."""
    return PublicKeys(*(tensor_to_bytes(values[name]) for name in _KEYS))
