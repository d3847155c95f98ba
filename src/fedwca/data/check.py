"""What a folder of images holds, at a glance."""

import shlex
from pathlib import Path

import numpy as np

from fedwca.data.domains import Benchmark, Domain
from fedwca.data.raw import UNLABELED

__all__ = ["next_step", "overview"]


def overview(benchmark: Benchmark) -> tuple[list[str], list[list[str]]]:
    """Header and rows of one table: a line for each domain, and one for all."""
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
    of_class = np.bincount(
        domain.labels[domain.labels != UNLABELED], minlength=len(benchmark.classes)
    )
    classes = f"{np.count_nonzero(of_class)} of {len(benchmark.classes)}" if labeled else "–"
    least = "–"
    if labeled:
        scarce = int(of_class.argmin())
        least = f"{of_class[scarce]:,} {benchmark.classes[scarce]}"
    return [name, f"{images:,}", f"{labeled:,}", classes, least, _sizes(domain), str(broken)]


def _sizes(domain: Domain) -> str:
    """Width × height before resizing; where they differ, the range of each."""
    sides = [
        str(least) if least == most else f"{least}–{most}"
        for least, most in zip(domain.smallest, domain.largest, strict=True)
    ]
    return "×".join(sides)


def next_step(benchmark: Benchmark, path: Path | None) -> str:
    """The command that runs on this data, or what it still needs."""
    where = "" if path is None else f" --set data.path={shlex.quote(str(path))}"
    known = {name: _known(domain) for name, domain in benchmark.domains.items()}
    source = max(known, key=lambda name: known[name])
    if known[source] < 2:
        model = " --set source.weights=MODEL.safetensors --set data.classes=NAME,NAME,…"
        return f"Run on it: fedwca run --set data.benchmark={benchmark.name}{where}{model}"
    if len(known) < 2:
        return "To run on it, add at least one more domain: one is the source, others are clients."
    weights = " --set model.weights=IMAGENET.safetensors" if benchmark.transform.crop else ""
    return (
        f"Run on it: fedwca run --set data.benchmark={benchmark.name}{where} "
        f"--set data.source={shlex.quote(source)}{weights}"
    )


def _known(domain: Domain) -> int:
    """How many classes a domain has images of."""
    return len({*domain.labels.tolist()} - {UNLABELED})
