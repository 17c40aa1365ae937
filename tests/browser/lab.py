"""JupyterLab for the tests: a server with folders of its own, and notebooks opened in a browser."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = Path(__file__).parent / "screenshots"
WIDTH, HEIGHT = 1280, 900
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}

# What the browser may complain of: a part of its message, and why it is no fault of the course.
ALLOWED = {}


class Server:
    """A running JupyterLab.

    Attributes
    ----------
    folder : Path
        Where its notebooks lie: copies of the released ones.
    url, token : str
    """

    def __init__(self, process: subprocess.Popen[str], folder: Path, url: str, token: str) -> None:
        self.process, self.folder, self.url, self.token = process, folder, url, token

    def address(self, notebook: str) -> str:
        return f"{self.url}lab/tree/{notebook}?reset&token={self.token}"


@contextmanager
def served(home: Path, limit: float = 120) -> Iterator[Server]:
    """Start JupyterLab as ``make lab`` does, on a free port and with settings of its own; it always ends.

    Parameters
    ----------
    home : Path
        An empty folder for the notebooks, the settings and the learner's progress.
    limit : float
        Seconds until it must answer.

    Raises
    ------
    RuntimeError
        If it does not start; with its last words.
    """
    folder, runtime, token = home / "notebooks", home / "runtime", secrets.token_hex(16)
    shutil.copytree(ROOT / "notebooks", folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("JUPYTER", "NBGRADER"))},
        "PYTHONPATH": str(ROOT),
        "COURSE_PROGRESS": str(home / "progress"),
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
    }
    notifications = home / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    notifications.parent.mkdir(parents=True)
    notifications.write_text('{"fetchNews": "false", "checkForUpdates": false}')  # else a question covers a corner
    command = [sys.executable, "-m", "jupyterlab", str(folder), "--no-browser", "--LabApp.news_url=None"]
    command += [f"--IdentityProvider.token={token}", "--ServerApp.port=0", "--LabApp.expose_app_in_browser=True"]
    command += ["--allow-root", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    log = home / "server.log"
    with log.open("w") as words:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=words, stderr=subprocess.STDOUT, text=True)
    try:
        yield Server(process, folder, _address(process, runtime, log, time.monotonic() + limit), token)
    finally:
        process.terminate()  # kernels are ended with it
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[str], runtime: Path, log: Path, until: float) -> str:
    """The address that the server itself has written down."""
    while time.monotonic() < until and process.poll() is None:
        for file in runtime.glob("jpserver-*.json"):
            try:
                return str(json.loads(file.read_text())["url"])
            except (ValueError, KeyError):  # it is being written
                break
        time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")


class Notebook:
    """A notebook that is open in a browser.

    Attributes
    ----------
    page : Page
    complaints : list of str
        What the browser's console has called an error, but for what is ``ALLOWED``.
    """

    def __init__(self, browser: Browser, server: Server, path: str) -> None:
        self.path = path
        self.complaints: list[str] = []
        self._browser = browser
        self.page: Page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce")
        self.page.set_default_timeout(60_000)
        self.page.on("console", self._listen)
        self.page.on("pageerror", lambda error: self._complain(str(error)))
        self.page.goto(server.address(path))
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=120_000)
        self.page.evaluate("() => window.jupyterapp.commands.execute('application:activate-left-area').catch(() => 0)")
        self.page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
        self.wait_for_kernel()

    def _listen(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._complain(f"{message.text} ({message.location.get('url', '')})")

    def _complain(self, text: str) -> None:
        if not any(part in text for part in ALLOWED):
            self.complaints.append(text)

    def js(self, body: str, argument: Any = None) -> Any:
        """Evaluate JavaScript with ``app``, ``panel`` (the notebook's) and ``argument`` at hand."""
        return self.page.evaluate(
            "async argument => { const app = window.jupyterapp, panel = app.shell.currentWidget;" + body + "}", argument
        )

    def wait_for_kernel(self, limit: float = 120) -> None:
        self.page.wait_for_function(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'",
            timeout=limit * 1000,
        )

    def run_all(self, limit: float) -> float:
        """Run all cells as the menu does; seconds until the last one has finished."""
        begun = time.monotonic()
        self.js("app.commands.execute('notebook:run-all-cells');")
        self.page.wait_for_function(
            "() => window.jupyterapp.shell.currentWidget.content.widgets.every(cell => cell.model.type !== 'code' ||"
            " !cell.model.sharedModel.source.trim() || cell.model.executionCount !== null)",
            timeout=limit * 1000,
            polling=500,
        )
        self.wait_for_kernel()
        return time.monotonic() - begun

    def outputs(self) -> list[list[dict[str, Any]]]:
        return self.js("return panel.content.widgets.map(c => c.model.type === 'code' ? c.model.outputs.toJSON() : []);")

    def cell(self, index: int) -> Locator:
        return self.page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{index}']")

    def theme(self, name: str) -> None:
        self.js("await app.commands.execute('apputils:change-theme', {theme: argument});", THEMES[name])
        dark = "false" if name == "dark" else "true"
        self.page.wait_for_selector(f"body[data-jp-theme-light='{dark}']", state="attached")

    def close(self) -> None:
        """End the kernel and close the page."""
        self.js("await panel.sessionContext.shutdown(); await panel.context.save().catch(() => 0);")
        self.page.close()
