"""Write run folders for the report: any size, any names, random results from a seed."""

import base64
import io
import json
import random
from pathlib import Path
from typing import Any

from PIL import Image

HOSTILE = [
    "<script>window.harmed = 1</script>",
    "\"quoted\" & 'single' </script><b>",
    "x" * 300,
    "\u202eright to left\u202c שלום عربي",
    "😀 emoji 👩‍🔬",
    "new\nline\ttab",
    "${jndi} {{title}} \\LaTeX{} _a_ | b %",
    "<img src=x onerror=window.harmed=1>",
    "constructor",
    "__proto__",
]


def make_run(
    root: Path,
    *,
    method: str = "fedwca",
    seed: int = 0,
    clients: int = 8,
    rounds: int = 5,
    clusters: int = 3,
    names: list[str] | None = None,
    labels: bool = True,
    done: bool = True,
) -> Path:
    """Write a run folder like a simulation's."""
    rng = random.Random(f"{method}{seed}")
    domains = ["photo", "printed", "street", "postal"]
    who = names or [f"{domains[k % 4]}/{k // 4}" for k in range(clients)]
    domain_of = {name: domains[k % 4] if names is None else name for k, name in enumerate(who)}
    folder = root / f"made_up-{method}-s{seed}"
    folder.mkdir(parents=True)
    _write(folder / "config.json", {"identity": {}, "settings": _settings(method, seed, rounds)})
    held = {n: {"domain": domain_of[n], "train": list(range(30)), "test": []} for n in who}
    _write(folder / "clients.json", {"classes": ["a", "b"], "clients": held})
    _write(folder / "examples.json", {"size": 8, "clients": {n: [_png(rng)] * 4 for n in who}})
    lines = [_line(rng, r, who, domain_of, clusters, method, labels) for r in range(rounds + 1)]
    with (folder / "results.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    if done:
        _write(folder / "result.json", lines[-1])
    return folder


def _settings(method: str, seed: int, rounds: int) -> dict[str, Any]:
    return {
        "data": {"benchmark": "made-up", "source": "clean"},
        "method": {"name": method},
        "training": {"rounds": rounds, "batch_norm": "blend"},
        "run": {"seed": seed},
    }


def _line(
    rng: random.Random,
    number: int,
    who: list[str],
    domain_of: dict[str, str],
    clusters: int,
    method: str,
    labels: bool,
) -> dict[str, Any]:
    scores = {}
    for name in who:
        right = rng.randint(10 + min(number, 20), 35)
        scores[name] = {
            "domain": domain_of[name],
            "accuracy": right / 40 if labels else None,
            "correct": right if labels else 0,
            "total": 40 if labels else 0,
            "confidence": rng.random(),
        }
    by_domain: dict[str, list[float]] = {}
    for score in scores.values():
        if labels:
            by_domain.setdefault(score["domain"], []).append(score["accuracy"])
    means = {domain: sum(values) / len(values) for domain, values in by_domain.items()}
    line: dict[str, Any] = {
        "round": number,
        "accuracy": {
            "mean": sum(s["accuracy"] for s in scores.values()) / len(who) if labels else None,
            "domains": means,
        },
        "clients": scores,
        "server": {},
    }
    if number:
        line |= {"bytes_down": 4_000_000, "bytes_up": 1_000_000, "seconds": 1.5 + rng.random()}
        line["health"] = {name: _health(rng, number, clusters) for name in who}
        if method == "fedwca":
            line["server"] = {f"cluster_of/{n}": k % clusters for k, n in enumerate(who)}
    if number > 1 and method == "fedwca":
        line["server"] |= {f"v/{name}": _shares(rng, clusters) for name in who}
    return line


def _health(rng: random.Random, number: int, clusters: int) -> dict[str, Any]:
    health: dict[str, Any] = {"confidence": rng.random(), "loss_im": -rng.random(), "loss_ce": 0.5}
    if number > 1:
        health |= {"matched": rng.random(), "beta_scores": [2 + rng.random(), 2.5]}
        health |= {"alpha": _shares(rng, clusters), "beta": _shares(rng, 2)}
    return health


def _shares(rng: random.Random, count: int) -> list[float]:
    parts = [rng.random() + 1e-3 for _ in range(count)]
    return [part / sum(parts) for part in parts]


def _png(rng: random.Random) -> str:
    file = io.BytesIO()
    color = (rng.randrange(256), rng.randrange(256), rng.randrange(256))
    Image.new("RGB", (8, 8), color).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
