"""The card beside a model file: what it is, what it expects, how accurate it is, how to use it."""

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedwca._support.files import write_atomically
from fedwca._support.text import escape_unprintable
from fedwca.models import ModelDescription

__all__ = ["escape_name", "format_card", "write_card"]

_LONGEST_NAME = 200
_ORIGIN = (
    *("method", "source", "source_seed", "benchmark", "run"),
    *("client", "cluster", "rounds", "seed"),
)
_ESCAPES = str.maketrans(
    {
        **{mark: f"\\{mark}" for mark in "\\`*_{}[]()#+!|~:@$^="},
        **{"<": "&lt;", ">": "&gt;", "&": "&amp;", '"': "&quot;", "'": "&#39;"},
    }
)

_ONNX_SCRIPT = """
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


def write_card(model: Path, description: ModelDescription) -> Path:
    """Write the card of a model file, as Markdown beside it."""
    card = model.with_name(f"{model.name}.md")  # with the suffix: each format has its own card
    write_atomically(card, format_card(description, model.name).encode("utf-8", "replace"))
    return card


def escape_name(name: object) -> str:
    """Return a foreign name as text without Markdown, HTML or control codes."""
    text = escape_unprintable(str(name))
    if len(text) > _LONGEST_NAME:
        text = f"{text[: _LONGEST_NAME - 1]}…"
    return text.translate(_ESCAPES)


def format_card(description: ModelDescription, file: str) -> str:
    """Return the card of the model in the named file."""
    made = description.made
    class_rows = [(str(n), escape_name(name)) for n, name in enumerate(description.classes)]
    parts = [
        f"# Model of {escape_name(made['client'])}" if "client" in made else "# Model",
        f"An image classifier of {len(description.classes)} classes, trained on labeled images of "
        "a source domain and adapted to unlabeled images of another one (federated source-free "
        "domain adaptation). The labels that adaptation assigned were not reviewed.",
        _format_table([("file", escape_name(file)), *_origin_rows(description)]),
        "## Accuracy",
        _format_scores(made),
        "## Input",
        _format_input(description),
        "## Classes",
        "In the order of the outputs.",
        _format_table(class_rows),
        "## Usage",
        *_format_usage(file),
        "## Settings",
        _format_code(json.dumps(made.get("settings", {}), indent=1), "json"),
    ]
    return "\n\n".join(parts) + "\n"


def _origin_rows(description: ModelDescription) -> list[tuple[str, str]]:
    made, labels = description.made, {"source_seed": "seed of the source model"}
    network = f"{escape_name(description.backbone)}, {description.bottleneck} features"
    rows = [(labels.get(key, key), escape_name(made[key])) for key in _ORIGIN if key in made]
    return [("network", network), *rows, ("made by fedwca", escape_name(version("fedwca")))]


def _format_scores(made: dict[str, Any]) -> str:
    rows = []
    correct, total = made.get("correct"), made.get("total")
    known = isinstance(correct, int) and isinstance(total, int) and total > 0
    if known:
        accuracy = f"{100 * made['correct'] / made['total']:.1f} %"
        rows.append(("accuracy", f"{accuracy} ({correct} of {total} of the client's test images)"))
    for key, label in (
        ("confidence", "mean confidence, without labels"),
        ("matched", "share of images on which two models agreed in the last round"),
        ("alpha", "α"),
        ("beta", "β"),
        ("v", "cluster weights v"),
    ):
        values = made[key] if isinstance(made.get(key), list) else [made.get(key)]
        if values and all(isinstance(value, float | int) for value in values):
            rows.append((label, ", ".join(f"{value:.3f}" for value in values)))
    unknown = "" if known else "The accuracy is unknown: there were no labeled test images.\n\n"
    return unknown + (_format_table(rows) if rows else "")


def _format_input(description: ModelDescription) -> str:
    size, crop = description.image_size, description.crop
    cropped = f", cropped to the central {crop} × {crop}" if crop else ""
    return (
        f"Upright RGB images, resized to {size} × {size} pixels without keeping proportions "
        f"(bilinear){cropped}, scaled to 0..1, normalized by mean "
        f"({_format_numbers(description.mean)}) and standard deviation "
        f"({_format_numbers(description.std)}). `fedwca predict` does all of this. An ONNX file "
        "crops and normalizes in its graph; its input `pixels` is uint8, N × size × size × 3."
    )


def _format_usage(file: str) -> list[str]:
    parts = [_format_code(f"fedwca predict {file} IMAGES", "sh")]
    if file.endswith(".onnx"):
        parts.append(
            "Without fedwca, with onnxruntime, numpy and Pillow (for upright RGB images; "
            "`fedwca predict` also rotates photos and reads 16-bit and transparent images):"
        )
        parts.append(_format_code(_ONNX_SCRIPT.format(file=json.dumps(file)).strip(), "python"))
    return parts


def _format_numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _format_table(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _format_code(text: str, language: str) -> str:
    """Return a code block whose fence is longer than any in the code."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
