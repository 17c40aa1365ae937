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
MEASURES = (Path(__file__).parent / "looks.js").read_text()
WIDTH, HEIGHT = 1280, 900
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


class Server:
    """A running JupyterLab.

    Attributes
    ----------
    folder : Path
        Where its notebooks lie.
    url, token : str
    """

    def __init__(self, process: subprocess.Popen[str], folder: Path, url: str, token: str) -> None:
        self.process, self.folder, self.url, self.token = process, folder, url, token

    def address(self, notebook: str) -> str:
        return f"{self.url}lab/tree/{notebook}?reset&token={self.token}"


@contextmanager
def served(home: Path, limit: float = 120, course: Path | None = None) -> Iterator[Server]:
    """Start JupyterLab as ``make lab`` does, on a free port and with settings of its own; it always ends.

    Parameters
    ----------
    home : Path
        An empty folder for the notebooks, the settings and the learner's progress.
    limit : float
        Seconds until it must answer.
    course : Path, optional
        An instructor's course: the server is started in its root, as formgrader asks. By default copies of the released
        notebooks are served.

    Raises
    ------
    RuntimeError
        If it does not start; with its last words.
    """
    folder, runtime, token = course or home / "notebooks", home / "runtime", secrets.token_hex(16)
    if course is None:
        shutil.copytree(ROOT / "notebooks", folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("JUPYTER", "NBGRADER"))},
        "PYTHONPATH": str(course or ROOT),
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
        process = subprocess.Popen(
            command, cwd=course or ROOT, env=environment, stdout=words, stderr=subprocess.STDOUT, text=True
        )
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
        What the browser's console has called an error.
    """

    def __init__(self, browser: Browser, server: Server, path: str) -> None:
        self.path = path
        self.complaints: list[str] = []
        self._browser = browser
        self.page: Page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce")
        self.page.set_default_timeout(30_000)
        self.page.on("console", self._listen)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(server.address(path))
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=120_000)
        self.page.evaluate("() => window.jupyterapp.commands.execute('application:activate-left-area').catch(() => 0)")
        self.page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
        self.wait_for_kernel()

    def _listen(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(f"{message.text} ({message.location.get('url', '')})")

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

    def run_all(self, limit: float) -> None:
        """Run all cells as the menu does. An error ends it early, but in a cell that may raise.

        Raises
        ------
        TimeoutError
            If the kernel is still busy after ``limit`` seconds.
        """
        until, rests = time.monotonic() + limit, 0
        self.js(
            "app.commands.execute('notebook:run-all-cells');"
        )  # its promise ends with the first error, even one allowed
        while rests < 80:  # a kernel rests between two cells too, and before the first one, but not for 20 seconds
            self.page.wait_for_timeout(250)
            resting = self.js("return panel.sessionContext.session?.kernel?.status === 'idle';")
            if resting and not self.not_run():
                return
            rests = rests + 1 if resting else 0
            if time.monotonic() > until:
                raise TimeoutError(f"{self.path} runs for more than {limit} s; cells not run: {self.not_run()}")

    def run(self, index: int, limit: float = 60) -> None:
        """Run one cell."""
        self.go_to(index)
        self.js(
            "window.hasRun = undefined; app.commands.execute('notebook:run-cell').then(() => { window.hasRun = true; });"
        )
        self.page.wait_for_function("() => window.hasRun", timeout=limit * 1000)

    def restart(self) -> None:
        """A new kernel, as the menu's "Restart Kernel and Clear Outputs" makes it."""
        self.js(
            "await panel.sessionContext.restartKernel(); await app.commands.execute('notebook:clear-all-cell-outputs');"
        )
        self.wait_for_kernel()

    def not_run(self) -> list[int]:
        """Code cells that Run All did not reach."""
        return self.js(
            "return panel.content.widgets.flatMap((cell, i) => cell.model.type === 'code' && "
            "cell.model.sharedModel.source.trim() && cell.model.executionCount === null ? [i] : []);"
        )

    def outputs(self) -> list[list[dict[str, Any]]]:
        return self.js(
            "return panel.content.widgets.map(c => c.model.type === 'code' ? c.model.outputs.toJSON() : []);"
        )

    def measure(self, expression: str) -> Any:
        """Evaluate an expression in which ``looks`` is what ``looks.js`` defines."""
        self.page.evaluate(f"() => {{ if (!window.looks) {{ {MEASURES} }} }}")
        return self.page.evaluate(f"() => {expression}")

    def cell(self, index: int) -> Locator:
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)

    def go_to(self, index: int) -> None:
        self.js("panel.content.activeCellIndex = argument; await panel.content.scrollToItem(argument, 'start');", index)

    def theme(self, name: str) -> None:
        self.js("await app.commands.execute('apputils:change-theme', {theme: argument});", THEMES[name])
        dark = "false" if name == "dark" else "true"
        self.page.wait_for_selector(f"body[data-jp-theme-light='{dark}']", state="attached")
        self.page.wait_for_timeout(500)  # until its style sheet is read and colours have faded over

    def photograph(self, name: str, selectors: dict[str, str]) -> None:
        """Keep a picture of the first thing of each selector, in its cell; a name ends in the selector's."""
        SCREENSHOTS.mkdir(exist_ok=True)
        for part, selector in selectors.items():
            things = self.page.locator(f".jp-Notebook .jp-Cell:has({selector})").first.locator(selector)
            if things.count():
                things.first.evaluate("thing => thing.scrollIntoView({block: 'center'})")
                self.page.wait_for_timeout(200)
                self.page.screenshot(path=SCREENSHOTS / f"{name}-{part}.png")

    def close(self) -> None:
        """End the kernel and close the page."""
        self.js("await panel.context.save(); await panel.sessionContext.shutdown();")
        self.page.close()
