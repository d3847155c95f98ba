"""The state of a deployment, read from the files of the server or of a site."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedwca._support.files import read_optional_json
from fedwca._support.text import format_count
from fedwca.deploy.deployment_files import ServerSettings, SiteSettings
from fedwca.deploy.processes import is_listening
from fedwca.deploy.server import SITES
from fedwca.deploy.submission import Submission
from fedwca.experiments.config import resolve
from fedwca.report.runs import RunView, read_run

__all__ = [
    "SITE_COLUMNS",
    "describe_run",
    "describe_server",
    "describe_site",
    "describe_traffic",
    "last_run",
    "site_rows",
]

SITE_COLUMNS = [
    "site",
    "connected",
    "images",
    "cluster",
    "accuracy",
    "confidence",
    "last reply",
    "refused",
    "last problem",
]


def describe_server(server: ServerSettings) -> str:
    """Return one line: the server's address, its security, and whether it is up."""
    state = "up" if is_listening(server.local_host, server.port) else "down"
    security = "plaintext, no keys" if server.plaintext else "TLS and site keys"
    return f"server {server.address}:{server.port} ({security}): {state}"


def last_run(server: ServerSettings) -> tuple[RunView | None, dict[str, Any]]:
    """Return the run that was started last, if it has started, and the state of its sites."""
    submitted = Submission(server.folder).last
    if not submitted:
        return None, {}
    path = Path(submitted["runs"]) / resolve(submitted["settings"]).deployed_name
    if not (path / "config.json").is_file():
        return None, {}
    return read_run(path), read_optional_json(path / SITES)


def describe_run(server: ServerSettings, run: RunView) -> str:
    """Return one line: the run's name, its rounds and its state."""
    submission = Submission(server.folder)
    outcome = submission.outcome
    state = str(outcome.get("state", "not started"))
    if state == "running" and not submission.is_running():
        state = "interrupted"
    if state in ("stopped", "interrupted"):
        state += "; resume with `fedwca deploy run --resume`"
    if state == "failed":
        state = f"failed: {outcome.get('problem')}"
    return f"run {run.name}: {run.rounds} of {run.planned_rounds} rounds, {state}"


def describe_traffic(run: RunView) -> str:
    """Return one line: the bytes of all rounds and of the last one."""
    lines = [line for line in run.lines if "bytes_down" in line]
    if not lines:
        return "no finished round"
    down, up = (sum(line[f"bytes_{way}"] for line in lines) for way in ("down", "up"))
    last, rounds = lines[-1], format_count(len(lines), "round")
    return (
        f"bytes: {down:,} down and {up:,} up in {rounds}; "
        f"{last['bytes_down']:,} down and {last['bytes_up']:,} up in the last"
    )


def site_rows(
    server: ServerSettings, run: RunView | None, sites: dict[str, dict[str, Any]]
) -> list[list[str]]:
    """Return a row of `SITE_COLUMNS` for each site of the deployment."""
    scores = run.last.get("clients", {}) if run else {}
    clusters = run.clusters if run else {}
    return [
        _site_row(name, sites.get(name, {}), scores.get(name, {}), clusters.get(name, ""))
        for name in server.sites
    ]


def _site_row(
    name: str, facts: dict[str, Any], score: dict[str, Any], cluster: object
) -> list[str]:
    accuracy, confidence = score.get("accuracy"), score.get("confidence")
    last_reply = facts.get("answered", -1)
    connected = "yes" if facts.get("online") else "lost"
    return [
        name,
        connected if facts else "not yet",
        str(facts.get("images", "")),
        str(cluster),
        "" if accuracy is None else f"{100 * accuracy:.1f} %",
        "" if confidence is None else f"{confidence:.2f}",
        f"round {last_reply}" if last_reply >= 0 else "",
        str(facts.get("refused") or ""),
        str(facts.get("problem", "")),
    ]


def describe_site(site: SiteSettings) -> Iterator[str]:
    """Yield lines: the site's server, whether it can be reached, and the site's models."""
    state = "reachable" if is_listening(site.address, site.port) else "not reachable"
    yield f"site {site.site}, server {site.address}:{site.port}: {state}"
    models = sorted((site.folder / "runs").glob("*/model.safetensors"))
    for model in models:
        saved = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(model.stat().st_mtime))
        yield f"model of {saved}: {model}"
    if not models:
        yield "no model yet"
