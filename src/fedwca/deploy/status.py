"""What a deployment is doing, from the files of the server or of a site."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedwca.deploy.job import Jobs
from fedwca.deploy.kit import ServerKit, SiteKit
from fedwca.deploy.processes import is_open
from fedwca.deploy.server import SITES, deployed_name
from fedwca.experiments.config import resolve
from fedwca.files import read_optional
from fedwca.report.runs import RunView, read_run

__all__ = ["run_line", "server_lines", "site_lines", "site_rows"]

HEADER = [
    "site",
    "there",
    "images",
    "cluster",
    "accuracy",
    "confidence",
    "last answer",
    "refused",
    "last problem",
]


def server_lines(kit: ServerKit) -> Iterator[str]:
    """The server in a few words: is it up, and how is it secured."""
    up = is_open(kit.own_host, kit.port)
    how = "in plaintext, no keys" if kit.plaintext else "TLS and node keys"
    yield f"server {kit.address}:{kit.port} ({how}): {'up' if up else 'down'}"


def last_run(kit: ServerKit) -> tuple[RunView | None, dict[str, Any]]:
    """The run that was started last, if it has begun, and what is known of its sites."""
    job = Jobs(kit.folder).last
    if not isinstance(job.get("settings"), dict) or "runs" not in job:
        return None, {}
    path = Path(job["runs"]) / deployed_name(resolve(job["settings"]))
    if not (path / "config.json").is_file():
        return None, {}
    return read_run(path), read_optional(path / SITES)


def run_line(kit: ServerKit, view: RunView) -> str:
    """The run in a few words."""
    jobs = Jobs(kit.folder)
    outcome = jobs.outcome
    state = str(outcome.get("state", "not begun"))
    if state == "running" and not jobs.under_way():
        state = "cut short"
    if state in ("stopped", "cut short"):
        state += "; go on with `fedwca deploy run --resume`"
    if state == "failed":
        state = f"failed: {outcome.get('problem')}"
    planned = view.settings["training"]["rounds"]
    return f"run {view.name}: {view.rounds} of {planned} rounds, {state}"


def traffic_line(view: RunView) -> str:
    """All bytes so far, and those of the last round."""
    lines = [line for line in view.lines if "bytes_down" in line]
    if not lines:
        return "no round has ended yet"
    down, up = (sum(line[f"bytes_{way}"] for line in lines) for way in ("down", "up"))
    last = lines[-1]
    return (
        f"bytes: {down:,} down and {up:,} up in {len(lines)} round{'s'[: len(lines) > 1]}; "
        f"{last['bytes_down']:,} down and {last['bytes_up']:,} up in the last"
    )


def site_rows(kit: ServerKit, view: RunView | None, sites: dict[str, Any]) -> list[list[str]]:
    """A row for each site of the deployment, as `HEADER` says."""
    scores = view.last.get("clients", {}) if view else {}
    clusters = view.clusters if view else {}
    rows = []
    for name in kit.sites:
        facts, score = sites.get(name, {}), scores.get(name, {})
        accuracy, confidence = score.get("accuracy"), score.get("confidence")
        answered = facts.get("answered", -1)
        rows.append(
            [
                name,
                ("yes" if facts.get("online") else "lost") if facts else "not yet",
                str(facts.get("images", "")),
                str(clusters.get(name, "")),
                "" if accuracy is None else f"{100 * accuracy:.1f} %",
                "" if confidence is None else f"{confidence:.2f}",
                f"round {answered}" if answered >= 0 else "",
                str(facts.get("refused") or ""),
                str(facts.get("problem", "")),
            ]
        )
    return rows


def site_lines(kit: SiteKit) -> Iterator[str]:
    """A site in a few words: where it belongs, and which models it has."""
    reached = is_open(kit.address, kit.port)
    yield f"site {kit.site}, server {kit.address}:{kit.port}: {'' if reached else 'not '}reached"
    models = sorted((kit.folder / "runs").glob("*/model.safetensors"))
    for model in models:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(model.stat().st_mtime))
        yield f"model of {when}: {model}"
    if not models:
        yield "no model yet"
