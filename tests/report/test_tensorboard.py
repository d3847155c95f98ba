"""Event files, read by TensorBoard's own reader, hold the run's results."""

import base64
import io
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedwca._support.errors import UserError
from fedwca._support.text import escape_unprintable
from fedwca.report.runs import read_run
from fedwca.report.tensorboard import EVENTS, write_events

HOSTILE = ["<script>alert(1)</script>", "a\nb", "\u202eabc", "x" * 300, "cam 📷/'\"", "\\n", "mean"]
viridis = colormaps["viridis"]
SETTINGS = {
    "data": {"benchmark": "npz", "source": "clean"},
    "training": {"batch_norm": "blend", "rounds": 2},
    "method": {"name": "fedwca"},
    "run": {"seed": 0},
}


def make_line(number: int, clients: list[str]) -> dict[str, Any]:
    """Results of a round, different for each client."""
    scores = {
        c: {
            "domain": f"d{k % 2}",
            "accuracy": (k + number) / 10,
            "correct": k + number,
            "total": 10,
            "confidence": 0.5 + k / 100,
        }
        for k, c in enumerate(clients)
    }
    line = {
        "round": number,
        "accuracy": {
            "mean": fmean(s["accuracy"] for s in scores.values()),
            "domains": {"d0": 0.1 + number / 3, "d1": 0.7},
        },
        "clients": scores,
        "server": {},
    }
    if number:
        shares = {f"v/{c}": [1 / (k + 2), 1 - 1 / (k + 2)] for k, c in enumerate(clients)}
        line["server"] = {**{f"cluster_of/{c}": k % 2 for k, c in enumerate(clients)}, **shares}
        line |= {"bytes_down": 10**9 + number, "bytes_up": 7, "seconds": 0.125 * number}
        line["health"] = {
            c: {"loss_ce": 1 / (k + 3), "matched": k / 7, "confidence": 0.3, "alpha": [0.2, 0.8]}
            for k, c in enumerate(clients)
        }
    return line


def run_folder(path: Path, clients: list[str], rounds: int = 2) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"settings": SETTINGS}))
    lines = [make_line(number, clients) for number in range(rounds + 1)]
    (path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def written(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    return events


def expected(clients: list[str], rounds: int = 2) -> dict[str, list[tuple[int, float]]]:
    curves: dict[str, list[tuple[int, float]]] = {}

    def put(tag: str, number: int, value: float) -> None:
        curves.setdefault(tag, []).append((number, float(np.float32(value))))

    for line in (make_line(number, clients) for number in range(rounds + 1)):
        n = line["round"]
        put("accuracy/mean", n, line["accuracy"]["mean"])
        for domain, accuracy in line["accuracy"]["domains"].items():
            put(f"accuracy by domain/{domain}", n, accuracy)
        for cost in ("bytes_down", "bytes_up", "seconds"):
            if cost in line:
                put(f"cost/{cost}", n, line[cost])
        scores, health = line["clients"], line.get("health", {})
        put("mean over clients/confidence", n, fmean(s["confidence"] for s in scores.values()))
        for name in ("loss_ce", "matched", "confidence") if health else ():
            shown = "init_confidence" if name == "confidence" else name
            put(f"mean over clients/{shown}", n, fmean(h[name] for h in health.values()))
            for client, found in health.items():
                put(f"{shown} by client/{escape_unprintable(client)}", n, found[name])
        for client, score in scores.items():
            put(f"accuracy by client/{escape_unprintable(client)}", n, score["accuracy"])
            put(f"confidence by client/{escape_unprintable(client)}", n, score["confidence"])
            for c, share in enumerate(line["server"].get(f"v/{client}", [])):
                put(f"weights of {escape_unprintable(client)}/{c}", n, share)
    return curves


@pytest.mark.parametrize(
    "clients", [["dim/0", "dim/1", "noisy/0"], HOSTILE], ids=["usual", "hostile"]
)
def test_curves_are_the_results_to_the_last_bit(tmp_path: Path, clients: list[str]) -> None:
    run = run_folder(tmp_path / "run", clients)
    events = written(write_events(read_run(run), tmp_path / "out").parent)
    found = {
        tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }
    assert found == expected(clients)


def test_event_times_are_those_of_the_run(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", ["a"])
    begun = (run / "config.json").stat().st_mtime
    events = written(write_events(read_run(run), tmp_path / "out").parent)
    times = [e.wall_time for e in events.Scalars("accuracy/mean")]
    assert times == [begun, begun + 0.125, begun + 0.375]


def test_weights_are_an_image_for_each_round(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", HOSTILE)
    events = written(write_events(read_run(run), tmp_path / "out").parent)
    pictures = events.Images("cluster weights by round")
    assert [p.step for p in pictures] == [0, 1]
    with Image.open(io.BytesIO(pictures[0].encoded_image_string)) as image:
        assert (image.width, image.height) == (pictures[0].width, pictures[0].height)
        shown = {color for _, color in image.convert("RGB").getcolors(1 << 20) or ()}
    weights = {w for k in range(len(HOSTILE)) for w in (1 / (k + 2), 1 - 1 / (k + 2))}
    assert {tuple(map(int, viridis(weight, bytes=True)[:3])) for weight in weights} <= shown


def test_clients_with_fewer_clusters_or_no_weights_have_a_row_too(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", ["a", "b"])
    text = (run / "results.jsonl").read_text().replace('"v/a": [0.5, 0.5], ', "", 1)
    (run / "results.jsonl").write_text(text.replace('"v/a": [0.5, 0.5]', '"v/a": [1.0]'))
    events = written(write_events(read_run(run), tmp_path / "out").parent)
    first, second = events.Images("cluster weights by round")
    assert (first.width, first.height) == (second.width, second.height)


def png(tone: int) -> str:
    stream = io.BytesIO()
    Image.new("RGB", (4, 4), (tone, 0, 0)).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def test_examples_are_one_strip_for_each_client(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", ["<b>", "c"])
    kept = {"size": 4, "clients": {"<b>": [png(10), png(200)], "c": []}}
    (run / "examples.json").write_text(json.dumps(kept))
    events = written(write_events(read_run(run), tmp_path / "out").parent)
    assert [t for t in events.Tags()["images"] if t.startswith("examples")] == ["examples/<b>"]
    (strip,) = events.Images("examples/<b>")
    with Image.open(io.BytesIO(strip.encoded_image_string)) as image:
        assert image.size == (8, 4)
        assert [image.getpixel((x, 1)) for x in (1, 6)] == [(10, 0, 0), (200, 0, 0)]
    (run / "examples.json").write_text('{"size": 4, "clients": {"c": ["aGVsbG8="]}}')
    with pytest.raises(UserError, match=run.name):
        write_events(read_run(run), tmp_path / "out")


def test_a_second_event_file_replaces_the_first(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", ["a"], rounds=1)
    first = write_events(read_run(run), tmp_path / "out")
    content = first.read_bytes()
    assert write_events(read_run(run), tmp_path / "out").read_bytes() == content
    with (run / "results.jsonl").open("a") as file:
        file.write(json.dumps(make_line(2, ["a"])) + "\n")
    write_events(read_run(run), tmp_path / "out")
    assert [f.name for f in (tmp_path / "out").iterdir()] == [EVENTS]
    assert len(written(tmp_path / "out").Scalars("accuracy/mean")) == 3


def test_clients_without_labels_have_no_accuracy(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", ["a"], rounds=1)
    lines = [json.loads(text) for text in (run / "results.jsonl").read_text().splitlines()]
    for line in lines:
        line["accuracy"] = {"mean": None, "domains": {}}
        line["clients"]["a"].update(accuracy=None, correct=0, total=0)
    (run / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tags = written(write_events(read_run(run), tmp_path / "out").parent).Tags()["scalars"]
    assert not any(tag.startswith("accuracy") for tag in tags)
    assert "mean over clients/confidence" in tags


def test_corrupt_results_write_no_events(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", ["a"])
    (run / "results.jsonl").write_text('{"round": 0, "accuracy": {"mean": 0.1}}\n')
    with pytest.raises(UserError, match=run.name):
        write_events(read_run(run), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_torch_is_never_loaded(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", ["a"])
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from fedwca.report.runs import read_run\n"
        "from fedwca.report.tensorboard import write_events\n"
        "write_events(read_run(Path(sys.argv[1])), Path(sys.argv[1]) / 'tensorboard')\n"
        "assert not {'torch', 'tensorflow'} & {*sys.modules}\n"
    )
    subprocess.run([sys.executable, "-c", script, str(run)], check=True)
    assert (run / "tensorboard" / EVENTS).is_file()
