"""Imports point one way, and the public names are where the design says."""

import ast
import importlib
from pathlib import Path

import pytest

import fedwca
from fedwca.methods import METHODS

ROOT = Path(fedwca.__file__).parent

EVERYWHERE = (
    *("errors", "files", "leftovers", "machine", "notes", "parsing", "paths", "run_content"),
)

# Every room, and the rooms that it may know.
ALLOWED = {
    "core": set(),
    "models": set(),
    "data": set(),
    "methods": {"core", "models", "data"},
    "engines": {"core", "models", "data", "methods"},
    "experiments": {"core", "models", "data", "methods", "engines"},
    "deploy": {"core", "models", "data", "methods", "engines", "experiments", "report", "stopping"},
    "report": set(),
}
MODULES = [
    path
    for room in ALLOWED
    for path in sorted((ROOT / room).glob("*.py"))
    if path.stem != "__init__"
]


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_room_knows_only_the_rooms_below_it(path: Path) -> None:
    room = path.parent.name
    known = {name.split(".")[1] for name in imports(path) if name.startswith("fedwca.")}
    assert known <= ALLOWED[room] | {room, *EVERYWHERE}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_engines_know_no_concrete_method_and_reports_no_torch(path: Path) -> None:
    used = imports(path)
    if path.parent.name == "engines":
        concrete = {kind.__module__ for kind in METHODS.values()}
        assert not used & concrete
    if path.parent.name == "report":
        assert not any(name.split(".")[0] == "torch" for name in used)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("core.finch", "first_neighbor_clusters"),
        ("core.snd", "soft_neighborhood_density"),
        ("core.pseudo_label", "prototype_labels PrototypeLabels reconcile mixup_partners"),
        ("core.weights", "alignment softmax_weights benefit soft_mixture cluster_weights"),
        ("core.losses", "information_maximization proximal prototype_contrast distillation"),
        ("core.style", "amplitude_style"),
        ("core.params", "mix distance copy_into"),
        ("methods", "METHODS"),
        ("data", "BENCHMARKS"),
        ("models", "BACKBONES"),
    ],
)
def test_public_names_are_where_the_design_says(module: str, names: str) -> None:
    found = importlib.import_module(f"fedwca.{module}")
    for name in names.split():
        assert hasattr(found, name)
        assert name in found.__all__


@pytest.mark.parametrize("path", MODULES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_what_a_module_declares_public_exists(path: Path) -> None:
    module = importlib.import_module(f"fedwca.{path.parent.name}.{path.stem}")
    assert all(hasattr(module, name) for name in getattr(module, "__all__", []))
