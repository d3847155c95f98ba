"""Run folders with corrupt or replaced files."""

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

import fedwca
from fedwca._support.errors import UserError
from fedwca._support.files import CHECKSUM
from tests.fuzz.configs import EVIL
from tests.fuzz.harness import Sandbox, call, fails_with
from tests.fuzz.odd_files import ODD, put
from tests.fuzz.weights import archive, numbers


@functools.cache
def finished_run() -> Path:
    """Return a folder with the data and the finished run of two clients."""
    root = Path(tempfile.mkdtemp(prefix="fedwca-run-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    (root / "data").mkdir()
    for name in ("a", "b", "c"):
        (root / "data" / f"{name}.npz").write_bytes(archive())
    settings = (
        *("data.benchmark=npz", "data.path=data", "data.source=a", "data.image_size=16"),
        *("data.clients_per_domain=1", "model.bottleneck=8", "source.epochs=1", "run.workers=1"),
        *("training.rounds=2", "training.epochs=1", "training.batch_size=4"),
    )
    result = call(root, "run", *(f"--set={text}" for text in settings))
    assert result.code == 0, result.err
    return root


def files(run: Path) -> list[str]:
    """Return the relative paths of all files of a run, sorted."""
    found = (path.relative_to(run) for path in run.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if path.name != ".lock")


class Damage(NamedTuple):
    """What is done to which file; `file` is an index, modulo their number."""

    file: int
    kind: str
    seed: Any


_KINDS = ["gone", "empty", "link out", "bytes", "cut", "deep", *ODD]
# The old checksum, or none, as in older versions.
_CHECKSUMS = ["old", "none"]
_JSON = st.recursive(
    numbers | st.floats() | st.sampled_from(EVIL) | st.none() | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*EVIL, "mean", "clients", "round"]), inner, max_size=3)
    ),
    max_leaves=5,
)
damages = (
    st.builds(Damage, st.integers(0, 20), st.sampled_from(_KINDS), st.integers(0, 2**16))
    | st.builds(Damage, st.integers(0, 20), st.just("changed"), st.randoms(use_true_random=False))
    | st.builds(
        *(Damage, st.integers(0, 20), st.just("json")),
        st.tuples(st.integers(0, 500), _JSON, st.sampled_from(_CHECKSUMS)),
    )
)


# Values on which readers of results have failed before.
WRONG = [
    Damage(0, "result", ((*path, value), "none"))
    for path, value in (
        (("server", "cluster_of/b"), "x"),
        (("server", "v/b"), 5),
        (("accuracy", "domains"), 3),
        (("accuracy", "domains"), {"b": "y"}),
        (("clients", "b"), {"accuracy": 0.5}),
    )
]


def apply_damage(run: Path, damage: Damage) -> None:
    """Damage a file of a run."""
    names = files(run)
    if damage.kind == "json":
        names = [name for name in names if name.endswith((".json", ".jsonl"))]
    file = run / names[damage.file % len(names)]
    content = file.read_bytes()
    match damage.kind:
        case "result":
            _put_value(run / "result.json", *damage.seed)
        case "json":
            _replace_value(file, *damage.seed)
        case "changed":
            changed = bytearray(content)
            for _ in range(3):
                place = damage.seed.randrange(min(len(changed), 3000))
                changed[place] = damage.seed.randrange(256)
            file.write_bytes(changed)
        case "cut":
            file.write_bytes(content[: damage.seed % len(content)])
        case "bytes":
            file.write_bytes(bytes([damage.seed % 256]) * 500)
        case "deep":
            file.write_bytes(b'{"round": 1, "settings": ' + b"[" * 100_000)
        case "empty":
            file.write_bytes(b"")
        case "gone":
            file.unlink()
        case "link out":
            file.unlink()
            file.symlink_to("../../../canary")
        case _:
            put(file, damage.kind)


def _replace_value(file: Path, place: int, value: Any, checksum: str) -> None:
    """Replace a value or a key in a JSON file."""
    has_lines = file.suffix == ".jsonl"
    lines = file.read_text().splitlines() if has_lines else [file.read_text()]
    number = place % len(lines)
    content = json.loads(lines[number])
    old = content.pop(CHECKSUM, None)
    spots = _find_values(content)
    part, key = spots[place // len(lines) % len(spots)]
    if isinstance(value, str) and isinstance(part, dict) and place % 2:
        part[value] = part.pop(key)
    else:
        part[key] = value
    lines[number] = json.dumps(_with_checksum(content, old, checksum))
    file.write_text("\n".join(lines) + "\n")


def _put_value(file: Path, steps: tuple[Any, ...], checksum: str) -> None:
    content = json.loads(file.read_text())
    old = content.pop(CHECKSUM, None)
    *parts, key, value = steps
    part = functools.reduce(lambda inner, step: inner[step], parts, content)
    part[key] = value
    file.write_text(json.dumps(_with_checksum(content, old, checksum)))


def _with_checksum(content: dict[str, Any], old: str | None, kind: str) -> dict[str, Any]:
    return content if old is None or kind == "none" else {**content, CHECKSUM: old}


def _find_values(content: Any) -> list[tuple[Any, Any]]:
    """Return the container and the key of every value."""
    spots: list[tuple[Any, Any]] = []

    def walk(part: Any) -> None:
        pairs = part.items() if isinstance(part, dict) else enumerate(part)
        for key, inner in list(pairs):
            spots.append((part, key))
            if isinstance(inner, dict | list):
                walk(inner)

    walk(content)
    return spots


def a_run_folder(sandbox: Sandbox, damage: Damage) -> None:
    """Every command that reads runs handles a damaged one."""
    for name in ("runs", "data", "made"):
        shutil.rmtree(sandbox.work / name, ignore_errors=True)
    for name in ("runs", "data"):
        shutil.copytree(finished_run() / name, sandbox.work / name)
    (run,) = (sandbox.work / "runs").iterdir()
    apply_damage(run, damage)
    shown = str(Path("runs") / run.name)
    sandbox.fedwca("list")
    sandbox.fedwca("show", shown)
    sandbox.fedwca("compare")
    sandbox.fedwca("report", "-o", "made/report.html")
    sandbox.fedwca("report", shown, shown, "-o", "made/report.html")
    sandbox.fedwca("tensorboard", shown)
    sandbox.fedwca("export", shown)
    sandbox.fedwca("export", shown, "--client", "b", "-o", "made")
    fails_with(UserError, lambda: _use_api(run))
    shutil.rmtree(run / "models", ignore_errors=True)
    sandbox.fedwca("resume", shown)


def _use_api(run: Path) -> None:
    """Read everything that the Python API offers for a run."""
    opened = fedwca.open_run(run)
    values = (opened.accuracy, opened.accuracies, opened.domains, opened.clusters, opened.weights)
    assert repr(opened)
    assert values is not None
    assert isinstance(opened.records(), list)
    assert opened.classes is not None
    for client in opened.accuracies:
        opened.model(client)
