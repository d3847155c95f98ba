"""How large the report page is and how long a real browser takes to draw it.

    python benchmarks/page.py        # needs Debian's chromium and chromium-driver, and selenium

Made-up runs of 32 clients and 100 rounds, and of others; from the call to the last plot drawn.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from selenium import webdriver

from fedwca.report.page import report_page
from fedwca.report.runs import read_run
from made_up_runs import make_run


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
                made = time.perf_counter() - started
                page = Path(name) / "page.html"
                page.write_text(text, encoding="utf-8")
                drawn = []
                for _ in range(5):
                    started = time.perf_counter()
                    driver.get(page.as_uri())  # comes back once the scripts have run
                    drawn.append(time.perf_counter() - started)
            print(
                f"{clients:4} clients, {rounds:4} rounds: {len(text.encode()) / 1e6:.2f} MB, made "
                f"in {made:.2f} s, drawn in {min(drawn):.2f} to {max(drawn):.2f} s"
            )
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
