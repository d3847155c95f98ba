"""Lists known vulnerabilities of what is installed; says so where nothing could be looked up.

    python tools/audit.py --tool PIP_AUDIT           asks PyPI, then OSV, through pip-audit
    python tools/audit.py --advisories FILE|FOLDER   offline, from OSV's records

OSV's records of all Python packages are one file that any machine with network can fetch:
https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip. Ends with 0 if nothing is known
against what is installed, 1 if something is, 2 if it could not be found out.
"""

import argparse
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

Json = dict[str, Any]


class Finding(NamedTuple):
    """Something that is known against an installed package."""

    package: str
    version: str
    id: str
    fixed: str

    def __str__(self) -> str:
        return f"{self.package} {self.version}: {self.id}, {self.fixed or 'no fix is known'}"


class Unknown(Exception):  # noqa: N818 (an outcome)
    """It could not be found out, and why."""


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    found = {plain(d.metadata["Name"]): d.version.partition("+")[0] for d in distributions()}
    return {name: version for name, version in found.items() if name != "fedwca"}


# --- offline --------------------------------------------------------------------------------------


def advisories(path: Path) -> Iterator[Json]:
    """OSV's records: JSON files in a folder, or in a zip."""
    if path.is_dir():
        for file in sorted(path.rglob("*.json")):
            yield json.loads(file.read_text(encoding="utf-8"))
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in sorted(n for n in archive.namelist() if n.endswith(".json")):
                yield json.loads(archive.read(name))
    else:
        raise Unknown(f"{path} is neither a folder nor a zip of OSV's records: see tools/audit.py")


def looked_up(path: Path, here: dict[str, str]) -> tuple[list[Finding], str]:
    """What the records say against the packages, and how new the newest record is."""
    found, newest = [], ""
    for record in advisories(path):
        newest = max(newest, str(record.get("modified", "")))
        if record.get("withdrawn"):
            continue
        for affected in record.get("affected", []):
            package = affected.get("package", {})
            name = plain(package.get("name", ""))
            if package.get("ecosystem") == "PyPI" and name in here and hit(affected, here[name]):
                fixed = ", ".join(f"fixed in {v}" for v in events(affected, "fixed"))
                found.append(Finding(name, here[name], record["id"], fixed))
    if not newest:
        raise Unknown(f"there is no record of OSV's in {path}: see tools/audit.py")
    return found, newest


def hit(affected: Json, version: str) -> bool:
    """Whether a version is named, or lies in one of the ranges."""
    if version in affected.get("versions", []):
        return True
    spans = [r for r in affected.get("ranges", []) if r.get("type") == "ECOSYSTEM"]
    return any(within(span.get("events", []), Version(version)) for span in spans)


def within(steps: list[dict[str, str]], version: Version) -> bool:
    """Events in the order of their versions: the last one that applies decides."""

    def key(step: dict[str, str]) -> Version:
        try:
            return Version(next(iter(step.values())))
        except InvalidVersion:
            return Version("0")

    inside = False
    for step in sorted(steps, key=key):
        if "introduced" in step and key(step) <= version:
            inside = True
        elif ("fixed" in step and key(step) <= version) or (
            "last_affected" in step and key(step) < version
        ):
            inside = False
    return inside


def events(affected: Json, kind: str) -> list[str]:
    spans = [r for r in affected.get("ranges", []) if r.get("type") == "ECOSYSTEM"]
    return [step[kind] for span in spans for step in span.get("events", []) if kind in step]


# --- through pip-audit ----------------------------------------------------------------------------


def asked(tool: str, here: dict[str, str]) -> tuple[list[Finding], list[str]]:
    """What PyPI, or OSV, says of the packages, and which of them it does not know."""
    for service in ("pypi", "osv"):
        rows = _ask(tool, service, here)
        told = [row for row in rows if "skip_reason" not in row]
        if told:
            found = [
                Finding(row["name"], row["version"], v["id"], _fixes(v))
                for row in told
                for v in row["vulns"]
            ]
            return found, [row["name"] for row in rows if "skip_reason" in row]
    raise Unknown(
        "neither PyPI's nor OSV's advisories can be reached from here: fetch OSV's file where "
        "there is network, and give it as make audit ADVISORIES=all.zip"
    )


def _fixes(vulnerability: Json) -> str:
    return ", ".join(f"fixed in {v}" for v in vulnerability.get("fix_versions", []))


def _ask(tool: str, service: str, here: dict[str, str]) -> list[Json]:
    pins = "".join(f"{name}=={version}\n" for name, version in sorted(here.items()))
    command = [tool, "-r", "/dev/stdin", "--no-deps", "--disable-pip", "-s", service, "-f", "json"]
    done = subprocess.run(command, input=pins, capture_output=True, text=True, timeout=900)
    try:
        rows: list[Json] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):  # it could not connect
        return []
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--tool", help="path of pip-audit")
    way.add_argument("--advisories", type=Path, help="OSV's records: a zip or a folder")
    options = parser.parse_args()
    here = installed()
    try:
        if options.tool:
            found, unknown = asked(options.tool, here)
            source = f"; nothing is said of {', '.join(unknown)}" if unknown else ""
        else:
            found, newest = looked_up(options.advisories, here)
            source = f", by records up to {newest[:10]}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        given = options.tool or options.advisories
        print(
            f"not audited: {given} is damaged or not what it should be ({error})", file=sys.stderr
        )
        return 2
    except Unknown as reason:
        print(f"not audited: {reason}", file=sys.stderr)
        return 2
    for finding in found:
        print(finding)
    print(f"{len(found)} known against {len(here)} packages{source}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
