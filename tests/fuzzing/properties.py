"""All that is fuzzed: a kind of input, and what must hold of every one."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from fuzzing import configs, messages, pictures, runs, weights
from fuzzing.door import Place
from fuzzing.odd_files import ODD


class Property(NamedTuple):
    """What is fuzzed.

    Attributes:
        name: of the input, in plain words.
        inputs: all of them.
        holds: fails if one of them does harm, in a place.
        quick: how many inputs the tests try.
        many: how many an attempt of `make torture` tries, in half a minute or so.
        always: inputs that are tried each time, before all others.
    """

    name: str
    inputs: SearchStrategy[Any]
    holds: Callable[[Place, Any], None]
    quick: int
    many: int
    always: Sequence[Any] = ()


_ODD_ARRAYS = [(name, kind) for name in weights.array_files() for kind in ODD]
PROPERTIES = [
    Property("config files", configs.wild_files(), configs.a_config_file, 12, 250, ODD),
    Property("settings by --set", configs.overrides, configs.a_setting, 25, 500),
    Property("settings by Python", configs.sections, configs.settings_by_mapping, 60, 2000),
    Property(
        *("image files", pictures.broken_pictures(), pictures.a_picture, 60, 1000),
        [*pictures.BOMBS.values(), *ODD],
    ),
    Property(
        *("folders of images", pictures.folders, pictures.a_folder_of_pictures, 5, 80),
        pictures.ODD_FOLDERS,
    ),
    Property(
        *("models as safetensors", weights.wild_safetensors(), weights.a_model_file, 20, 200), ODD
    ),
    Property("models as ONNX", weights.wild_onnx, weights.an_onnx_file, 12, 150, ODD),
    Property(
        *("PyTorch files with code", weights.wild_pytorch(), weights.a_pytorch_file, 10, 100),
        [*weights.pytorch_files().values(), *ODD],
    ),
    Property(
        *("npz, mat and IDX files", weights.wild_arrays(), weights.a_file_of_arrays, 25, 300),
        _ODD_ARRAYS,
    ),
    Property("run folders", runs.damages, runs.a_run_folder, 4, 30, runs.WRONG),
    Property("tensors of messages", messages.wild_parcels(), messages.a_parcel, 60, 1500),
    Property("messages of Flower", messages.wild_records(), messages.a_message, 60, 1500),
    Property("objects of Flower", messages.wild_objects(), messages.some_objects, 60, 1500),
    Property("requests of a hostile server", messages.wild_requests(), messages.a_request, 15, 200),
]


def hold(told: Property, folder: Path, number: int, seeded: int | None = None) -> int:
    """Try so many inputs beside those of each time, the same or by a seed; how many were tried."""
    place, tried = Place(folder), 0
    calm = settings(
        max_examples=number,
        deadline=None,
        database=None,
        derandomize=seeded is None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate] if seeded is None else [Phase.generate, Phase.shrink],
    )

    def one(example: Any) -> None:
        nonlocal tried
        tried += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's and NumPy's, on files that are bad indeed
            told.holds(place, example)

    for example in told.always:
        one(example)
    test = calm(given(told.inputs)(one))
    (test if seeded is None else seed(seeded)(test))()
    return tried
