"""Imports point one way, public names are where the design says, and the maps match the tree."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import fedwca
from fedwca.methods import METHODS

ROOT = Path(fedwca.__file__).parent
REPOSITORY = Path(__file__).parents[2]

# Every room, and the rooms that it may import from; `_support` is open to all.
BELOW_ENGINES = {"core", "models", "data", "methods", "privacy"}
BELOW_DEPLOY = {*BELOW_ENGINES, "engines", "experiments", "report"}
ALLOWED: dict[str, set[str]] = {
    "_support": set(),
    "core": set(),
    "data": {"core"},
    "models": {"core", "data"},
    "methods": {"core", "models", "data"},
    "privacy": {"core", "models", "data", "methods"},
    "engines": BELOW_ENGINES,
    "experiments": {*BELOW_ENGINES, "engines"},
    "report": {"experiments.run_schema"},
    "deploy": BELOW_DEPLOY,
    "reproduce": BELOW_DEPLOY,
    "cli": {*BELOW_DEPLOY, "deploy", "reproduce", "api"},
    "api": {*BELOW_DEPLOY, "cli.console", "cli.progress"},
    "flower_app": {*BELOW_DEPLOY, "deploy", "cli.console"},
}
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("fedwca", *parts)).removesuffix(".__init__")


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def within(name: str, rooms: set[str]) -> bool:
    return any(name == f"fedwca.{room}" or name.startswith(f"fedwca.{room}.") for room in rooms)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_from_its_own_room_and_those_below(path: Path) -> None:
    used, room = imports(path), name_of(path).split(".")[1]
    known = {name for name in used if name.startswith("fedwca.")}
    assert {n for n in known if not within(n, {*ALLOWED[room], room, "_support"})} == set()
    if room == "engines":  # engines know no concrete method
        assert not used & {kind.__module__ for kind in METHODS.values()}
    if room == "report" or name_of(path) == "fedwca.experiments.run_schema":
        assert "torch" not in {name.split(".")[0] for name in used}


def test_every_folder_is_a_package_and_every_top_level_module_is_known() -> None:
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "api.py", "flower_app.py"}
    assert all((path.parent / "__init__.py").exists() for path in MODULES)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("core.finch", "first_neighbor_clusters"),
        ("core.snd", "soft_neighborhood_density"),
        ("core.pseudo_label", "prototype_labels PrototypeLabels reconcile mixup_partners"),
        ("core.weights", "alignment softmax_weights benefit soft_mixture cluster_weights"),
        ("core.losses", "information_maximization proximal prototype_contrast distillation"),
        ("core.style", "amplitude_style"),
        ("core.params", "mix distance"),
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


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_what_a_module_declares_public_exists(path: Path) -> None:
    if path.stem == "__main__":
        return  # importing it runs it
    module = importlib.import_module(name_of(path))
    assert all(hasattr(module, name) for name in getattr(module, "__all__", []))


def entries_of_readme_map() -> list[tuple[int, str, str]]:
    """The indentation, path and description of every entry in README's map of the code."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^## Map of the code\n\n```\n(.*?)```", readme, re.M | re.S)
    joined = re.sub(r"\n {10,}", " ", block)  # descriptions that continue on the next line
    return [
        (len(indent), path, text)
        for indent, path, text in re.findall(r"^( *)(\S+)(.*)$", joined, re.M)
    ]


def test_the_map_in_the_readme_has_all_packages_folders_and_pages() -> None:
    entries = entries_of_readme_map()
    mapped = [path.rstrip("/") for indent, path, _ in entries if indent == 2]
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    modules = {path.name for path in ROOT.glob("*.py")} - {"__init__.py"}
    assert sorted(mapped) == sorted(packages | modules)
    for indent, path, _ in entries:
        assert indent == 2 or (REPOSITORY / path).is_dir(), path
    (text,) = (text for _, path, text in entries if path == "docs/")
    pages = {path.name for path in (REPOSITORY / "docs").glob("*.md")}
    assert set(re.findall(r"[\w-]+\.md", text)) == pages


def test_the_paths_in_contributing_exist() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`([\w/-]+(?:/|\.py))`", text)
    assert len(paths) > 20
    for path in paths:
        assert (ROOT / path).exists() or (REPOSITORY / path).exists(), path
