"""Which submissions have no mark of their own yet, for those who read the gradebook between two runs."""

from __future__ import annotations

from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.coursedir import CourseDirectory

from grading.autograde.intake import hand_in
from grading.autograde.store import RESULTS, Store
from grading.autograde.task import GRADED, Result
from grading.restore import Released
from grading.source import Section, sections

__all__ = ["ungraded"]


def ungraded(folders: CourseDirectory, store: Store | None = None) -> set[tuple[str, str]]:
    """The (assignment, student) of what lies in ``submitted/`` and was not graded as it lies there.

    A mark that the gradebook may have of these belongs to an earlier file. Nothing is written.

    Parameters
    ----------
    folders : CourseDirectory
    store : Store, optional
        The kept results; by default those of the course.
    """
    store = store or Store(RESULTS)
    submitted = Path(folders.root, folders.submitted_directory)
    found = set()
    with Gradebook(folders.db_url, folders.course_id) as gradebook:
        for section in sections():
            there = [p for p in submitted.glob(f"*/{section.assignment}") if p.is_dir()]
            there = [p for p in there if not p.parent.name.startswith(".")]
            try:
                grade_ids = set(Released.of(gradebook, section.name, section.assignment).cells) if there else set()
            except MissingEntry:
                found |= {(section.assignment, p.parent.name) for p in there}
                continue
            found |= {
                (section.assignment, p.parent.name)
                for p in there
                if not _is_graded(p, section, grade_ids, folders, store, gradebook)
            }
    return found


def _is_graded(
    folder: Path, section: Section, grade_ids: set[str], folders: CourseDirectory, store: Store, gradebook: Gradebook
) -> bool:
    result = store.load(section.assignment, folder.parent.name)
    if result is not None and result.digest:
        same = result.digest == hand_in(folder, section.name, grade_ids).digest
        return same and (result.status != GRADED or _is_entered(result, gradebook))
    # Graded by nbgrader itself, which keeps no result: a file that was put here later is newer than the graded one.
    graded = folders.format_path(folders.autograded_directory, folder.parent.name, section.assignment)
    try:
        newest = max(p.stat().st_mtime for p in folder.iterdir() if p.is_file())
        return Path(graded, f"{section.name}.ipynb").stat().st_mtime >= newest
    except (OSError, ValueError):
        return False


def _is_entered(result: Result, gradebook: Gradebook) -> bool:
    """Is the mark there? A run that was killed has taken the old ones away, and has not entered all of the new ones."""
    try:
        notebook = gradebook.find_submission_notebook(result.notebook, result.assignment, result.student)
    except MissingEntry:
        return False
    judged = [g for g in notebook.grades if g.cell.cell_type == "code"]
    return all(g.auto_score is not None or g.manual_score is not None for g in judged)
