"""Event files, read back by TensorBoard's own reader, against the run's results."""

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
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedwca.errors import UserError
from fedwca.notes import written_out
from fedwca.report.heat_map import colour, heat_map
from fedwca.report.runs import read_run
from fedwca.report.tensorboard import EVENTS, write_events

HOSTILE = ["<script>alert(1)</script>", "a\nb", "\u202eabc", "x" * 300, "cam 📷/'\"", "\\n", "mean"]
SETTINGS = {
    "data": {"benchmark": "npz", "source": "clean"},
    "training": {"batch_norm": "blend", "rounds": 2},
    "method": {"name": "fedwca"},
    "run": {"seed": 0},
}


def line(number: int, clients: list[str]) -> dict[str, Any]:
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
    told = {
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
        told["server"] = {**{f"cluster_of/{c}": k % 2 for k, c in enumerate(clients)}, **shares}
        told |= {"bytes_down": 10**9 + number, "bytes_up": 7, "seconds": 0.125 * number}
        told["health"] = {
            c: {"loss_ce": 1 / (k + 3), "matched": k / 7, "confidence": 0.3, "alpha": [0.2, 0.8]}
            for k, c in enumerate(clients)
        }
    return told


def run_folder(path: Path, clients: list[str], rounds: int = 2) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"settings": SETTINGS}))
    lines = [line(number, clients) for number in range(rounds + 1)]
    (path / "results.jsonl").write_text("".join(json.dumps(told) + "\n" for told in lines))
    return path


def written(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    return events


def expected(clients: list[str], rounds: int = 2) -> dict[str, list[tuple[int, float]]]:
    curves: dict[str, list[tuple[int, float]]] = {}

    def put(tag: str, number: int, value: float) -> None:
        curves.setdefault(tag, []).append((number, float(np.float32(value))))

    for told in (line(number, clients) for number in range(rounds + 1)):
        n = told["round"]
        put("accuracy/mean", n, told["accuracy"]["mean"])
        for domain, accuracy in told["accuracy"]["domains"].items():
            put(f"accuracy by domain/{domain}", n, accuracy)
        for cost in ("bytes_down", "bytes_up", "seconds"):
            if cost in told:
                put(f"cost/{cost}", n, told[cost])
        scores, health = told["clients"], told.get("health", {})
        put("mean over clients/confidence", n, fmean(s["confidence"] for s in scores.values()))
        for name in ("loss_ce", "matched", "confidence") if health else ():
            shown = "init_confidence" if name == "confidence" else name
            put(f"mean over clients/{shown}", n, fmean(h[name] for h in health.values()))
            for client, found in health.items():
                put(f"{shown} by client/{written_out(client)}", n, found[name])
        for client, score in scores.items():
            put(f"accuracy by client/{written_out(client)}", n, score["accuracy"])
            put(f"confidence by client/{written_out(client)}", n, score["confidence"])
            for c, share in enumerate(told["server"].get(f"v/{client}", [])):
                put(f"weights of {written_out(client)}/{c}", n, share)
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


def test_time_is_the_run_s_own(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", ["a"])
    begun = (run / "config.json").stat().st_mtime
    events = written(write_events(read_run(run), tmp_path / "out").parent)
    times = [e.wall_time for e in events.Scalars("accuracy/mean")]
    assert times == [begun, begun + 0.125, begun + 0.375]


def test_weights_are_a_picture_for_each_round(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", HOSTILE)
    events = written(write_events(read_run(run), tmp_path / "out").parent)
    pictures = events.Images("cluster weights by round")
    assert [p.step for p in pictures] == [1, 2]
    with Image.open(io.BytesIO(pictures[0].encoded_image_string)) as image:
        assert (image.width, image.height) == (pictures[0].width, pictures[0].height)
        # The last two columns of the last row are the last client's weights, 1/8 and 7/8.
        low, high = (image.getpixel((image.width - x, image.height - 10)) for x in (30, 10))
    assert (low, high) == (colour(1 / 8), colour(7 / 8))


def test_a_heat_map_goes_from_dark_to_light() -> None:
    assert colour(0) == (68, 1, 84)
    assert colour(1) == (253, 231, 37)
    assert colour(0.5) == (33, 145, 140)
    assert colour(0.125) == (64, 42, 112)  # half way from (68, 1, 84) to (59, 82, 139)
    short, long = heat_map({"a": [1.0]}), heat_map({"x" * 500: [1.0]})
    assert short.height == long.height == 40
    assert long.width < 400


def png(tone: int) -> str:
    stream = io.BytesIO()
    Image.new("RGB", (4, 4), (tone, 0, 0)).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def test_examples_are_strips_where_there_are_any(tmp_path: Path) -> None:
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
    with pytest.raises(UserError, match=r"examples\.json is damaged: delete it"):
        write_events(read_run(run), tmp_path / "out")


def test_a_second_writing_takes_the_first_one_s_place(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", ["a"], rounds=1)
    first = write_events(read_run(run), tmp_path / "out")
    content = first.read_bytes()
    assert write_events(read_run(run), tmp_path / "out").read_bytes() == content
    with (run / "results.jsonl").open("a") as file:
        file.write(json.dumps(line(2, ["a"])) + "\n")
    write_events(read_run(run), tmp_path / "out")
    assert [f.name for f in (tmp_path / "out").iterdir()] == [EVENTS]
    assert len(written(tmp_path / "out").Scalars("accuracy/mean")) == 3


def test_clients_without_labels_have_no_accuracy(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", ["a"], rounds=1)
    lines = [json.loads(text) for text in (run / "results.jsonl").read_text().splitlines()]
    for told in lines:
        told["accuracy"] = {"mean": None, "domains": {}}
        told["clients"]["a"].update(accuracy=None, correct=0, total=0)
    (run / "results.jsonl").write_text("".join(json.dumps(told) + "\n" for told in lines))
    tags = written(write_events(read_run(run), tmp_path / "out").parent).Tags()["scalars"]
    assert not any(tag.startswith("accuracy") for tag in tags)
    assert "mean over clients/confidence" in tags


def test_damaged_results_are_said_in_a_sentence(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", ["a"])
    (run / "results.jsonl").write_text('{"round": 0, "accuracy": {"mean": 0.1}}\n')
    with pytest.raises(UserError, match="are damaged"):
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
