"""The page holds the numbers of the run folder, and nothing harmful."""

import json
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedwca._support.errors import UserError
from fedwca.report.page import WatchServer, page_data, report_page
from fedwca.report.runs import read_run
from tests.support.made_up_runs import HOSTILE, make_run


def four(value: float) -> float:
    return float(f"{value:.4g}")


def embedded(page: str) -> dict[str, Any]:
    start = page.index('id="data">') + len('id="data">')
    return dict(json.loads(page[start : page.index("</script>", start)]))


def test_the_page_holds_the_run_s_own_numbers(tmp_path: Path) -> None:
    view = read_run(make_run(tmp_path))
    data = embedded(report_page([view]))
    lines = view.lines
    assert data["rounds"] == [0, 1, 2, 3, 4, 5]
    name = "photo/1"
    assert data["series"]["accuracy"][name] == [four(x["clients"][name]["accuracy"]) for x in lines]
    matched = [x.get("health", {}).get(name, {}).get("matched") for x in lines]
    assert data["series"]["matched"][name] == [m if m is None else four(m) for m in matched]
    scores = [x.get("health", {}).get(name, {}).get("beta_scores") for x in lines]
    assert data["series"]["density"][name] == [s if s is None else four(s[0]) for s in scores]
    last = data["weights"]["rounds"][-1]
    assert last["round"] == 4
    assert last["values"][name] == [four(v) for v in lines[-1]["server"][f"v/{name}"]]
    assert data["costs"]["rounds"] == [1, 2, 3, 4, 5]
    assert data["costs"]["bytes_down"] == [4_000_000] * 5
    client = next(c for c in data["clients"] if c["name"] == name)
    assert client["images"] == 30
    assert client["cluster"] == lines[-1]["server"][f"cluster_of/{name}"]
    assert len(data["examples"][name]) == 4
    assert embedded(report_page([view], images=False))["examples"] == {}


def test_several_runs_have_means_spread_and_a_paired_test(tmp_path: Path) -> None:
    paths = [make_run(tmp_path, method=m, seed=s) for m in ("fedwca", "fedavg") for s in range(3)]
    views = [read_run(path) for path in paths]
    (group,) = page_data(views)["groups"]
    ours, theirs = group["methods"]
    means = [view.accuracy for view in views[:3]]
    assert ours["mean"]["mean"] == four(sum(means) / 3)  # type: ignore[arg-type]
    assert ours["mean"]["count"] == 3
    assert ours["curve"][-1]["mean"] == ours["mean"]["mean"]
    (difference,) = group["differences"]
    best = max(ours, theirs, key=lambda method: method["mean"]["mean"])
    assert difference["best"] == best["name"]
    assert difference["pairs"] == 3
    assert difference["mean"] >= 0
    assert difference["low"] <= difference["mean"] <= difference["high"]


def test_names_are_never_markup(tmp_path: Path) -> None:
    names = [*HOSTILE, "{{script}}", "bad\udc80name"]
    page = report_page([read_run(make_run(tmp_path, names=names))])
    page.encode("utf-8")
    assert [client["name"] for client in embedded(page)["clients"]] == [*names[:-1], "bad?name"]
    assert "<img src=x" not in page
    assert "window.harmed = 1</script>" not in page
    assert page.count("</script>") == 2
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    run = make_run(tmp_path)
    server = WatchServer(lambda: [read_run(run)])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def ask(url: str, **headers: str) -> tuple[int, bytes, str]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=names), timeout=5) as reply:
            return reply.status, reply.read(), reply.headers.get("ETag", "")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), ""


def test_the_watch_server_serves_the_page_its_data_and_nothing_else(address: str) -> None:
    status, page, _ = ask(f"{address}/")
    assert status == 200
    assert b"connect-src 'self'" in page
    status, data, tag = ask(f"{address}/data.json")
    assert json.loads(data)["name"] == "made_up-fedwca-s0"
    assert ask(f"{address}/data.json", If_None_Match=tag) == (304, b"", "")
    for path in ("/config.json", "/../config.json", "//etc/passwd", "/data.json?x"):
        assert ask(address + path)[0] == 404


def test_a_deleted_run_is_reported(tmp_path: Path, address: str) -> None:
    shutil.rmtree(tmp_path / "made_up-fedwca-s0")
    status, said, _ = ask(f"{address}/data.json")
    assert status == 503
    assert b"made_up-fedwca-s0" in said


def test_a_foreign_host_name_is_rejected(address: str) -> None:
    assert ask(f"{address}/data.json", Host="evil.example:80")[0] == 403
    port = address.rpartition(":")[2]
    assert ask(f"{address}/data.json", Host=f"localhost:{port}")[0] == 200


def test_unparsable_optional_files_are_ignored_and_others_corrupt(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "examples.json").write_text("junk")
    assert embedded(report_page([read_run(run)]))["examples"] == {}
    (run / "clients.json").write_text('{"clients": {"photo/0": 5}}')
    with pytest.raises(UserError, match=run.name):
        report_page([read_run(run)])


def test_nan_is_shown_as_unknown(tmp_path: Path) -> None:
    run = make_run(tmp_path, done=False)
    results = run / "results.jsonl"
    results.write_text(results.read_text().replace('"seconds": 1.', '"seconds": NaN, "x": 1.', 1))
    assert embedded(report_page([read_run(run)]))["costs"]["seconds"][0] is None
