"""The similarity report: copies are found, the class's common ground is not, and nothing in it runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from course_utils.student.released import sections as released_sections
from grading.settings import load_config
from grading.similarity import command
from grading.similarity.known import bank, known
from grading.similarity.normalise import rough_words, words
from grading.similarity.pairs import groups
from grading.source import sections

SECTION = sections("tensor_costs")[0]
KNOWN = known(SECTION)
BANK = bank(SECTION.name)
OWN = '''
def frame_difference(a, b):
    """What changed between two frames."""
    total = torch.zeros(a.shape, dtype=torch.int32)
    for row in range(a.shape[0]):
        left = a[row].to(torch.int32)
        right = b[row].to(torch.int32)
        gap = torch.where(left > right, left - right, right - left)
        total[row] = gap.clamp(min=0, max=255)
    return total.to(torch.uint8)
'''
COPY = """
import torch as t
def frame_difference(first: t.Tensor, second: t.Tensor) -> t.Tensor:
    # my own idea
    out = t.zeros(first.shape,
                  dtype=t.int32)   # room
    for i in range(first.shape[0]):
        x: t.Tensor = first[i].to(t.int32)

        y = second[i].to(t.int32)
        d = t.where(y < x, x - y, y - x)
        out[i] = d.clamp(max=255, min=0)
    return out.to(t.uint8)
"""
BROKEN = OWN.replace("range(a.shape[0]):", "range(a.shape[0])")


def members(code: dict[str, str], exercise: str = "frame_difference", **more) -> list[set[str]]:
    return [{m.student for m in g.members} for g in groups(exercise, code, KNOWN[exercise], **more)]


def others(exercise: str = "frame_difference") -> dict[str, str]:
    return {f"s{i}": code for i, code in enumerate(BANK[exercise].values())}


def test_renaming_commenting_and_rewrapping_hides_a_copy():
    assert words(OWN) == words(COPY)
    assert members({"ann": OWN, "bob": COPY, **others()}) == [{"ann", "bob"}]


def test_a_copy_with_a_line_of_its_own_is_lost():
    changed = COPY.replace("    return", "    assert out.shape == first.shape\n    return")
    found = groups("frame_difference", {"ann": OWN, "bob": changed, **others()}, KNOWN["frame_difference"])
    assert [m.student for m in found[0].members] in (["ann", "bob"], ["bob", "ann"])
    assert 0.85 < found[0].members[0].likeness < 1


def test_three_students_with_one_answer_are_three_pairs():
    changed = COPY.replace("255", "250 + 5")
    assert members({"ann": OWN, "bob": COPY, "cy": changed, **others()}) == [{"ann", "bob", "cy"}]


def test_answers_that_do_not_parse_are_not_compared():
    assert members({"ann": BROKEN, "bob": BROKEN.replace("left", "links").replace("gap", "g"), **others()}) == [
        {"ann", "bob"}
    ]
    assert words(BROKEN) == rough_words(BROKEN)


@pytest.mark.parametrize("section", sections(), ids=lambda s: s.name)
def test_answers_of_the_bank_stubs_and_references_are_reported(section):
    """Every student has an answer that others have as well, each under other names of its variables."""
    nobodys = known(section)
    assert all(len(code) > 4 for code in nobodys.values()), "the bank was not read"
    for exercise, code in nobodys.items():
        class_ = {f"s{i}": text for i, text in enumerate([*code, *code])}
        assert groups(exercise, class_, code) == []


def test_most_independent_right_answers_would_be_reported_without_the_bank():
    """The bank's right answers as a class, judged against stub, reference and wrong answers alone."""
    pairs = exercises = 0
    for section in sections():
        nobodys = known(section)
        text = (command.ROOT / "grading" / "answers" / f"{section.name}.py").read_text()
        for exercise, code in bank(section.name).items():
            right = {n: c for n, c in code.items() if f'@right("{exercise}"' in text.split(f" {n}(")[0][-200:]}
            rest = [c for n, c in code.items() if n not in right]
            exercises += 1
            pairs += bool(groups(exercise, right, [*nobodys[exercise][:2], *rest], threshold=0.85))
    assert exercises > 50
    assert pairs <= exercises // 10


def test_a_bank_answer_with_a_slip_of_a_key_is_reported():
    code = next(c for c in KNOWN["bgr_to_batch"][2:] if len(c) > 300)
    slip = code.replace(")", "", 1)
    assert words(slip) == rough_words(slip)
    assert members({"ann": slip, "bob": slip.replace(":", "", 1)}, "bgr_to_batch") == []


def test_answers_too_short_to_differ_are_reported():
    short = "def frame_difference(a, b):\n    return (a.long() - b.long()).abs().byte()"
    assert members({"ann": short, "bob": short, "cy": short}) == []


@pytest.mark.parametrize(
    "code",
    ["", "(" * 5000, "x = " + "-" * 50_000 + "1", "\x00", "def f(:\n\t'''", "\ud800", "v = " + "a." * 30_000 + "b"],
)
def test_an_answer_ends_the_comparison_of_all(code):
    assert members({"eve": code, "mallory": code, "ann": OWN, "bob": COPY})[0] >= {"ann", "bob"} or not code


# ------------------------------------------------------------------------------------------------ the command
def notebook(answers: dict[str, str]) -> bytes:
    released = next(s for s in released_sections() if s.name == SECTION.name).cells
    cells = [
        {
            "cell_type": cell.cell_type,
            "id": f"c{i}",
            "metadata": {"nbgrader": {"grade_id": name}},
            "source": answers.get(name.removeprefix("answer-"), cell.source),
            **({"outputs": [], "execution_count": None} if cell.cell_type == "code" else {}),
        }
        for i, (name, cell) in enumerate(released.items())
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = load_config()
    config.CourseDirectory.root = str(tmp_path)
    monkeypatch.setattr(command, "load_config", lambda: config)

    def hand_in(student: str, data: bytes) -> None:
        folder = tmp_path / "grading" / "submitted" / student / SECTION.assignment
        folder.mkdir(parents=True)
        (folder / f"{SECTION.name}.ipynb").write_bytes(data)

    hand_in.to = tmp_path / "grading"
    return hand_in


def run(course, *more: str) -> tuple[str, list[dict[str, str]]]:
    assert command.main(["--to", str(course.to), "--assignment", SECTION.assignment, *more]) == 0
    with (course.to / "similarity.csv").open() as file:
        return (course.to / "similarity.html").read_text(), list(csv.DictReader(file))


def test_untouched_notebooks_are_called_alike(course, capsys):
    for student in ("ann", "bob", "cy"):
        course(student, notebook({}))
    html, rows = run(course)
    assert rows == []
    assert "No answers are alike" in html


def test_a_damaged_notebook_is_left_out_or_ends_the_report(course, capsys):
    whole = notebook({"frame_difference": COPY})
    course("ann", notebook({"frame_difference": OWN}))
    course("bob", whole[: whole.index(b"to(t.uint8)") + 400])
    course("essay", b"My answer is 42.")
    course("=cmd", notebook({}))
    _, rows = run(course)
    assert [(r["student"], r["nearest"], r["exercise"]) for r in rows] == [
        ("ann", "bob", "frame_difference"),
        ("bob", "ann", "frame_difference"),
    ]
    assert "essay" in capsys.readouterr().out


def test_a_students_code_reaches_the_page_as_markup(course):
    hostile = OWN.replace("torch.zeros(", "torch.zeros(  # </pre><script>alert(1)</script>\u202e\x1b[31m\n        ")
    course("<img src=x onerror=alert(1)>", notebook({"frame_difference": hostile}))
    course("bob", notebook({"frame_difference": hostile.replace("gap", "</b><iframe>")}))
    course("cy", notebook({"frame_difference": hostile.replace("gap", "distance")}))
    html, rows = run(course, "--threshold", "0.5")
    assert rows
    for forbidden in ("<script", "<img", "<iframe", "\u202e", "\x1b"):
        assert forbidden not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e\\x1b[31m" in html
    assert "default-src 'none'" in html


def test_the_report_says_that_it_is_a_proof(course):
    course("ann", notebook({"frame_difference": OWN}))
    course("bob", notebook({"frame_difference": COPY}))
    html, rows = run(course)
    assert "proves nothing" in " ".join(html.split())
    assert "<b>=</b>" in html, "lines that are alike are told by colour alone"
    assert len(rows) == 2
    assert not list(course.to.glob(".similarity*")), "an unfinished file was left"


def test_what_cannot_be_compared_is_an_empty_report(course, capsys):
    assert command.main(["--to", str(course.to)]) == 2
    assert "make collect" in capsys.readouterr().err
