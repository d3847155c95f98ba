"""Config files and --set: anything that an editor, a script or an attacker may write there."""

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from fedwca._support.errors import UserError
from fedwca.experiments.config import resolve
from fedwca.experiments.experiment import (
    DataConfig,
    DeployConfig,
    ModelConfig,
    RunConfig,
    SourceConfig,
)
from fedwca.methods import METHODS, Training
from tests.fuzz.harness import Sandbox, fails_with
from tests.fuzz.odd_files import changed_bytes, put

CONFIGS = sorted((Path(__file__).parents[2] / "configs").rglob("*.toml"))
_NOWHERE = ("--set=data.benchmark=npz", "--set=data.path=nowhere", "--set=data.source=x")

# Text with a meaning for a shell, a file system, a terminal, a web page or a parser.
EVIL = [
    *("", " ", "..", "../../escaped", "/etc/passwd", "a/b\\c", "~", "~root", "-rf", "CON"),
    *("\0", "\x1b[2J", "\n", "\u202e", "\ud800", "é" * 300, "[red]x[/red]", "${HOME}", "%s%n"),
    *("<script>", "__class__", "1e999", "nan", "true", "[]", "{}", "[" * 5000, "1" * 5000),
]
_KINDS = (DataConfig, ModelConfig, SourceConfig, RunConfig, DeployConfig)
KEYS = [
    *(
        f"{kind.__name__.removesuffix('Config').lower()}.{name}"
        for kind in _KINDS
        for name in kind.model_fields
    ),
    *(f"training.{name}" for name in Training.__dataclass_fields__),
    *{f"method.{name}" for m in METHODS.values() for name in m.__dataclass_fields__},
    *("method.name", "nosuch.key", "data", "run.", ".", "data.path.deep"),
]

texts = st.sampled_from(EVIL) | st.text(max_size=30)
numbers = st.sampled_from([0, -1, 2**31, 2**63, 2**64, -(2**200)]) | st.integers()
floats = st.floats() | st.sampled_from([1e308, 5e-324, -0.0])
leaves = texts | numbers | floats | st.booleans() | st.none()
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def as_toml(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {as_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    text = "''" if value is None else json.dumps(value)
    return text.replace("Infinity", "inf").replace("NaN", "nan")


_HUGE = ["0x" + "f" * 5000, "9" * 5000, "[" * 2000 + "]" * 2000, "1979-05-27T07:32:00Z", "07:32:00"]
written = values.map(as_toml) | texts | st.sampled_from(_HUGE)
overrides = st.tuples(st.sampled_from(KEYS), written).map("=".join) | texts


@st.composite
def wild_files(draw: st.DrawFn) -> bytes:
    """Draw bytes, TOML with odd values, or one of our config files with a change."""
    kind = draw(st.sampled_from(["bytes", "values", "changed", "lines"]))
    if kind == "bytes":
        return draw(st.binary(max_size=200))
    if kind == "values":
        chosen = draw(st.lists(st.tuples(st.sampled_from(KEYS), written), max_size=4))
        lines = [f"{key} = {value}" for key, value in chosen]
        return "\n".join(lines).encode("utf-8", "replace")
    text = draw(st.sampled_from(CONFIGS)).read_bytes()
    if kind == "lines":
        lines = text.split(b"\n")
        place = draw(st.integers(0, len(lines)))
        name, value = draw(st.sampled_from(KEYS)).rpartition(".")[2], draw(values)
        lines.insert(place, f"{name} = {as_toml(value)}".encode("utf-8", "replace"))
        return b"\n".join(lines)
    return draw(changed_bytes(text))


def a_config_file(sandbox: Sandbox, content: bytes | str) -> None:
    """Any file passed as CONFIG is run or rejected."""
    put(sandbox.work / "config.toml", content)
    sandbox.fedwca("run", "config.toml", *_NOWHERE)
    sandbox.fedwca("deploy", "run", "config.toml")
    put(sandbox.work / "deployment.toml", content)
    sandbox.fedwca("deploy", "status", "--folder", ".")
    put(sandbox.work / "site.toml", content)
    sandbox.fedwca("deploy", "client", "--site", "a", "--data", ".", "--folder", ".")


def a_setting(sandbox: Sandbox, text: str) -> None:
    """Any text after --set is accepted or rejected."""
    # As a shell passes it on.
    argument = text.encode("utf-8", "replace").decode().replace("\0", "\\0")
    sandbox.fedwca("run", *_NOWHERE, "--method", "fedwca", f"--set={argument}")


def settings_by_mapping(sandbox: Sandbox, settings: dict[str, Any]) -> None:
    """Any mapping passed to `fedwca.run` is rejected or gives a harmless folder name."""

    def name() -> None:
        found = resolve(settings).name
        assert Path(found).name == found
        assert found not in (".", "..")
        assert len(found.encode()) < 255

    fails_with(UserError, name)


sections = st.dictionaries(
    st.sampled_from(["data", "model", "source", "training", "method", "run", "deploy"]),
    st.dictionaries(st.sampled_from([k.rpartition(".")[2] for k in KEYS]), values, max_size=3)
    | values,
    max_size=4,
)
