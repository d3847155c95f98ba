"""Run folders with every file damaged, swapped, or of somebody else's making."""

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

import fedwca
from fedwca.errors import UserError
from fedwca.files import SEAL, seal
from fuzzing.configs import EVIL
from fuzzing.door import Place, call, fails_with
from fuzzing.odd_files import ODD, put
from fuzzing.weights import archive, numbers


@functools.cache
def finished() -> Path:
    """A small finished run of two clients, beside its data; the folder of all."""
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
    said = call(root, "run", *(f"--set={text}" for text in settings))
    assert said.code == 0, said.err
    return root


def files(run: Path) -> list[str]:
    """All files of a run by their places in it, in one order."""
    found = (path.relative_to(run) for path in run.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if path.name != ".lock")


class Damage(NamedTuple):
    """What is done to which file; `file` counts through them."""

    file: int
    kind: str
    seed: Any


_KINDS = ["gone", "empty", "link out", "bytes", "cut", "deep", *ODD]
# A digest that does not fit any more, one that was made anew, none, as in older versions.
_SEALS = ["left", "made anew", "made anew", "taken away"]
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
        st.tuples(st.integers(0, 500), _JSON, st.sampled_from(_SEALS)),
    )
)


# Values that readers of results have failed of, each in its place, with the digest and without.
WRONG = [
    Damage(0, "result", ((*path, value), sealed))
    for path, value in (
        (("server", "cluster_of/b"), "x"),
        (("server", "v/b"), 5),
        (("accuracy", "domains"), 3),
        (("accuracy", "domains"), {"b": "y"}),
        (("clients", "b"), {"accuracy": 0.5}),
    )
    for sealed in ("made anew", "taken away")
]


def do(run: Path, damage: Damage) -> None:
    """Damage a run."""
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


def _replace_value(file: Path, place: int, value: Any, sealed: str) -> None:
    """Put a value in place of one of a JSON file's own, or of one of its keys."""
    whole = file.suffix == ".jsonl"
    lines = file.read_text().splitlines() if whole else [file.read_text()]
    number = place % len(lines)
    content = json.loads(lines[number])
    had = content.pop(SEAL, None)
    spots = _spots(content)
    part, key = spots[place // len(lines) % len(spots)]
    if isinstance(value, str) and isinstance(part, dict) and place % 2:
        part[value] = part.pop(key)
    else:
        part[key] = value
    lines[number] = json.dumps(_sealed(content, had, sealed))
    file.write_text("\n".join(lines) + "\n")


def _put_value(file: Path, steps: tuple[Any, ...], sealed: str) -> None:
    content = json.loads(file.read_text())
    had = content.pop(SEAL, None)
    *parts, key, value = steps
    part = functools.reduce(lambda inner, step: inner[step], parts, content)
    part[key] = value
    file.write_text(json.dumps(_sealed(content, had, sealed)))


def _sealed(content: dict[str, Any], had: str | None, sealed: str) -> dict[str, Any]:
    if had is None or sealed == "taken away":
        return content
    return {**content, SEAL: had} if sealed == "left" else seal(content)


def _spots(content: Any) -> list[tuple[Any, Any]]:
    """Every place in it that holds a value: what it lies in, and where."""
    spots: list[tuple[Any, Any]] = []

    def walk(part: Any) -> None:
        pairs = part.items() if isinstance(part, dict) else enumerate(part)
        for key, inner in list(pairs):
            spots.append((part, key))
            if isinstance(inner, dict | list):
                walk(inner)

    walk(content)
    return spots


def a_run_folder(place: Place, damage: Damage) -> None:
    """Every command that reads a run copes with one that is damaged."""
    for name in ("runs", "data", "made"):
        shutil.rmtree(place.work / name, ignore_errors=True)
    for name in ("runs", "data"):
        shutil.copytree(finished() / name, place.work / name)
    (run,) = (place.work / "runs").iterdir()
    do(run, damage)
    shown = str(Path("runs") / run.name)
    place.fedwca("list")
    place.fedwca("show", shown)
    place.fedwca("compare")
    place.fedwca("report", "-o", "made/report.html")
    place.fedwca("report", shown, shown, "-o", "made/report.html")
    place.fedwca("tensorboard", shown)
    place.fedwca("export", shown)
    place.fedwca("export", shown, "--client", "b", "-o", "made")
    fails_with(UserError, lambda: _opened(run))
    shutil.rmtree(run / "models", ignore_errors=True)
    place.fedwca("resume", shown)


def _opened(run: Path) -> None:
    """All that the Python API tells of a run."""
    opened = fedwca.open_run(run)
    told = (opened.accuracy, opened.accuracies, opened.domains, opened.clusters, opened.weights)
    assert repr(opened)
    assert told is not None
    assert isinstance(opened.records(), list)
    assert opened.classes is not None
    for client in opened.accuracies:
        opened.model(client)
