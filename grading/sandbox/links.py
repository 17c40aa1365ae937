"""Links in a submission, set aside before nbgrader copies what they lead to.

A link that is called ``data.txt`` and leads to the solutions would be handed to the student's code as a plain copy; one
in the notebook's place would be graded as if the student had written it.
"""

from __future__ import annotations

import logging
import os
import shutil

import nbformat
from nbformat.v4 import new_notebook

from grading.source import ROOT

__all__ = ["set_links_aside"]

ASIDE = ROOT / "grading" / "links"
_log = logging.getLogger(__name__)


def set_links_aside(assignment: str, student: str, notebooks: list[str]) -> None:
    """nbgrader's ``pre_convert_hook``: move every link to ``grading/links/STUDENT/ASSIGNMENT/``.

    A notebook that was a link is replaced by an empty one: its exercises are graded as not done.
    """
    for folder in {os.path.dirname(path) for path in notebooks}:
        for place, folders, files in os.walk(folder):
            for name in [*folders, *files]:
                path = os.path.join(place, name)
                if not os.path.islink(path):
                    continue
                aside = ASIDE / student / assignment / os.path.relpath(path, folder)
                aside.parent.mkdir(parents=True, exist_ok=True)
                _log.warning("%s: the link %s -> %s is set aside", student, path, os.readlink(path))
                aside.unlink(missing_ok=True)
                shutil.move(path, aside)
                if path in notebooks:
                    nbformat.write(new_notebook(), path)
