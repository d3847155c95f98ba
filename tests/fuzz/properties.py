"""All fuzzed properties: a kind of input, and what must hold for each of them."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.fuzz import configs, image_files, messages, run_folders, weights
from tests.fuzz.harness import Sandbox
from tests.fuzz.odd_files import ODD


class Property(NamedTuple):
    """A fuzzed property.

    Attributes:
        name: of the kind of input.
        inputs: strategy that generates them.
        holds: fails if an input does harm, in a sandbox.
        quick: how many inputs the tests try.
        many: how many inputs an attempt of `make torture` tries, in about half a minute.
        always: inputs that are tried first, every time.
    """

    name: str
    inputs: SearchStrategy[Any]
    holds: Callable[[Sandbox, Any], None]
    quick: int
    many: int
    always: Sequence[Any] = ()


_ODD_ARRAYS = [(name, kind) for name in weights.array_files() for kind in ODD]
PROPERTIES = [
    Property("config files", configs.wild_files(), configs.a_config_file, 12, 250, ODD),
    Property("settings by --set", configs.overrides, configs.a_setting, 25, 500),
    Property("settings by Python", configs.sections, configs.settings_by_mapping, 60, 2000),
    Property(
        *("image files", image_files.broken_images, image_files.check_image_file, 60, 1000),
        [*image_files.BOMBS.values(), *ODD],
    ),
    Property(
        *("folders of images", image_files.folders, image_files.check_image_folder, 5, 80),
        image_files.ODD_FOLDERS,
    ),
    Property(
        *("models as safetensors", weights.wild_safetensors(), weights.a_model_file, 20, 200), ODD
    ),
    Property(
        *("PyTorch files with code", weights.wild_pytorch(), weights.a_pytorch_file, 10, 100),
        [*weights.pytorch_files().values(), *ODD],
    ),
    Property(
        *("npz, mat and IDX files", weights.wild_arrays(), weights.a_file_of_arrays, 25, 300),
        _ODD_ARRAYS,
    ),
    Property(
        "run folders", run_folders.damages, run_folders.a_run_folder, 4, 30, run_folders.WRONG
    ),
    Property("tensors of messages", messages.wild_payloads(), messages.a_payload, 60, 1500),
    Property("messages of Flower", messages.wild_records(), messages.a_message, 60, 1500),
    Property("objects of Flower", messages.wild_objects(), messages.some_objects, 60, 1500),
    Property("requests of a hostile server", messages.wild_requests(), messages.a_request, 15, 200),
]


def check_property(checked: Property, folder: Path, number: int, seeded: int | None = None) -> int:
    """Try `number` inputs, always the same or by a seed; return how many were tried."""
    sandbox, tried = Sandbox(folder), 0
    configured = settings(
        max_examples=number,
        deadline=None,
        database=None,
        derandomize=seeded is None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate] if seeded is None else [Phase.generate, Phase.shrink],
    )

    def try_input(example: Any) -> None:
        nonlocal tried
        tried += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow and NumPy about broken files
            checked.holds(sandbox, example)

    for example in checked.always:
        try_input(example)
    test = configured(given(checked.inputs)(try_input))
    (test if seeded is None else seed(seeded)(test))()
    return tried
