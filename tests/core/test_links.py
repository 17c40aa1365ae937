"""Links in a submission are set aside, and nothing else is touched."""

from __future__ import annotations

import nbformat
import pytest

from grading.sandbox import links


@pytest.fixture
def submission(tmp_path, monkeypatch):
    monkeypatch.setattr(links, "ASIDE", tmp_path / "links")
    (tmp_path / "solution.ipynb").write_text("the answers")
    folder = tmp_path / "submitted" / "eve" / "01"
    (folder / "more").mkdir(parents=True)
    (folder / "more" / "own.txt").write_text("own")
    return folder


def test_a_link_hands_the_solutions_to_the_student(submission, tmp_path):
    notebook = submission / "n.ipynb"
    notebook.symlink_to(tmp_path / "solution.ipynb")
    (submission / "more" / "data.txt").symlink_to(tmp_path / "solution.ipynb")
    (submission / "folder").symlink_to(tmp_path)
    links.set_links_aside("01", "eve", [str(notebook)])
    left = sorted(str(p.relative_to(submission)) for p in submission.rglob("*"))
    assert left == ["more", "more/own.txt", "n.ipynb"]
    assert nbformat.read(notebook, 4).cells == []
    assert (tmp_path / "solution.ipynb").read_text() == "the answers"
    aside = tmp_path / "links" / "eve" / "01"
    assert {str(p.relative_to(aside)) for p in aside.rglob("*") if p.is_symlink()} == {
        "n.ipynb",
        "more/data.txt",
        "folder",
    }


def test_a_plain_submission_is_changed(submission):
    notebook = submission / "n.ipynb"
    notebook.write_text("{}")
    links.set_links_aside("01", "eve", [str(notebook)])
    assert notebook.read_text() == "{}"
    assert not links.ASIDE.exists()
