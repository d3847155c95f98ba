"""Weight files and archives of arrays: cut, lying about their size, or with code inside."""

import functools
import gzip
import io
import json
import pickle
import shutil
import struct
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import torch
from hypothesis import strategies as st

from fedwca.models import Description, build_model, save_described
from fedwca.models.onnx_file import save_onnx
from fuzzing.door import Place
from fuzzing.odd_files import put
from fuzzing.pictures import good

_SIZES = [0, 1, 7, 8, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1]
numbers = st.sampled_from(_SIZES) | st.integers(-(2**70), 2**70)


class Canary:
    """Whoever unpickles it makes a file beside the canary."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("open('../escaped', 'w').close()",)


def description(**other: Any) -> Description:
    told = {
        **{"backbone": "lenet", "bottleneck": 16, "classifier": "weight_norm"},
        **{"stride_on": "conv2", "classes": ("a", "b", "c"), "image_size": 16, "crop": 0},
        **{"mean": (0.5,) * 3, "std": (0.5,) * 3},
    }
    return Description.model_validate({**told, **other})


@functools.cache
def described_file(suffix: str) -> bytes:
    """A model of ours as a file."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model("lenet", 3, image_size=16, bottleneck=16).eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model{suffix}"
        (save_onnx if suffix == ".onnx" else save_described)(model, path, description())
        return path.read_bytes()


def joined(header: bytes, body: bytes, length: int | None = None) -> bytes:
    """A safetensors file, its header's length told as wished."""
    told = len(header) if length is None else length
    return struct.pack("<Q", told % 2**64) + header + body


def parted(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the body of a safetensors file."""
    end = 8 + struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:end]), content[end:]


@st.composite
def changed_bytes(draw: st.DrawFn, content: bytes, head: int = 2000) -> bytes:
    """A file with some bytes changed, most of them near its begin or its end, or cut short."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, min(head, len(changed))) | st.integers(0, len(changed)))
        place = draw(st.sampled_from([place, max(0, len(changed) - place)]))
        match draw(st.sampled_from(["cut", "change", "insert", "remove"])):
            case "cut":
                del changed[place:]
            case "change":
                part = draw(st.binary(min_size=1, max_size=8))
                changed[place : place + len(part)] = part
            case "insert":
                changed[place:place] = draw(st.binary(max_size=16))
            case "remove":
                del changed[place : place + draw(st.integers(1, 16))]
    return bytes(changed)


@st.composite
def wild_safetensors(draw: st.DrawFn) -> bytes:
    """A model of ours with another header, other bytes, or a header of another length."""
    content = described_file(".safetensors")
    kind = draw(st.sampled_from(["bytes", "length", "entry", "metadata", "described", "huge"]))
    header, body = parted(content)
    if kind == "bytes":
        return draw(changed_bytes(content))
    if kind == "length":
        return joined(json.dumps(header).encode(), body, draw(numbers))
    if kind == "entry":
        name = draw(st.sampled_from([n for n in header if n != "__metadata__"]))
        wild = {
            "dtype": st.sampled_from(["F32", "F64", "BF16", "I8", "BOOL", "F8_E4M3", "X", ""]),
            "shape": st.lists(numbers, max_size=4),
            "data_offsets": st.lists(numbers, max_size=3),
        }
        key = draw(st.sampled_from(list(wild)))
        header[name][key] = draw(wild[key])
    if kind == "metadata":
        key = draw(st.sampled_from(["fedwca", "classes", "other"]))
        texts = ["", "[]", "{}", "null", "[" * 50_000, "[1, 2, 3]", '["\\u001b[2J", "b", "c"]']
        header["__metadata__"][key] = draw(st.sampled_from(texts) | st.text(max_size=20))
    if kind == "described":
        told = json.loads(header["__metadata__"]["fedwca"])
        key = draw(st.sampled_from(list(told)))
        texts = st.sampled_from(
            ["resnet50", "timm:vit_giant", "torchvision:os", "os:system", "../x"]
        )
        told[key] = draw(numbers | texts | st.floats() | st.lists(numbers, max_size=3))
        header["__metadata__"]["fedwca"] = json.dumps(told)
    if kind == "huge":  # two gigabytes of weights, where the file has a few kilobytes of them
        told = json.loads(header["__metadata__"]["fedwca"])
        header["__metadata__"]["fedwca"] = json.dumps({**told, "image_size": 4096, "bottleneck": 9})
    return joined(json.dumps(header).encode(), body)


def _predicted(place: Place, name: str, content: bytes | str) -> None:
    put(place.work / name, content)
    image = place.work / "x.png"
    image.write_bytes(good()["photo.png"])
    place.fedwca("predict", name, "x.png")
    place.fedwca("export", name, "-o", "made", "--format", "safetensors")


def a_model_file(place: Place, content: bytes | str) -> None:
    """Any .safetensors file is used or refused."""
    _predicted(place, "model.safetensors", content)


wild_onnx = st.deferred(lambda: changed_bytes(described_file(".onnx")))


def an_onnx_file(place: Place, content: bytes | str) -> None:
    """Any .onnx file is used or refused."""
    _predicted(place, "model.onnx", content)


@functools.cache
def pytorch_files() -> dict[str, bytes]:
    """PyTorch's own formats, with weights, or with code."""

    def saved(content: Any, **options: Any) -> bytes:
        stream = io.BytesIO()
        torch.save(content, stream, **options)
        return stream.getvalue()

    state = {"a": torch.zeros(3), "b": torch.ones(2, 2)}
    greedy = b"\x80\x02cbuiltins\nbytearray\nJ\x00\x00\x00\x70\x85R."  # 1.75 GiB
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as file:
        file.writestr("x/data.pkl", greedy)
        file.writestr("x/version", "3\n")
    return {
        "greedy": greedy,
        "greedy zip": zipped.getvalue(),
        "zip": saved(state),
        "legacy": saved(state, _use_new_zipfile_serialization=False),
        "code": saved({"a": Canary()}),
        "legacy code": saved({"a": Canary()}, _use_new_zipfile_serialization=False),
        "pickle": pickle.dumps(Canary()),
        "old pickle": pickle.dumps({"a": Canary()}, protocol=0),
    }


@st.composite
def wild_pytorch(draw: st.DrawFn) -> bytes:
    content = draw(st.sampled_from(list(pytorch_files().values())))
    return draw(st.just(content) | changed_bytes(content))


def a_pytorch_file(place: Place, content: bytes | str) -> None:
    """Any .pth file as source weights; code in it is never run."""
    put(place.work / "source.pth", content)
    arrays = place.work / "arrays"
    if not arrays.exists():
        arrays.mkdir()
        for name in ("a", "b"):
            (arrays / f"{name}.npz").write_bytes(archive())
    settings = ("data.benchmark=npz", "data.path=arrays", "data.image_size=16", "data.source=a")
    words = [f"--set={text}" for text in (*settings, "source.weights=source.pth")]
    place.fedwca("run", *words)
    place.fedwca("predict", "source.pth", "x.png")


def archive(**other: Any) -> bytes:
    """An .npz of eight images."""
    stream = io.BytesIO()
    labels = np.arange(8) % 2
    arrays = {"images": np.zeros((8, 16, 16, 3), np.uint8), "labels": labels, **other}
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def lying_npz(shape: tuple[int, ...], kind: str = "|u1") -> bytes:
    """An archive whose array claims a shape that it does not have."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    npy = b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + bytes(16)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as zipped:
        zipped.writestr("images.npy", npy)
    return stream.getvalue()


def packed_mat(others: bytes) -> bytes:
    """A MATLAB file with 1.75 GiB of zeros before its other arrays, packed to few."""
    count, block = 112, bytes(1 << 24)
    size = count * len(block)
    flags, shape = struct.pack("<4I", 6, 8, 9, 0), struct.pack("<6I", 5, 16, size >> 12, 64, 64, 1)
    name = struct.pack("<2I8s", 1, 5, b"train")
    parts = flags + shape + name + struct.pack("<2I", 2, size)
    packer = zlib.compressobj()
    packed = packer.compress(struct.pack("<2I", 14, len(parts) + size) + parts)
    packed += packer.flush(zlib.Z_FULL_FLUSH)  # after which equal blocks are packed alike
    packed += count * (packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH))
    return others[:128] + struct.pack("<2I", 15, len(packed)) + packed + others[128:]


@functools.cache
def array_files() -> dict[str, list[bytes]]:
    """Files of arrays by the names under which Digit-Five is looked for."""
    mat = io.BytesIO()
    images, labels = np.zeros((8, 28, 28, 3), np.uint8), np.eye(10)[:8]
    arrays = {"train": images, "label_train": labels, "test": images, "label_test": labels}
    scipy.io.savemat(mat, arrays, do_compression=True)
    idx = struct.pack(">IIII", 2051, 8, 28, 28) + bytes(8 * 28 * 28)
    return {
        "svhn.npz": [
            archive(),
            archive(images=np.array([Canary()], dtype=object)),
            lying_npz((10**12, 10**3)),
            lying_npz((8, 16, 16), "O"),
            pickle.dumps(Canary()),
        ],
        "mnistm_with_label.mat": [mat.getvalue(), packed_mat(mat.getvalue())],
        "train-images-idx3-ubyte.gz": [
            gzip.compress(idx),
            gzip.compress(struct.pack(">IIII", 2051, 2**32 - 1, 2**32 - 1, 2**32 - 1)),
        ],
    }


@st.composite
def wild_arrays(draw: st.DrawFn) -> tuple[str, bytes]:
    name = draw(st.sampled_from(list(array_files())))
    content = draw(st.sampled_from(array_files()[name]))
    return name, draw(st.just(content) | changed_bytes(content))


def a_file_of_arrays(place: Place, file: tuple[str, bytes | str]) -> None:
    """Any .npz, .mat or IDX file is read or refused."""
    name, content = file
    folder = place.work / "digits"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "usps.npz").write_bytes(archive())
    (folder / "synth.npz").write_bytes(archive())
    labels = struct.pack(">II", 2049, 8) + bytes(8)
    (folder / "train-labels-idx1-ubyte").write_bytes(labels)
    put(folder / name, content)
    place.fedwca("data", "check", "digits", "--benchmark", "digit-five")
