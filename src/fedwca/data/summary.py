"""Summarize a benchmark: counts per domain, and the command that runs on it."""

import shlex
from pathlib import Path

import numpy as np

from fedwca.data.images import UNLABELED
from fedwca.data.types import Benchmark, Domain

__all__ = ["next_command", "summarize"]


def summarize(benchmark: Benchmark) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table: a row per domain, and one for all."""
    header = ["domain", "images", "labeled", "classes", "smallest class", "size", "broken"]
    rows = [_row(name, domain, benchmark) for name, domain in benchmark.domains.items()]
    images, labeled, broken = (
        sum(_counts(domain)[column] for domain in benchmark.domains.values()) for column in range(3)
    )
    return header, [*rows, ["all", f"{images:,}", f"{labeled:,}", "", "", "", str(broken)]]


def _counts(domain: Domain) -> tuple[int, int, int]:
    return len(domain), int((domain.labels != UNLABELED).sum()), len(domain.broken)


def _row(name: str, domain: Domain, benchmark: Benchmark) -> list[str]:
    images, labeled, broken = _counts(domain)
    per_class = np.bincount(
        domain.labels[domain.labels != UNLABELED], minlength=len(benchmark.classes)
    )
    classes = smallest = "–"
    if labeled:
        classes = f"{np.count_nonzero(per_class)} of {len(benchmark.classes)}"
        rarest = int(per_class.argmin())
        smallest = f"{per_class[rarest]:,} {benchmark.classes[rarest]}"
    return [name, f"{images:,}", f"{labeled:,}", classes, smallest, _sizes(domain), str(broken)]


def _sizes(domain: Domain) -> str:
    """Return width × height before resizing, as ranges where they differ."""
    sides = [
        str(least) if least == most else f"{least}–{most}"
        for least, most in zip(domain.smallest, domain.largest, strict=True)
    ]
    return "×".join(sides)


def next_command(benchmark: Benchmark, path: Path | None) -> str:
    """Return the command that runs on this data, or what the data still need."""
    data = f"fedwca run --set data.benchmark={benchmark.name}"
    if path is not None:
        data += f" --set data.path={shlex.quote(str(path))}"
    counts = {name: _count_classes(domain) for name, domain in benchmark.domains.items()}
    source = max(counts, key=lambda name: counts[name])
    if counts[source] < 2:
        model = "--set source.weights=MODEL.safetensors --set data.classes=NAME,NAME,…"
        return f"Run on it: {data} {model}"
    if len(counts) < 2:
        return "To run on it, add at least one more domain: one is the source, others are clients."
    weights = " --set model.weights=IMAGENET.safetensors" if benchmark.transform.crop else ""
    return f"Run on it: {data} --set data.source={shlex.quote(source)}{weights}"


def _count_classes(domain: Domain) -> int:
    """Return how many classes a domain has images of."""
    return len({*domain.labels.tolist()} - {UNLABELED})
