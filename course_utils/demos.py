"""Small tools for the demonstrations: errors and warnings as text, tables, the operators that a call runs.

A demonstration that fails on purpose must not stop the notebook, and nothing may reach stderr: a notebook with red
text looks broken, and nbgrader takes text on stderr for a failure.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["operators", "show_markdown", "shows_error", "shows_warning", "table"]


def _first_line(message: object) -> str:
    lines = str(message).strip().splitlines()
    return lines[0] if lines else ""


@contextmanager
def shows_error() -> Iterator[None]:
    """Run a block that should raise, and print the error's class and first line instead of a traceback.

    Errors only: an interrupt from the keyboard still stops the notebook.
    """
    try:
        yield
    except Exception as error:
        print(f"{type(error).__name__}: {_first_line(error)}")
    else:
        print("no error")


@contextmanager
def shows_warning() -> Iterator[None]:
    """Run a block and print the warnings that it causes, each as one line.

    PyTorch gives many of its warnings once per process; inside the block it gives them every time, so that the cell
    prints the same when it is run again.
    """
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    finally:
        torch.set_warn_always(always)
    # Several places of one call may give the same warning; the place in PyTorch's source tells a reader nothing.
    said = [f"{w.category.__name__}: {_first_line(w.message).split(' (Triggered internally')[0]}" for w in caught]
    print(*dict.fromkeys(said), sep="\n", end="\n" if said else "")
    if not caught:
        print("no warning")


def operators(function: Callable[..., Any], *args: Any) -> list[str]:
    """The names of the operators that ``function(*args)`` runs, in order, inner ones too ("zeros", "empty", ...).

    Source: PyTorch's own profiler. Names, not times: they are the same on every machine.
    """
    # The profiler writes notes about the GPU to stderr from C++; the guard swallows them.
    from course_utils.observe.guard import guard

    with guard(), torch.autograd.profiler.profile() as profile:
        function(*args)
    return [event.name.removeprefix("aten::") for event in profile.function_events]


def show_markdown(markdown: str, plain: str) -> None:
    """Display Markdown where there is a front end, else print ``plain``.

    Markdown and not HTML: feedback is sanitised, and of HTML it would leave neither tables nor pictures.
    """
    from IPython import get_ipython
    from IPython.display import publish_display_data

    if get_ipython() is None:
        print(plain)
    else:
        publish_display_data({"text/markdown": markdown, "text/plain": plain})


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], code: Sequence[int] = (0,)) -> None:
    """Display a table.

    Parameters
    ----------
    head : sequence of str
        The columns' names.
    rows : iterable of sequences
        The cells; ``True`` and ``False`` become "yes" and "no".
    code : sequence of int
        Columns that hold code.
    """
    texts = [[{True: "yes", False: "no"}.get(c, str(c)) if isinstance(c, bool) else str(c) for c in r] for r in rows]
    wrong = [r for r in texts if len(r) != len(head)]
    if wrong:
        raise ValueError(f"a row of {len(wrong[0])} cells does not fit a head of {len(head)}: {wrong[0]}")
    widths = [max(map(len, column)) for column in zip(head, *texts, strict=True)]
    plain = "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in [list(head), *texts]
    )
    escaped = [[c.replace("|", "\\|") for c in row] for row in texts]
    marked = [[f"`{c}`" if i in code and c else c for i, c in enumerate(row)] for row in escaped]
    lines = [list(head), [":--"] * len(head), *marked]
    show_markdown("\n".join("| " + " | ".join(line) + " |" for line in lines), plain)
