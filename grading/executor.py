"""nbgrader's Execute, with the judgement taken out of the student's process.

Every cell runs in the student's kernel as usual. In place of a check cell's text the kernel gets an order to observe the
answer on hidden cases and to publish the facts; the judge, here, turns them into points; card and points are written into
the cell's outputs, where nbgrader's own SaveAutoGrades reads them. Nothing else that a cell prints or publishes counts.

A kernel that dies or does not come back costs one cell: a new one is started, the earlier cells run again, and the
rest is graded.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

from jupyter_client.manager import KernelManager
from nbclient.client import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output
from nbgrader import utils
from nbgrader.preprocessors import Execute
from traitlets import Bool, Dict

from course_utils.observe import card, message, seal
from course_utils.observe.compare import Kind, Verdict
from course_utils.observe.plain import MIME, SCORE_MIME
from grading.judge import Judge, read_report

__all__ = ["ObserveAndJudge"]

_START_TRIES = 3
# The folder of a submission goes behind the installed packages: a file of it that is called numpy.py shadows nothing.
_PRELUDE = (
    "import os as _os, sys as _sys\n"
    "_sys.path[:] = [p for p in _sys.path if p not in ('', _os.getcwd())] + [_os.getcwd()]\n"
    "from course_utils.observe.seal import arm as _arm\n"
    "_arm()\n"
    "del _os, _sys, _arm"
)
_ORDER = "__import__('sys').audit({event!r}, {id!r}, {seed}, {nonce!r}, globals())"


class ObserveAndJudge(Execute):
    """Execute a submitted notebook, and judge its exercises."""

    # A cell whose time is up ends its kernel: an interrupt may be caught, and then every later cell waits as well.
    interrupt_on_timeout = Bool(False).tag(config=True)
    error_on_timeout = Dict(None, allow_none=True).tag(config=True)

    def preprocess(
        self, nb: NotebookNode, resources: Any = None, km: KernelManager | None = None
    ) -> tuple[NotebookNode, ResourcesDict]:
        judge = Judge(resources["nbgrader"]["assignment"])
        NotebookClient.__init__(self, nb, km)
        self.reset_execution_trackers()
        self._check_assign_resources(resources)
        self._resources = resources
        self._session = contextlib.ExitStack()
        poison: set[int] = set()  # cells that a kernel did not survive: they are not run again
        with self._session:
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
        self.set_widgets_metadata()
        return nb, resources

    # ------------------------------------------------------------------------------------------ kernels
    def _start_kernel(self) -> None:
        for attempt in range(_START_TRIES):
            try:
                self._session.enter_context(self.setup_kernel())
                self.wait_for_reply(self.kc.kernel_info())
                self._key = self._seal()
                return
            except (RuntimeError, DeadKernelError, CellTimeoutError):
                # An overloaded machine, not the student: try again, and then let nbgrader say that this
                # submission could not be graded. It never becomes a 0.
                self._session.close()
                if attempt == _START_TRIES - 1:
                    raise

    def _seal(self) -> bytes:
        """Arm the seal, and take its key, before any code of the student's has run."""
        prelude = new_code_cell(_PRELUDE)
        self._run(prelude, 0, keep_history=False)
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
            except (DeadKernelError, CellTimeoutError):
                # It survived the first time and not now. Do without it rather than for ever try again.
                poison.add(index)
                self._replay(nb, upto, poison)
                return

    def _kill(self) -> None:
        """End the kernel whatever state it is in."""
        with contextlib.suppress(Exception):  # it may be gone already, and half of its files with it
            self._session.close()

    def _run(self, cell: NotebookNode, index: int, keep_history: bool = True) -> None:
        """Execute one cell; nbclient would put it into the notebook at ``index``, the real one stays there."""
        kept = self.nb.cells[index]
        try:
            self.execute_cell(cell, index, store_history=keep_history)
        finally:
            self.nb.cells[index] = kept

    def _what_happened(self, error: Exception) -> tuple[str, str, str]:
        """Name, message and reason, as :meth:`Judge.broken` takes them."""
        if isinstance(error, CellTimeoutError):
            return (
                "TimeIsUp",
                f"no answer within {self.timeout} seconds",
                "an endless loop, or far more work than asked",
            )
        return "KernelDied", "the kernel died", "the process crashed, called exit, or ran out of memory"

    # ------------------------------------------------------------------------------------------ checks
    def _judge_cell(self, cell: NotebookNode, index: int, name: str, judge: Judge) -> None:
        nonce = secrets.token_hex(16)
        order = new_code_cell(_ORDER.format(event=seal.ORDER, id=name, seed=judge.seed(name), nonce=nonce))
        patience = self.timeout
        # The observation ends itself in time; the kernel is ended only where that fails.
        self.timeout = max(patience, int(judge.seconds(name)) + 30)
        try:
            self._run(order, index)
        finally:
            self.timeout = patience
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
            verdict = judge.broken(
                name, "TwoResults", "one check, several results", "something asked for an observation of its own"
            )
        else:
            failed = next((o for o in order.outputs if o.get("output_type") == "error"), None)
            what = f"{failed.ename}: {failed.evalue}"[:300] if failed else "the check did not report"
            verdict = judge.broken(name, "NoReport", what, "something in the notebook keeps the check from running")
            self.log.warning("%s: no report: %s", name, what)
        if verdict.kind is Kind.NOT_GRADABLE:
            # The machine's fault. Better no mark, and a person who looks, than a 0.
            raise RuntimeError(f"{name} cannot be graded on this machine now: {verdict.detail}")
        for flag in verdict.flags:
            self.log.warning("%s: %s", name, flag)
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
