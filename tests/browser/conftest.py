"""A headless Chromium; tests skip where it is not installed."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not (BROWSER and DRIVER):
        pytest.skip("no Chromium: install Debian's chromium and chromium-driver")
    selenium = pytest.importorskip("selenium.webdriver", reason="no selenium: pip install selenium")
    options = selenium.ChromeOptions()
    options.binary_location = BROWSER
    home = tmp_path_factory.mktemp("chromium")
    for word in (
        "--headless=new",
        "--no-sandbox",  # CI is root in a container
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        f"--user-data-dir={home}",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    downloads = {
        "download.default_directory": str(home),
        "profile.default_content_setting_values.automatic_downloads": 1,  # more than one at a time
    }
    options.add_experimental_option("prefs", downloads)
    service = selenium.ChromeService(executable_path=DRIVER)
    driver = selenium.Chrome(options=options, service=service)
    driver.downloads = home
    driver.set_page_load_timeout(30)
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: Any) -> Any:
    """The browser with empty logs, in a wide and light window."""
    chromium.get("about:blank")
    for name in ("browser", "performance"):
        chromium.get_log(name)
    chromium.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "light"}]},
    )
    chromium.set_window_size(1200, 900)
    return chromium


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Callable[[str], Any]:
    """Open the text of a page as a file."""

    def show(text: str) -> Any:
        page = tmp_path / "page.html"
        page.write_text(text, encoding="utf-8")
        browser.get(page.as_uri())
        return browser

    return show
