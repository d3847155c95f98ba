"""The card beside a model: what it is, what it expects, how well it does, how to use it."""

import json
import re
from pathlib import Path
from typing import Any

from fedwca.files import write_atomically
from fedwca.models import Description
from fedwca.models.described import stamped
from fedwca.notes import written_out

__all__ = ["card_text", "plain", "write_card"]

_LONGEST = 200
_MEANING = str.maketrans(
    {
        **{mark: f"\\{mark}" for mark in "\\`*_{}[]()#+!|~:@$^="},
        **{"<": "&lt;", ">": "&gt;", "&": "&amp;", '"': "&quot;", "'": "&#39;"},
    }
)

_ONNX = """
import json, sys
import numpy as np, onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession({file})
about = json.loads(session.get_modelmeta().custom_metadata_map["fedwca"])
size = (about["image_size"], about["image_size"])
images = [Image.open(file).convert("RGB").resize(size, 2) for file in sys.argv[1:]]  # 2: bilinear
(logits,) = session.run(["logits"], {{"pixels": np.stack([np.asarray(i) for i in images])}})
for file, best in zip(sys.argv[1:], logits.argmax(axis=1)):
    print(file, about["classes"][best])
"""


def write_card(model: Path, description: Description) -> Path:
    """Write the card of a model file, as Markdown beside it."""
    # By the whole name: another format of it may be another model, and NAME.md anything.
    card = model.with_name(f"{model.name}.md")
    write_atomically(card, card_text(description, model.name).encode("utf-8", "replace"))
    return card


def plain(name: object) -> str:
    """A foreign name as text that means nothing to Markdown or HTML."""
    text = written_out(str(name))
    return (text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…").translate(_MEANING)


def card_text(about: Description, file: str) -> str:
    """The card of a model in the named file."""
    about = stamped(about)
    made = about.made
    parts = [
        f"# Model of {plain(made['client'])}" if "client" in made else "# Model",
        f"An image classifier of {len(about.classes)} classes: trained on labeled images of a "
        "source domain, then adapted to images of other kinds without any label (federated "
        "source-free domain adaptation). Nobody has checked the labels that it gave itself.",
        _table([("file", plain(file)), *_origin(about)]),
        "## How well it does",
        _scores(made),
        "## What it expects",
        _input(about),
        "## Classes",
        "In the order of its outputs.",
        _table([(str(number), plain(name)) for number, name in enumerate(about.classes)]),
        "## How to use it",
        *_usage(file),
        "## Settings",
        _fenced(json.dumps(made.get("settings", {}), indent=1), "json"),
    ]
    return "\n\n".join(parts) + "\n"


def _origin(about: Description) -> list[tuple[str, str]]:
    labels = {
        "method": "method",
        "source": "source",
        "source_seed": "seed of the source model",
        "benchmark": "benchmark",
        "run": "run",
        "client": "client",
        "cluster": "cluster",
        "rounds": "rounds",
        "seed": "seed",
        "fedwca": "made by fedwca",
    }
    rows = [(label, plain(about.made[key])) for key, label in labels.items() if key in about.made]
    return [("network", f"{plain(about.backbone)}, {about.bottleneck} features"), *rows]


def _scores(made: dict[str, Any]) -> str:
    rows = []
    correct, total = made.get("correct"), made.get("total")
    known = isinstance(correct, int) and isinstance(total, int) and total > 0
    if known:
        counts = f"{correct} of {total} of the client's own test images"
        rows.append(("accuracy", f"{100 * made['correct'] / made['total']:.1f} % ({counts})"))
    for key, label in (
        ("confidence", "mean confidence, without labels"),
        ("matched", "share of images on which two models agreed in the last round"),
        ("alpha", "α"),
        ("beta", "β"),
        ("v", "weights v of the clusters"),
    ):
        values = made[key] if isinstance(made.get(key), list) else [made.get(key)]
        if values and all(isinstance(value, float | int) for value in values):
            rows.append((label, ", ".join(f"{value:.3f}" for value in values)))
    unknown = "" if known else "Its accuracy is not known: nobody scored it on labeled images.\n\n"
    return unknown + (_table(rows) if rows else "")


def _input(about: Description) -> str:
    seen = f", of which it sees the centre of {about.crop} × {about.crop}" if about.crop else ""
    return (
        f"Upright RGB images, resized to {about.image_size} × {about.image_size} pixels whatever "
        f"their proportions (bilinear){seen}; scaled to 0..1, less the mean "
        f"({_numbers(about.mean)}), divided by the deviation ({_numbers(about.std)}). "
        "`fedwca predict` does all of it; the ONNX file crops and normalises by itself and takes "
        "`pixels`, uint8 N × size × size × 3."
    )


def _usage(file: str) -> list[str]:
    parts = [_fenced(f"fedwca predict {file} IMAGES", "sh")]
    if file.endswith(".onnx"):
        parts.append(
            "Without fedwca, by onnxruntime, numpy and Pillow alone (for upright RGB images; "
            "`fedwca predict` also turns photos upright and reads 16-bit and transparent ones):"
        )
        parts.append(_fenced(_ONNX.format(file=json.dumps(file)).strip(), "python"))
    return parts


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _table(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _fenced(text: str, language: str) -> str:
    """A block of code whose fence is longer than any in the code."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
