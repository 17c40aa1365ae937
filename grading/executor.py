"""nbgrader's Execute, with the judgement taken out of the student's process.

Every cell runs in the student's kernel as usual. In place of a check cell's text the kernel gets an order to observe the
answer on hidden cases and to publish the facts; the judge, here, turns them into points; card and points are written into
the cell's outputs, where nbgrader's own SaveAutoGrades reads them. Nothing else that a cell prints or publishes counts.

A kernel that dies, does not come back or passes a limit of its sandbox costs one cell: a new one is started, the earlier
cells run again, and the rest is graded. What the machine could not do is no student's fault: :class:`NotGradable`.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import time
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager
from nbclient.client import NotebookClient
from nbclient.exceptions import CellExecutionComplete, CellTimeoutError, DeadKernelError
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
_PULSE = 10.0  # seconds that an empty cell may take
# Waits for the end of a kernel that an earlier cell has set a timer for. Leaves no name: an answer may lack that import.
_WAIT = "from time import sleep as _course_sleep\n_course_sleep(0.3)\ndel _course_sleep"
_PAUSE = 2.0  # seconds before the second try; twice as long before each further one
# The folder of a submission goes behind the installed packages: a file of it that is called numpy.py shadows nothing.
_PRELUDE = (
    "import os as _os, sys as _sys\n"
    "_sys.path[:] = [p for p in _sys.path if p not in ('', _os.getcwd())] + [_os.getcwd()]\n"
    "from course_utils.observe.seal import arm as _arm\n"
    "_arm()\n"
    "del _os, _sys, _arm"
)
# Without a name that a notebook may have taken for something else, such as ``globals``.
_ORDER = "import sys as _course_sys\n_course_sys.audit({event!r}, {id!r}, {seed}, {nonce!r}, (lambda: 0).__globals__)"
_LACKING = "from course_utils.observe.processes import shortage as _shortage\nprint(_shortage())\ndel _shortage"

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


class _Doubtful(NotGradable):
    """The machine is short of something, or the notebook has used it up."""


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
        self._poison: set[int] = set()  # cells that a kernel did not survive: they are not run again
        self._survived: set[int] = set()  # cells after which a kernel was still alive some time later
        self._verdicts: dict[int, Verdict] = {}
        try:
            self._start_kernel()
            for index, cell in enumerate(nb.cells):
                if cell.cell_type == "code":
                    name = cell.metadata.get("nbgrader", {}).get("grade_id") if utils.is_grade(cell) else None
                    self._grade_cell(index, name if name in judge else None, judge)
        finally:
            self._kill()
        # Last of all: a message may still change an output of an earlier cell (``update_display_data``).
        for index, verdict in self._verdicts.items():
            self._write(nb.cells[index], verdict)
        self.set_widgets_metadata()
        return nb, resources

    def _grade_cell(self, index: int, name: str | None, judge: Judge) -> None:
        """Run one cell, or judge the exercise ``name``; what a kernel does not survive costs this cell alone."""
        cell = self.nb.cells[index]
        tries = 2
        while tries:
            try:
                if name is None:
                    self._run(cell, index)
                    _clean(cell)
                else:
                    self._verdicts[index] = self._judge(cell, index, name, judge)
                return
            except (DeadKernelError, CellTimeoutError, _Doubtful) as error:
                # What may be the machine's fault, or that of an earlier cell, gets a second try in a new kernel.
                doubtful = tries == 2 and isinstance(error, _Doubtful)
                what = ("", str(error), "") if doubtful else self._what_happened(error)
                self.log.warning("%s: %s; going on in a new kernel", self._label(index), what[1])
                if self._replay(index, patient=tries == 1 and what[0] == "KernelDied"):
                    continue  # an earlier cell was found guilty, and there are fewer of them with each round
                tries = tries - 1 if doubtful or what[0] == "KernelDied" else 0
        self._poison.add(index)
        if name is None:
            cell.outputs = [_error(what[1])]
        else:
            self._verdicts[index] = judge.broken(name, *what)

    def _label(self, index: int) -> str:
        """The cell's grade id, else its number from 1 on and the last grade id before it."""
        ids = [cell.metadata.get("nbgrader", {}).get("grade_id") for cell in self.nb.cells[: index + 1]]
        before = next((name for name in reversed(ids) if name), None)
        return ids[-1] or f"cell {index + 1}" + (f" (behind {before})" if before else "")

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

    def _replay(self, upto: int, patient: bool = False) -> bool:
        """A new kernel in the state of the old one: run the earlier cells again, without the checks.

        True where a cell was found that leaves a kernel dead or deaf behind: the fault was that one's. It may die a moment
        later, under the next cell's hands. So no cell is found guilty but after a pause behind each one before it; with
        ``patient`` it pauses at once. A cell that was passed in this way is not waited for again.
        """
        known = len(self._poison)
        if not self._replayed(upto, patient):
            while not self._replayed(upto, patient=True):
                pass
        return len(self._poison) > known

    def _replayed(self, upto: int, patient: bool) -> bool:
        self._kill()
        self._start_kernel()
        for index in range(upto):
            cell = self.nb.cells[index]
            if cell.cell_type != "code" or utils.is_grade(cell) or index in self._poison:
                continue
            wait = patient and index not in self._survived
            try:
                self._run(new_code_cell(cell.source), index)
                self._run(new_code_cell(_WAIT if wait else "pass"), index, _PULSE)
            except (DeadKernelError, CellTimeoutError, _Doubtful) as error:
                if not patient:
                    return False
                # Do without it rather than for ever try again.
                if not isinstance(error, _Doubtful):
                    self._what_happened(error)
                self.log.warning("%s is left out: the kernel does not go on after it", self._label(index))
                self._poison.add(index)
                return False
            if wait:
                self._survived.add(index)
        return True

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
        except DeadKernelError:
            raise
        except CellTimeoutError:
            if not self._kernel.kept:
                raise
            # The cell is done, and what it sent did not come: too much for the connection, or for the machine.
            self._alive()
            cell.outputs = [_error("its output was too much to be sent")]
        except Exception as error:  # of nbclient's, over messages that the notebook has made up
            raise _Doubtful(f"the kernel's messages cannot be read: {type(error).__name__}") from error
        finally:
            self.nb.cells[index] = kept
            self._kernel.limit(None)
        if self._weight > self._sandbox.output << 20:
            cell.outputs.append(new_output("stream", name="stderr", text="[the rest of the output was left out]\n"))

    def _alive(self) -> None:
        try:
            self.execute_cell(new_code_cell("pass"), 0)
        except CellTimeoutError as error:
            raise _Doubtful("the kernel's messages do not arrive") from error

    def _get_timeout(self, cell: NotebookNode | None) -> float | None:
        """nbclient's limit on the wall; None where a keeper watches the kernel."""
        return None if self._kernel is not None and self._kernel.kept else super()._get_timeout(cell)

    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> NotebookNode | None:
        """Take an output; beyond the limit of one cell take no more, so that the memory here stays bounded."""
        if msg["msg_type"] != "status":
            self._weight += _weight(msg["content"])
            if self._weight > self._sandbox.output << 20:
                return None
        try:
            return super().process_message(msg, cell, cell_index)
        except CellExecutionComplete:
            raise
        except Exception:  # no message of a kernel's, but one that the notebook has made up
            return None

    def _what_happened(self, error: Exception) -> tuple[str, str, str]:
        """Name, message and reason, as :meth:`Judge.broken` takes them.

        Raises NotGradable where it was the machine.
        """
        if isinstance(error, _Doubtful):
            return self._own_doing(error)
        end = self._kernel.end()
        cause = end.cause if end is not None else "time" if isinstance(error, CellTimeoutError) else ""
        settings = {**self._sandbox.trait_values(), "limit": self._limit or 0, "patience": self.patience}
        if cause in _MACHINE:
            raise NotGradable(_MACHINE[cause].format_map(settings)) from error
        if cause in _CAUSES:
            return tuple(text.format_map(settings) for text in _CAUSES[cause])
        how = f" ({_status(end)})" if end is not None else ""
        return "KernelDied", f"the kernel died{how}", "the process crashed, called exit, or ran out of memory"

    def _own_doing(self, doubt: _Doubtful) -> tuple[str, str, str]:
        """As above, where a kernel without any of the student's code has what this one lacked."""
        self._kill()
        self._start_kernel()
        look = new_code_cell(_LACKING)
        self._run(look, 0, self._sandbox.start_seconds, keep_history=False)
        if lacking := "".join(o.get("text", "") for o in look.outputs).strip():
            raise NotGradable(lacking) from doubt
        return "Shortage", str(doubt), "the notebook itself uses up what is needed here"

    # ------------------------------------------------------------------------------------------ checks
    def _judge(self, cell: NotebookNode, index: int, name: str, judge: Judge) -> Verdict:
        nonce = secrets.token_hex(16)
        order = new_code_cell(_ORDER.format(event=seal.ORDER, id=name, seed=judge.seed(name), nonce=nonce))
        usual = self.timeout
        # The observation ends itself in time; the kernel is ended only where that fails.
        self.timeout = max(usual, int(judge.seconds(name)) + 30)
        try:
            self._run(order, index)
        finally:
            self.timeout = usual
        cell.execution_count = order.execution_count if type(order.execution_count) is int else None
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
            raise _Doubtful(f"{name} cannot be observed: {verdict.detail}")
        for flag in verdict.flags:
            self.log.warning("%s%s: %s", LOOK, name, flag)
        return verdict

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


def _clean(cell: NotebookNode) -> None:
    """Take out what no notebook can hold: a notebook's code may send whatever it likes."""
    if type(cell.execution_count) is not int:
        cell.execution_count = None
    for at, output in enumerate(cell.outputs):
        try:
            json.dumps(output, ensure_ascii=False).encode()  # half a letter cannot be written
            nbformat.validate(output, ref="output", version=4, version_minor=5)
        except (ValueError, TypeError, RecursionError, nbformat.ValidationError):
            cell.outputs[at] = _error("this output is none that a notebook can hold")


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
