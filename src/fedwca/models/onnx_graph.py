"""What an ONNX file would do, told without doing it: a graph is a program, small or endless."""

import math
from pathlib import Path
from typing import Any

from fedwca.errors import UserError
from fedwca.models.described import DESCRIPTION, Description, parse_description

__all__ = ["BATCH", "LOGITS", "PIXELS", "checked_description"]

PIXELS, LOGITS, BATCH = "pixels", "logits", "N"
_VALUES_OF_A_PIXEL = 1 << 14  # that all layers together may make; networks make hundreds
_FIXED_VALUES = 1 << 26  # that may be made of no pixel, beside those that are in the file
_FAR_TOO_MANY = 1 << 62
_UNTOLD = ("Einsum",)  # operators that make more on their way than their result shows
_DATA = 4096  # bytes of a tensor that may be numbers of a shape; weights have more


def checked_description(onnx: Any, path: str | Path) -> Description:
    """The description in a file, once its graph is seen to be one that `save_onnx` may write."""
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf and onnx have several kinds, each the file's own fault
        raise _unreadable(path) from error
    entry = {prop.key: prop.value for prop in model.metadata_props}.get(DESCRIPTION)
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [part.name for part in model.graph.input if part.name not in stored]
    if entry is None or [*inputs, *(part.name for part in model.graph.output)] != [PIXELS, LOGITS]:
        raise UserError(f"{path} is no ONNX file of fedwca: give one that `fedwca export` wrote")
    description = parse_description(entry, path)
    if not _is_plain(onnx, model) or not _is_bounded(onnx, model, description):
        raise UserError(
            f"{path} holds a graph that `fedwca export` does not write: export it again, or use "
            "the .safetensors file"
        )
    return description


def _unreadable(path: object) -> UserError:
    return UserError(f"{path} cannot be read as ONNX; it may be damaged, so export it again.")


def _is_plain(onnx: Any, model: Any) -> bool:
    """No loops, branches, functions or foreign operators, and all its numbers written out."""
    kinds = onnx.AttributeProto
    hidden = {kinds.GRAPH, kinds.GRAPHS, kinds.SPARSE_TENSOR, kinds.SPARSE_TENSORS}
    nodes = model.graph.node
    parts = [part for node in nodes for part in node.attribute]
    tensors = [*model.graph.initializer, *(t for part in parts for t in (part.t, *part.tensors))]
    return not (
        model.functions
        or model.graph.sparse_initializer
        or any(node.domain not in ("", "ai.onnx") for node in nodes)
        or any(part.type in hidden for part in parts)
        or any(tensor.external_data for tensor in tensors)
    )


def _is_bounded(onnx: Any, model: Any, description: Description) -> bool:
    """Whether what it makes of one image is known beforehand, and not beyond all networks.

    Of the networks of other libraries some work their shapes out as they run: what is not known
    there passes.
    """
    try:
        made = _values_made(onnx, model)
    except Exception:  # shapes that contradict each other
        return False
    seen = _depending_on_pixels(model)
    fixed = sum(values or 0 for name, values in made.items() if name not in seen)
    others = sum(values or 0 for name, values in made.items() if name in seen)
    most = _FIXED_VALUES + _VALUES_OF_A_PIXEL * description.image_size**2
    of_library = ":" in description.backbone
    return fixed <= _FIXED_VALUES and others <= most and (of_library or None not in made.values())


def _depending_on_pixels(model: Any) -> set[str]:
    names = {PIXELS}
    for node in model.graph.node:  # each comes after those that it depends on
        if names.intersection(node.input):
            names.update(node.output)
    return names


def _values_made(onnx: Any, model: Any) -> dict[str, int | None]:
    """How many values there are of each result for one image; None where that is not known."""
    graph = model.graph
    for tensor in graph.initializer:
        if len(tensor.raw_data) > _DATA:  # shapes do not depend on it, and it would be copied
            tensor.ClearField("raw_data")
    graph.ClearField("value_info")  # what the file says of itself may be untrue
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    told = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    shapes = {part.name: part.type.tensor_type for part in (*told.value_info, *told.output)}
    outputs = [name for node in graph.node for name in node.output if name]
    untold = {name for node in graph.node if node.op_type in _UNTOLD for name in node.output}
    known = shapes.keys() - untold
    return {name: _values(shapes[name].shape) if name in known else None for name in outputs}


def _values(shape: Any) -> int | None:
    batches = sum(size.dim_param == BATCH for size in shape.dim)
    sizes = [size.dim_value for size in shape.dim if size.HasField("dim_value")]
    known = batches + len(sizes) == len(shape.dim)
    if batches > 1:  # every image has a value for each other: no network of ours does that
        return _FAR_TOO_MANY
    return math.prod(sizes) if known else None
