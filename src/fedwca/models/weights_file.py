"""Weights on disk: written as safetensors, read from safetensors or a plain PyTorch file."""

import json
import os
import pickletools
import re
import zipfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, cast

import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedwca.errors import UserError
from fedwca.files import SEAL, open_file, write_atomically
from fedwca.models.domain_model import DomainModel
from fedwca.models.states import copy_values, differences, is_whole, sealed
from fedwca.parsing import parse_json

WRAPPERS = ("state_dict", "model")  # keys under which training scripts put the weights
HEADS = ("fc.", "classifier.", "head.", "heads.")  # ImageNet's own classes, of no use here
CLASSES = "classes"  # the entry of a file's metadata that names them
COUNTER = "num_batches_tracked"  # BatchNorm's; old files lack it, and it changes no output

# What the pickle of a state dict may name. PyTorch's own list is longer, and has `bytearray` in it,
# which takes as much memory as its argument says.
_HARMLESS = re.compile(
    r"collections (OrderedDict|Counter)"
    r"|builtins (set|complex)"
    r"|torch (Size|device|\w+Storage|(bfloat|float|int|uint|complex)\d+|bool)"
    r"|torch\._utils _rebuild_(tensor|tensor_v2|parameter)"
)
_LEGACY_PICKLES = 5  # in a row: a number, a version, the system, the content, names of storages


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The named tensors of a .safetensors, .pth or .pt file; code in a file is never run."""
    path = Path(path)
    if path.suffix not in (".safetensors", ".pth", ".pt"):
        raise UserError(f"{path} is no weights file; give a .safetensors, .pth or .pt file.")
    if not os.path.isfile(path):  # unlike Path.is_file, it bears a folder one may not enter
        raise UserError(f"There is no weights file {path}; check the path.")
    read = _read_safetensors if path.suffix == ".safetensors" else _read_pytorch
    return _plain_state(read(path), path)


def load_weights(model: DomainModel, path: str | Path) -> None:
    """Fill the whole model from a file that holds every one of its tensors and no other."""
    fill_model(model, read_weights(path), path)


def fill_model(model: DomainModel, given: Mapping[str, Tensor], path: str | Path) -> None:
    """Fill the whole model with what was read from a file; a model on "meta" is only compared."""
    advice = "build the model with the file's own backbone, image_size, bottleneck and classes"
    _fill(model.state_dict(), given, path, advice)


def load_backbone(model: DomainModel, path: str | Path) -> None:
    """Fill the backbone alone, from a file of it (ImageNet's head ignored) or of a whole model."""
    own = model.backbone.state_dict()
    given = read_weights(path)
    whole = {
        name.removeprefix("backbone."): value
        for name, value in given.items()
        if name.startswith("backbone.")
    }
    # By name and not by prefix alone: some networks keep a layer under "head." that is no head.
    wanted = {
        name: value
        for name, value in (whole or given).items()
        if name in own or not name.startswith(HEADS)
    }
    _fill(own, wanted, path, "give a file of this very backbone")


def read_class_names(path: str | Path) -> tuple[str, ...]:
    """The names of the classes that a .safetensors file of ours carries; () if it has none."""
    if Path(path).suffix != ".safetensors" or not os.path.isfile(path):
        return ()
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            names = parse_json((file.metadata() or {}).get(CLASSES, "[]"))
    except (OSError, SafetensorError, ValueError):
        return ()  # whoever reads the weights will say what is wrong with the file
    return tuple(str(name) for name in names) if isinstance(names, list) else ()


def read_seal(path: str | Path) -> str:
    """The digest that a .safetensors file of ours carries; "" if it has none, or is none.

    OSError if nobody can tell, because the file is there and cannot be read.
    """
    try:
        there = open_file(path)
    except FileNotFoundError:
        return ""
    try:
        with there, safetensors.safe_open(path, framework="pt") as file:
            return str((file.metadata() or {}).get(SEAL, ""))
    except SafetensorError:
        return ""


def save_weights(
    model: DomainModel,
    path: str | Path,
    metadata: dict[str, str] | None = None,
    classes: Sequence[str] = (),
) -> None:
    """Write the whole model as safetensors, with the names of its classes and a digest of all.

    A reader sees the old file or the new, never half of one.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise UserError(f"Weights cannot be saved as {path}; give it the suffix .safetensors.")
    # Cloned, since safetensors refuses tied tensors and any layout but the contiguous one.
    state = {
        name: value.cpu().clone(memory_format=torch.contiguous_format)
        for name, value in model.state_dict().items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    names = {CLASSES: json.dumps(list(classes))} if classes else {}
    header = sealed(state, {**(metadata or {}), **names})
    write_atomically(path, safetensors.torch.save(state, header))


def _fill(
    own: Mapping[str, Tensor], given: Mapping[str, Tensor], path: str | Path, advice: str
) -> None:
    counters = {name: value for name, value in own.items() if name.endswith(COUNTER)}
    full = {**counters, **given}
    if problem := differences(own, full):
        raise UserError(f"{path} does not fit this model: {problem}; {advice}.")
    copy_values(own, full)


def _read_safetensors(path: Path) -> Any:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path} cannot be read as safetensors; it may be damaged, so fetch or save it again."
        ) from error
    if not is_whole(state, header):
        raise UserError(f"{path} is damaged: its digest is not what it was; fetch or save it again")
    return state


def _read_pytorch(path: Path) -> Any:
    try:
        _check_pytorch(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken file raises a dozen kinds, each the file's own fault
        raise UserError(
            f"{path} is damaged or holds Python objects other than tensors, never run here; "
            "fetch it again, or save its state_dict() alone."
        ) from error


def _check_pytorch(path: Path) -> None:
    """Refuse a file that would take more memory than its size, before PyTorch reads it."""
    # A plain file would take as much memory for a text as its length says, be there so much or not.
    with open_file(path) as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        zipped = content[:4] == b"PK\3\4"  # by which PyTorch tells its two formats apart
        for _ in range(0 if zipped else _LEGACY_PICKLES):
            _check_pickle(content)
    if zipped:
        _check_archive(path)


def _check_archive(path: Path) -> None:
    """PyTorch packs nothing: a file whose parts are larger than itself is a trap for memory."""
    reader: Any = torch._C.PyTorchFileReader(str(path))
    if hasattr(reader, "get_record_size"):
        unpacked = sum(map(reader.get_record_size, reader.get_all_records()))
    else:  # older PyTorch; a crafted archive may look another to Python
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(part.file_size for part in archive.infolist())
    if unpacked > path.stat().st_size:
        raise ValueError("it is compressed")
    _check_pickle(BytesIO(reader.get_record("data.pkl")))


def _check_pickle(stream: BytesIO | mmap) -> None:
    """Refuse a pickle that names anything else than state dicts need, without running it."""
    for opcode, name, _ in pickletools.genops(cast(Any, stream)):
        if "GLOBAL" in opcode.name and not _HARMLESS.fullmatch(str(name)):
            raise ValueError(f"it names {name}")


def _plain_state(content: Any, path: Path) -> dict[str, Tensor]:
    for key in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(map(_is_plain, content.values())):
        raise UserError(f"{path} does not hold named tensors; save the model's state_dict() alone.")
    state = {str(name): value.detach() for name, value in content.items()}
    if all(name.startswith("module.") for name in state):  # torch's DataParallel puts it there
        return {name.removeprefix("module."): value for name, value in state.items()}
    return state


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_complex()
