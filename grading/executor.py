"""nbgrader's Execute, with the judgement taken out of the student's process.

Every cell runs in the student's kernel as usual. In place of a check cell's text the kernel gets an order to observe the
answer on hidden cases and to publish the facts; the judge, here, turns them into points; card and points are written into
the cell's outputs, where nbgrader's own SaveAutoGrades reads them. Nothing else that a cell prints or publishes counts.

A kernel that dies, does not come back or passes a limit of its sandbox costs one cell: a new one is started, the earlier
cells run again, and the rest is graded. What the machine could not do is no student's fault: :class:`NotGradable`.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from typing import Any

from jupyter_client.manager import KernelManager
from nbclient.client import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output
from nbgrader import utils
from nbgrader.preprocessors import Execute
from traitlets import Bool, Dict, Float, Unicode

from course_utils.observe import card, message, seal
from course_utils.observe.compare import Kind, Verdict
from course_utils.observe.plain import MIME, SCORE_MIME
from grading.judge import Judge, read_report
from grading.kernels.keeper import End
from grading.kernels.manager import StudentKernel
from grading.sandbox.settings import Sandbox

__all__ = ["LOOK", "NotGradable", "ObserveAndJudge"]

LOOK = "look at "  # so begin the lines of the log that a person should follow

_START_TRIES = 3
_PAUSE = 2.0  # seconds before the second try; twice as long before each further one
# The folder of a submission goes behind the installed packages: a file of it that is called numpy.py shadows nothing.
_PRELUDE = (
    "import os as _os, sys as _sys\n"
    "_sys.path[:] = [p for p in _sys.path if p not in ('', _os.getcwd())] + [_os.getcwd()]\n"
    "from course_utils.observe.seal import arm as _arm\n"
    "_arm()\n"
    "del _os, _sys, _arm"
)
_ORDER = "__import__('sys').audit({event!r}, {id!r}, {seed}, {nonce!r}, globals())"


# What a kernel's keeper ended it for: name, message, reason. With the settings of the sandbox, and ``limit`` in seconds.
_CAUSES = {
    "time": ("TimeIsUp", "no answer within {limit:g} seconds", "an endless loop, or far more work than asked"),
    "memory": ("OutOfMemory", "more than {memory} MiB of memory in use", "far more data at once than asked"),
    "processes": ("TooManyProcesses", "more than {processes} processes at once", "processes that start processes"),
    "disk": ("DiskFull", "more than {scratch} MiB of files", "far more data written than asked"),
    "flood": ("TooMuchOutput", "more output than the grading process can take", "a loop that prints or displays"),
}
# Causes that say nothing about the answer.
_MACHINE = {
    "wall": "the machine was so busy that a cell did not end in {patience:g} times its limit",
    "machine": "the machine ran out of memory",
    "start": "the kernel's process could not be started",
}


class NotGradable(RuntimeError):
    """This machine could not grade the submission now. No mark follows from it, least of all a 0; try again later."""


class ObserveAndJudge(Execute):
    """Execute a submitted notebook, and judge its exercises.

    ``timeout`` counts what a cell computed and slept, not what it waited for a processor (see ``observe.own_time``).

    Raises
    ------
    NotGradable
        If a kernel cannot be started, the machine runs out of memory, is far too busy, or cannot observe an exercise.
    """

    # A cell whose time is up ends its kernel: an interrupt may be caught, and then every later cell waits as well.
    interrupt_on_timeout = Bool(False).tag(config=True)
    error_on_timeout = Dict(None, allow_none=True).tag(config=True)
    skip_cells_with_tag = Unicode("\0")  # no tag: what a student has tagged runs here as it does in JupyterLab
    patience = Float(10.0, min=1, help="how many times its limit a cell may take on the wall").tag(config=True)

    def preprocess(
        self, nb: NotebookNode, resources: Any = None, km: KernelManager | None = None
    ) -> tuple[NotebookNode, ResourcesDict]:
        # A grader that has no solutions at hand brings the judge along.
        judge = resources["nbgrader"].get("judge") or Judge(resources["nbgrader"]["assignment"])
        NotebookClient.__init__(self, nb, km)
        self.reset_execution_trackers()
        self._check_assign_resources(resources)
        self._resources = resources
        self._session = contextlib.ExitStack()
        self._sandbox = Sandbox(parent=self)
        self._kernel: StudentKernel | None = None
        poison: set[int] = set()  # cells that a kernel did not survive: they are not run again
        try:
            self._start_kernel()
            for index, cell in enumerate(nb.cells):
                if cell.cell_type != "code":
                    continue
                name = cell.metadata.get("nbgrader", {}).get("grade_id") if utils.is_grade(cell) else None
                try:
                    if name in judge:
                        self._judge_cell(cell, index, name, judge)
                    else:
                        self._run(cell, index)
                except (DeadKernelError, CellTimeoutError) as error:
                    poison.add(index)
                    what = self._what_happened(error)
                    self.log.warning("cell %s: %s; going on in a new kernel", index, what[1])
                    if name in judge:
                        self._write(cell, judge.broken(name, *what))
                    else:
                        cell.outputs = [_error(what[1])]
                    self._replay(nb, index, poison)
        finally:
            self._kill()
        self.set_widgets_metadata()
        return nb, resources

    # ------------------------------------------------------------------------------------------ kernels
    def create_kernel_manager(self) -> KernelManager:
        """A kernel in a sandbox, whatever kernel the notebook names."""
        self.km = self._kernel = StudentKernel(
            self._sandbox, self.resources.get("metadata", {}).get("path") or ".", config=self.config, log=self.log
        )
        return self.km

    def _start_kernel(self) -> None:
        self.startup_timeout = self._sandbox.start_seconds
        for attempt in range(_START_TRIES):
            try:
                self._session.enter_context(self.setup_kernel())
                self.wait_for_reply(self.kc.kernel_info())
                self._key = self._seal()
                return
            except (RuntimeError, OSError, CellTimeoutError) as error:
                # An overloaded machine, not the student: the course's own code is all that has run.
                said = self._kernel.end() if self._kernel is not None else None
                self._kill()
                if attempt == _START_TRIES - 1:
                    raise NotGradable(f"no kernel could be started: {error} {said.said if said else ''}") from error
                time.sleep(_PAUSE * 2**attempt)

    def _seal(self) -> bytes:
        """Arm the seal, and take its key, before any code of the student's has run."""
        prelude = new_code_cell(_PRELUDE)
        self._run(prelude, 0, self._sandbox.start_seconds, keep_history=False)
        for output in prelude.outputs:
            if key := output.get("data", {}).get(seal.KEY_MIME):
                return bytes.fromhex(key)
        raise RuntimeError(f"the kernel could not be made ready: {prelude.outputs}")

    def _replay(self, nb: NotebookNode, upto: int, poison: set[int]) -> None:
        """A new kernel in the state of the old one: run the earlier cells again, without the checks."""
        self._kill()
        self._start_kernel()
        for index in range(upto):
            cell = nb.cells[index]
            if cell.cell_type != "code" or utils.is_grade(cell) or index in poison:
                continue
            try:
                self._run(new_code_cell(cell.source), index)
            except (DeadKernelError, CellTimeoutError) as error:
                # It survived the first time and not now. Do without it rather than for ever try again.
                self._what_happened(error)
                poison.add(index)
                self._replay(nb, upto, poison)
                return

    def _kill(self) -> None:
        """End the kernel whatever state it is in, and all that it has started; remove its files."""
        with contextlib.suppress(Exception):  # it may be gone already, and half of its files with it
            self._session.close()
        self.km = self.kc = None
        if self._kernel is not None:
            self._kernel.remove_files()

    def _run(self, cell: NotebookNode, index: int, seconds: float | None = None, keep_history: bool = True) -> None:
        """Execute one cell; nbclient would put it into the notebook at ``index``, the real one stays there."""
        kept = self.nb.cells[index]
        self._weight = 0
        self._limit = self.timeout if seconds is None else seconds
        self._kernel.limit(self._limit, self.patience)
        try:
            self.execute_cell(cell, index, store_history=keep_history)
        except CellTimeoutError:
            if not self._kernel.kept:
                raise
            # The cell is done, and what it sent did not come: too much for the connection, or for the machine.
            self._alive()
            cell.outputs = [_error("its output was too much to be sent")]
        finally:
            self.nb.cells[index] = kept
            self._kernel.limit(None)
        if self._weight > self._sandbox.output << 20:
            cell.outputs.append(new_output("stream", name="stderr", text="[the rest of the output was left out]\n"))

    def _alive(self) -> None:
        try:
            self.execute_cell(new_code_cell("pass"), 0)
        except CellTimeoutError as error:
            raise NotGradable("the kernel's messages do not arrive: the machine is too busy") from error

    def _get_timeout(self, cell: NotebookNode | None) -> float | None:
        """nbclient's limit on the wall; None where a keeper watches the kernel."""
        return None if self._kernel is not None and self._kernel.kept else super()._get_timeout(cell)

    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> NotebookNode | None:
        """Take an output; beyond the limit of one cell take no more, so that the memory here stays bounded."""
        if msg["msg_type"] != "status":
            self._weight += _weight(msg["content"])
            if self._weight > self._sandbox.output << 20:
                return None
        return super().process_message(msg, cell, cell_index)

    def _what_happened(self, error: Exception) -> tuple[str, str, str]:
        """Name, message and reason, as :meth:`Judge.broken` takes them.

        Raises NotGradable where it was the machine.
        """
        end = self._kernel.end()
        cause = end.cause if end is not None else "time" if isinstance(error, CellTimeoutError) else ""
        settings = {**self._sandbox.trait_values(), "limit": self._limit or 0, "patience": self.patience}
        if cause in _MACHINE:
            raise NotGradable(_MACHINE[cause].format_map(settings)) from error
        if cause in _CAUSES:
            return tuple(text.format_map(settings) for text in _CAUSES[cause])
        how = f" ({_status(end)})" if end is not None else ""
        return "KernelDied", f"the kernel died{how}", "the process crashed, called exit, or ran out of memory"

    # ------------------------------------------------------------------------------------------ checks
    def _judge_cell(self, cell: NotebookNode, index: int, name: str, judge: Judge) -> None:
        nonce = secrets.token_hex(16)
        order = new_code_cell(_ORDER.format(event=seal.ORDER, id=name, seed=judge.seed(name), nonce=nonce))
        usual = self.timeout
        # The observation ends itself in time; the kernel is ended only where that fails.
        self.timeout = max(usual, int(judge.seconds(name)) + 30)
        try:
            self._run(order, index)
        finally:
            self.timeout = usual
        cell.execution_count = order.execution_count
        reports = [
            report
            for output in order.outputs
            if output.get("output_type") == "display_data"
            and (report := read_report(output.get("data", {}).get(MIME), nonce, name, self._key)) is not None
        ]
        if len(reports) == 1:
            verdict = judge.verdict(name, reports[0])
        elif reports:
            detail = "something asked for an observation of its own"
            verdict = judge.broken(name, "TwoResults", "one check, several results", detail, suspect=True)
        else:
            failed = next((o for o in order.outputs if o.get("output_type") == "error"), None)
            what = f"{failed.ename}: {failed.evalue}"[:300] if failed else "the check did not report"
            detail = "something in the notebook keeps the check from running"
            verdict = judge.broken(name, "NoReport", what, detail, suspect=True)
        if verdict.kind is Kind.NOT_GRADABLE:
            # The machine's fault. Better no mark, and a person who looks, than a 0.
            raise NotGradable(f"{name} cannot be observed on this machine now: {verdict.detail}")
        for flag in verdict.flags:
            self.log.warning("%s%s: %s", LOOK, name, flag)
        self._write(cell, verdict)

    def _write(self, cell: NotebookNode, verdict: Verdict) -> None:
        """Card and points, as the only outputs of the cell."""
        data = {"text/html": card.html(verdict, hidden=True), "text/plain": message.text(verdict, hidden=True)}
        if verdict.score is not None:  # for the leaderboard
            data[SCORE_MIME] = {"exercise": verdict.exercise, "accuracy": round(verdict.score, 6)}
        cell.outputs = [
            new_output("display_data", data=data),
            new_output(
                "execute_result",
                data={"text/plain": repr(float(verdict.points))},
                execution_count=cell.execution_count,
            ),
        ]


def _error(text: str) -> NotebookNode:
    return new_output("error", ename="NotExecuted", evalue=text, traceback=[f"This cell was stopped: {text}."])


def _status(end: End) -> str:
    with contextlib.suppress(ValueError):
        if end.status < 0:
            return signal.Signals(-end.status).name
    return f"exit code {end.status}"


def _weight(content: Any) -> int:
    """About how many characters a message's content holds."""
    weight, rest = 0, [content]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            weight += sum(map(len, item))
            rest += item.values()
        elif isinstance(item, list):
            rest += item
        else:
            weight += len(item) if isinstance(item, str) else 8
    return weight
