"""Measure the size of the report page and how long a browser takes to draw it.

    python benchmarks/page.py        # needs Debian's chromium and chromium-driver, and selenium

Generated runs of 8 to 128 clients; the time ends when the last plot is drawn.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from selenium import webdriver

from fedwca.report.page import report_page
from fedwca.report.runs import read_run
from tests.support.made_up_runs import make_run


def browser() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    service = webdriver.ChromeService(executable_path="/usr/bin/chromedriver")
    return webdriver.Chrome(options=options, service=service)


def main() -> None:
    driver = browser()
    try:
        for clients, rounds in ((8, 10), (32, 100), (128, 100)):
            with tempfile.TemporaryDirectory() as name:
                run = make_run(Path(name), clients=clients, rounds=rounds, clusters=6)
                started = time.perf_counter()
                text = report_page([read_run(run)])
                written = time.perf_counter() - started
                page = Path(name) / "page.html"
                page.write_text(text, encoding="utf-8")
                drawn = []
                for _ in range(5):
                    started = time.perf_counter()
                    driver.get(page.as_uri())  # returns when the scripts have run
                    drawn.append(time.perf_counter() - started)
            print(
                f"{clients:4} clients, {rounds:4} rounds: {len(text.encode()) / 1e6:.2f} MB, "
                f"written in {written:.2f} s, drawn in {min(drawn):.2f} to {max(drawn):.2f} s"
            )
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
