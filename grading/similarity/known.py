"""What is nobody's own idea: stubs, references and the answer bank, as text. Nothing of it is executed."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache

from course_utils.student.released import find
from grading.source import ROOT, Section

__all__ = ["bank", "known"]


def known(section: Section) -> dict[str, list[str]]:
    """For each exercise of a section the stub, the reference and the bank's answers."""
    cells = find(section.assignment).section.cells
    answers = bank(section.name)
    return {
        exercise: [cells[f"answer-{exercise}"].source, cell.source, *answers.get(exercise, {}).values()]
        for exercise, cell in section.answer_cells().items()
    }


@cache
def bank(section: str) -> dict[str, dict[str, str]]:
    """The bank's answers to a section as text: by exercise, by name; of a factory what it holds."""
    tree = ast.parse((ROOT / "grading" / "answers" / f"{section}.py").read_text(encoding="utf-8"))
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id in ("right", "wrong"):
                factory = any(k.arg == "factory" for k in mark.keywords)
                inside = node.body if factory else [node]
                inside = [n.value if isinstance(n, ast.Return) and n.value else n for n in inside]
                found[ast.literal_eval(mark.args[0])][node.name] = "\n".join(map(_text, inside))
    return dict(found)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        node.decorator_list = []
    return ast.unparse(node)
