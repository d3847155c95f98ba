"""Weights files and arrays that are truncated, corrupt, compressed or contain code."""

import functools
import gzip
import io
import json
import pickle
import shutil
import struct
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import torch
from hypothesis import strategies as st

from fedwca.models import ModelDescription, build_model, save_model
from tests.fuzz.harness import Sandbox
from tests.fuzz.image_files import good_files
from tests.fuzz.odd_files import changed_bytes, put

_SIZES = [0, 1, 7, 8, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1]
numbers = st.sampled_from(_SIZES) | st.integers(-(2**70), 2**70)


class Canary:
    """Creates a file when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("open('../escaped', 'w').close()",)


def describe_model(**other: Any) -> ModelDescription:
    fields = {
        **{"backbone": "lenet", "bottleneck": 16, "classifier": "weight_norm"},
        **{"stride_on": "conv2", "classes": ("a", "b", "c"), "image_size": 16, "crop": 0},
        **{"mean": (0.5,) * 3, "std": (0.5,) * 3},
    }
    return ModelDescription.model_validate({**fields, **other})


@functools.cache
def model_file() -> bytes:
    """Return the content of a valid model file."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model("lenet", 3, image_size=16, bottleneck=16).eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_model(model, path, describe_model())
        return path.read_bytes()


def join_safetensors(header: bytes, body: bytes, length: int | None = None) -> bytes:
    """Return a safetensors file that states any length of its header."""
    stated = len(header) if length is None else length
    return struct.pack("<Q", stated % 2**64) + header + body


def split_safetensors(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the body of a safetensors file."""
    end = 8 + struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:end]), content[end:]


@st.composite
def wild_safetensors(draw: st.DrawFn) -> bytes:
    """Return a model file with another header, other bytes, or a wrong header length."""
    content = model_file()
    kind = draw(st.sampled_from(["bytes", "length", "entry", "metadata", "described", "huge"]))
    header, body = split_safetensors(content)
    if kind == "bytes":
        return draw(changed_bytes(content))
    if kind == "length":
        return join_safetensors(json.dumps(header).encode(), body, draw(numbers))
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
        description = json.loads(header["__metadata__"]["fedwca"])
        key = draw(st.sampled_from(list(description)))
        names = ["resnet50", "timm:vit_giant", "torchvision:os", "os:system", "../x"]
        texts = st.sampled_from(names)
        description[key] = draw(numbers | texts | st.floats() | st.lists(numbers, max_size=3))
        header["__metadata__"]["fedwca"] = json.dumps(description)
    if kind == "huge":  # a description of two gigabytes of weights in a file of a few kilobytes
        description = json.loads(header["__metadata__"]["fedwca"])
        description |= {"image_size": 4096, "bottleneck": 9}
        header["__metadata__"]["fedwca"] = json.dumps(description)
    return join_safetensors(json.dumps(header).encode(), body)


def a_model_file(sandbox: Sandbox, content: bytes | str) -> None:
    """Any .safetensors file is used or refused."""
    name = "model.safetensors"
    put(sandbox.work / name, content)
    (sandbox.work / "x.png").write_bytes(good_files()["photo.png"])
    sandbox.fedwca("predict", name, "x.png")
    sandbox.fedwca("export", name, "-o", "made", "--format", "safetensors")


@functools.cache
def pytorch_files() -> dict[str, bytes]:
    """Return files in PyTorch's own formats, with weights or with code."""

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


def a_pytorch_file(sandbox: Sandbox, content: bytes | str) -> None:
    """Any .pth file is used as source weights or refused; code in it never runs."""
    put(sandbox.work / "source.pth", content)
    arrays = sandbox.work / "arrays"
    if not arrays.exists():
        arrays.mkdir()
        for name in ("a", "b"):
            (arrays / f"{name}.npz").write_bytes(archive())
    settings = ("data.benchmark=npz", "data.path=arrays", "data.image_size=16", "data.source=a")
    words = [f"--set={text}" for text in (*settings, "source.weights=source.pth")]
    sandbox.fedwca("run", *words)
    sandbox.fedwca("predict", "source.pth", "x.png")


def archive(**other: Any) -> bytes:
    """Return an .npz of eight images."""
    stream = io.BytesIO()
    labels = np.arange(8) % 2
    arrays = {"images": np.zeros((8, 16, 16, 3), np.uint8), "labels": labels, **other}
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def npz_with_wrong_shape(shape: tuple[int, ...], kind: str = "|u1") -> bytes:
    """Return an .npz whose array states a wrong shape."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    npy = b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + bytes(16)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as zipped:
        zipped.writestr("images.npy", npy)
    return stream.getvalue()


@functools.cache
def array_files() -> dict[str, list[bytes]]:
    """Return files of arrays by the names that Digit-Five has."""
    mat = io.BytesIO()
    images, labels = np.zeros((8, 28, 28, 3), np.uint8), np.eye(10)[:8]
    arrays = {"train": images, "label_train": labels, "test": images, "label_test": labels}
    scipy.io.savemat(mat, arrays, do_compression=True)
    idx = struct.pack(">IIII", 2051, 8, 28, 28) + bytes(8 * 28 * 28)
    return {
        "svhn.npz": [
            archive(),
            archive(images=np.array([Canary()], dtype=object)),
            npz_with_wrong_shape((10**12, 10**3)),
            npz_with_wrong_shape((8, 16, 16), "O"),
            pickle.dumps(Canary()),
        ],
        "mnistm_with_label.mat": [mat.getvalue()],
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


def a_file_of_arrays(sandbox: Sandbox, file: tuple[str, bytes | str]) -> None:
    """Any .npz, .mat or IDX file is read or refused."""
    name, content = file
    folder = sandbox.work / "digits"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "usps.npz").write_bytes(archive())
    (folder / "synth.npz").write_bytes(archive())
    labels = struct.pack(">II", 2049, 8) + bytes(8)
    (folder / "train-labels-idx1-ubyte").write_bytes(labels)
    put(folder / name, content)
    sandbox.fedwca("data", "check", "digits", "--benchmark", "digit-five")
