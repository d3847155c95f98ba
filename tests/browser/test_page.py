"""The report page and the page that follows a run, in a real browser."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedwca.report.page import WatchServer, report_page
from fedwca.report.runs import read_run
from tests.support.made_up_runs import HOSTILE, make_run

Opened = Callable[[str], Any]


def complaints(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser")]


def requests(browser: Any) -> list[str]:
    """All addresses that the browser asked for."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [request["request"]["url"] for request in asked]


def keys(browser: Any, *names: str) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    for name in names:
        ActionChains(browser).send_keys(getattr(Keys, name)).perform()


def texts(browser: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
    return list(browser.execute_script(script, selector))


def column(browser: Any, table: str, number: int) -> list[str]:
    return texts(browser, f"{table} tbody td:nth-child({number})")


def filled(browser: Any, table: str) -> list[str]:
    """The first column of a table, which is made when it is opened."""
    until = time.monotonic() + 10
    while not (shown := column(browser, table, 1)):
        assert time.monotonic() < until
        time.sleep(0.05)
    return shown


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path)


def test_one_run_opens_without_errors_or_network(run: Path, opened: Opened) -> None:
    browser = opened(report_page([read_run(run)]))
    assert complaints(browser) == []
    assert all(url.startswith(("file:", "data:", "about:")) for url in requests(browser))
    assert texts(browser, "h2") == [
        "Summary",
        "Final accuracy",
        "Clusters",
        "Cluster weights",
        "By round",
        "Pseudo-labels",
        "Bytes and seconds",
    ]
    described = (
        "return [...document.querySelectorAll('figure svg[role=img]')]"
        ".every((s) => s.getAttribute('aria-label').length > 10)"
    )
    assert browser.execute_script(described)
    assert len(texts(browser, "#clusters image")) == 32
    assert browser.execute_script(
        "return [...document.querySelectorAll('figure')].every((f) => f.querySelector('details'))"
    )


def test_the_slider_changes_the_heat_map_and_keys_move_it(run: Path, opened: Opened) -> None:
    browser = opened(report_page([read_run(run)]))
    lines = read_run(run).lines
    names = list(lines[-1]["clients"])

    def expected(number: int) -> list[str]:
        return [f"{v:.2f}" for name in names for v in lines[number]["server"][f"v/{name}"]]

    assert texts(browser, "#weights .cell") == expected(5)
    browser.execute_script("document.getElementById('round').focus()")
    keys(browser, "ARROW_LEFT")
    assert texts(browser, "#weights .cell") == expected(4)
    keys(browser, "HOME")
    assert texts(browser, "#weights .cell") == expected(2)
    assert texts(browser, "output")[0] == "r = 1 of 4"


def test_tables_open_and_sort_by_keyboard_alone(run: Path, opened: Opened) -> None:
    browser = opened(report_page([read_run(run)]))
    browser.execute_script("document.querySelector('#accuracy-by-client summary').focus()")
    keys(browser, "ENTER")
    table = "#accuracy-by-client"
    filled(browser, table)
    keys(browser, *["TAB"] * 7, "ENTER")  # past the region to "final"
    shown = [float(text.split()[0]) for text in column(browser, table, 6)]
    assert shown == sorted(shown)
    keys(browser, "ENTER")
    assert [float(t.split()[0]) for t in column(browser, table, 6)] == sorted(shown, reverse=True)
    state = browser.execute_script(
        "return document.activeElement.parentElement.getAttribute('aria-sort')"
    )
    assert state == "descending"


def test_everything_can_be_reached_by_tab(run: Path, opened: Opened) -> None:
    browser = opened(report_page([read_run(run)]))
    browser.execute_script("document.body.focus()")
    reached = set()
    for _ in range(80):
        keys(browser, "TAB")
        reached.add(
            browser.execute_script(
                "const it = document.activeElement; return it.tagName + (it.id || it.textContent)"
            )
        )
    assert {"BUTTONtheme", "INPUTround", "SELECTby"} <= reached


def test_plots_are_saved_as_svg_and_png(run: Path, opened: Opened) -> None:
    browser = opened(report_page([read_run(run)]))
    for kind in ("SVG", "PNG"):
        browser.execute_script(f"document.querySelector('#weights [aria-label$={kind}]').click()")
    saved = [browser.downloads / "weights.svg", browser.downloads / "weights.png"]
    until = time.monotonic() + 10
    while not all(path.exists() for path in saved) and time.monotonic() < until:
        time.sleep(0.1)
    text = saved[0].read_text(encoding="utf-8")
    assert "var(--" not in text
    assert 'xmlns="http://www.w3.org/2000/svg"' in text
    assert saved[1].read_bytes().startswith(b"\x89PNG")
    for path in saved:
        path.unlink()


def test_several_runs_side_by_side(tmp_path: Path, opened: Opened) -> None:
    runs = [make_run(tmp_path, method=m, seed=s) for m in ("fedwca", "fedavg") for s in range(3)]
    browser = opened(report_page([read_run(path) for path in runs]))
    assert complaints(browser) == []
    assert texts(browser, "h3") == [
        "Accuracy by domain and method",
        "Accuracy by round",
        "Accuracy, mean ± standard deviation over trials",
        "Is the best ahead by more than chance?",
    ]
    assert len(texts(browser, "#bars-0 rect title")) == 2 * 5  # four domains and their mean


@pytest.mark.parametrize("several", [False, True])
def test_hostile_names_do_no_harm(tmp_path: Path, opened: Opened, several: bool) -> None:
    runs = [make_run(tmp_path, names=HOSTILE, seed=seed) for seed in range(2 if several else 1)]
    browser = opened(report_page([read_run(path) for path in runs]))
    assert complaints(browser) == []
    assert browser.execute_script("return window.harmed") is None
    assert len(texts(browser, "main b, main script")) == (0 if several else 5)
    width = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(width) <= 0
    if not several:
        browser.execute_script("document.querySelector('#accuracy-by-client summary').click()")
        assert filled(browser, "#accuracy-by-client") == HOSTILE


def test_a_run_without_labels_and_one_without_rounds_are_shown(
    tmp_path: Path, opened: Opened
) -> None:
    bare = make_run(tmp_path / "a", labels=False, done=False)
    browser = opened(report_page([read_run(bare)]))
    assert complaints(browser) == []
    assert "accuracy: no labels" in browser.execute_script("return document.body.innerText")
    still = make_run(tmp_path / "b", method="source_only", rounds=0)
    browser = opened(report_page([read_run(still)], images=False))
    assert complaints(browser) == []
    both = [read_run(bare), read_run(still)]
    assert complaints(opened(report_page(both))) == []


def test_dark_phone_and_print(run: Path, opened: Opened) -> None:
    browser = opened(report_page([read_run(run)]))
    colour = "return getComputedStyle(document.body).backgroundColor"
    assert browser.execute_script(colour) == "rgb(255, 255, 255)"
    browser.execute_script("document.getElementById('theme').click()")
    assert browser.execute_script(colour) == "rgb(20, 23, 28)"
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True},
    )
    wide = "return document.documentElement.scrollWidth"
    assert browser.execute_script(wide) <= 360
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    sheet = browser.execute_cdp_cmd("Page.printToPDF", {})
    assert len(sheet["data"]) > 20_000


def test_a_large_run_is_small_on_disk(tmp_path: Path, opened: Opened) -> None:
    run = make_run(tmp_path, clients=32, rounds=100, clusters=6)
    text = report_page([read_run(run)])
    assert len(text.encode()) < 3_000_000
    assert complaints(opened(text)) == []


def test_a_page_follows_a_run(tmp_path: Path, browser: Any) -> None:
    run = make_run(tmp_path, rounds=4, done=False)
    results = run / "results.jsonl"
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(lines[:3]))
    server = WatchServer(lambda: [read_run(run)])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        browser.get(f"http://127.0.0.1:{server.server_address[1]}/")
        wait_for(browser, "2 / 4")
        browser.execute_script("document.querySelector('#bytes summary').click()")
        results.write_text("".join(lines))
        (run / "result.json").write_text(lines[-1])
        wait_for(browser, "4 / 4")
        wait_for(browser, "The run is done.")
        assert browser.execute_script("return document.querySelector('#bytes details').open")
        assert complaints(browser) == []
        home = f"http://127.0.0.1:{server.server_address[1]}/"
        assert all(url.startswith((home, "data:", "about:")) for url in requests(browser))
    finally:
        server.shutdown()
        server.server_close()


def wait_for(browser: Any, text: str, seconds: float = 15) -> None:
    until = time.monotonic() + seconds
    while text not in browser.execute_script("return document.body.innerText"):
        assert time.monotonic() < until, f"{text!r} never came"
        time.sleep(0.1)
