"""`make audit`: what is known is listed, and what could not be found out is not called clean."""

import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

AUDIT = Path(__file__).parent.parent.parent / "tools" / "audit.py"


def _module() -> Any:
    spec = importlib.util.spec_from_file_location("audit", AUDIT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


audit = _module()


def record(id: str, name: str, **affected: Any) -> dict[str, Any]:
    package = {"package": {"ecosystem": "PyPI", "name": name}}
    return {"id": id, "modified": "2026-05-01T00:00:00Z", "affected": [{**package, **affected}]}


def span(*events: dict[str, str]) -> list[dict[str, Any]]:
    return [{"type": "ECOSYSTEM", "events": list(events)}]


RECORDS = [
    record("A-1", "Pillow", versions=["13.0.0"]),
    record("A-2", "pillow", ranges=span({"introduced": "0"}, {"fixed": "12.9"})),
    record("A-3", "pillow", ranges=span({"introduced": "12"}, {"fixed": "13.0.1"})),
    record("A-4", "pillow", ranges=span({"introduced": "0"}, {"last_affected": "13.0.0"})),
    record("A-5", "pillow", ranges=span({"introduced": "13.1"})),
    {**record("A-6", "pillow", versions=["13.0.0"]), "withdrawn": "2026-01-01T00:00:00Z"},
    record("A-7", "not-here", versions=["1.0"]),
]


def test_records_are_matched_by_version_and_by_range(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for content in RECORDS:
            archive.writestr(f"{content['id']}.json", json.dumps(content))
    found, newest = audit.looked_up(tmp_path / "all.zip", {"pillow": "13.0.0"})
    assert [(f.id, f.fixed) for f in found] == [
        ("A-1", ""),
        ("A-3", "fixed in 13.0.1"),
        ("A-4", ""),
    ]
    assert newest.startswith("2026-05-01")


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_no_records_are_no_clean_bill(tmp_path: Path, what: str) -> None:
    (tmp_path / "empty").mkdir()
    words = [sys.executable, str(AUDIT), "--advisories", str(tmp_path / what)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("not audited: ")


def tool(folder: Path, printed: object) -> str:
    """A pip-audit that always says the same."""
    path = folder / "pip-audit"
    path.write_text(f"#!{sys.executable}\nprint({json.dumps(printed)!r})\n")
    path.chmod(0o755)
    return str(path)


def test_a_source_that_knows_no_package_is_no_clean_bill(tmp_path: Path) -> None:
    skipped = {"dependencies": [{"name": "pillow", "skip_reason": "not found on PyPI"}]}
    with pytest.raises(audit.Unknown, match="can be reached from here"):
        audit.asked(tool(tmp_path, skipped), {"pillow": "13.0.0"})


def test_what_pip_audit_finds_is_listed_with_what_it_left_out(tmp_path: Path) -> None:
    vulnerable = {
        "name": "pillow",
        "version": "13.0.0",
        "vulns": [{"id": "A-1", "fix_versions": ["13.0.1"]}],
    }
    told = {"dependencies": [vulnerable, {"name": "torch", "skip_reason": "a local version"}]}
    found, unknown = audit.asked(tool(tmp_path, told), {"pillow": "13.0.0", "torch": "2.13.0"})
    assert [str(f) for f in found] == ["pillow 13.0.0: A-1, fixed in 13.0.1"]
    assert unknown == ["torch"]


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"affected": 3, "modified": "x"}'])
def test_damaged_records_are_no_finding(tmp_path: Path, content: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("a.json", content)
    words = [sys.executable, str(AUDIT), "--advisories", str(tmp_path / "all.zip")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("not audited: ")
    assert "Traceback" not in done.stderr


def test_a_tool_that_is_not_there_is_no_finding() -> None:
    words = [sys.executable, str(AUDIT), "--tool", "/nowhere/pip-audit"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr[:12]) == (2, "not audited:")
