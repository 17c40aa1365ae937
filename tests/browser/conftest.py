"""One JupyterLab and one browser for the whole layer: they take seconds to start."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.lab import Notebook, Server, served

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


# Playwright keeps an event loop in this thread until the session ends. Nothing that needs a loop of its own comes later:
# this layer is the last (tests/conftest.py).
@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = os.environ.get("COURSE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(
            "needs Chromium: `apt-get install chromium` (Debian), `brew install --cask chromium` (macOS), or name the "
            "program of a Chromium or Chrome in COURSE_BROWSER"
        )
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_playwright() as playwright:
        # Chromium's sandbox does not start for root.
        program_running = playwright.chromium.launch(executable_path=program, chromium_sandbox=not root)
        yield program_running
        program_running.close()


@pytest.fixture(scope="session")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture(scope="session")
def open_notebook(browser: Browser, server: Server) -> Callable[[str], Notebook]:
    return lambda path: Notebook(browser, server, path)
