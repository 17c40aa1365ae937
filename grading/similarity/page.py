"""The page: each group with its most surprising pair side by side. Nothing in it runs, whatever stands in the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from grading.similarity.normalise import rough_words
from grading.similarity.pairs import Group

__all__ = ["page"]

SHOWN = 20_000  # characters of an answer
_WORDS = """<p>The answers below are alike beyond what the task, the stub, the reference and the answer bank explain. <b>That
proves nothing.</b> Two people may have learned from one page, been helped by the same tutor, or thought alike. It costs nobody a
point. Read the pairs, and where it matters talk with the students before you decide anything.</p>
<p><b>Likeness</b>: the share of words that stand in both answers in the same order; names of variables, comments and layout do not
count. <b>Surprise</b>: what they share and few others have, summed in bits. It sorts the list; it is no probability. A line marked
<code>=</code> stands in the other answer as well, but for the names of its variables.</p>"""
_STYLE = """:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;margin:1.5rem auto;max-width:90rem;padding:0 1rem}
section{border-top:1px solid;margin-top:2rem}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,32rem),1fr));gap:1rem}
figure{margin:0;min-width:0}figcaption{font-weight:600;overflow-wrap:anywhere}
pre{border:1px solid;font:14px/1.45 ui-monospace,monospace;margin:.25rem 0;overflow:auto;padding:.5rem}
pre b{font-weight:700}td,th{padding:0 1rem 0 0;text-align:left;overflow-wrap:anywhere}"""


def page(found: Sequence[Group], answers: Mapping[str, Mapping[str, str]], head: str, top: int) -> str:
    """The page as HTML.

    Parameters
    ----------
    found : sequence of Group
        Most surprising first.
    answers : mapping
        The code of each student, by exercise.
    head : str
        What was compared, one line.
    top : int
        Groups that are shown.
    """
    shown = found[:top]
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Answers that are alike</title><style>{_STYLE}</style></head><body><main>",
        f"<h1>Answers that are alike</h1>{_WORDS}<p>{_text(head)}</p>",
    ]
    if len(shown) < len(found):
        parts.append(f"<p>The first {len(shown)} of {len(found)} groups; the others stand in similarity.csv.</p>")
    if not found:
        parts.append("<p>No answers are alike.</p>")
    for number, group in enumerate(shown, 1):
        parts.append(_section(number, group, answers[group.exercise]))
    return "\n".join([*parts, "</main></body></html>\n"])


def _section(number: int, group: Group, answers: Mapping[str, str]) -> str:
    first = group.members[0]
    rows = "".join(
        f"<tr><td>{_text(m.student)}</td><td>{_text(m.nearest)}</td><td>{m.likeness:.0%}</td><td>{m.surprise:.0f}</td></tr>"
        for m in group.members
    )
    one, other = answers[first.student], answers[first.nearest]
    return (
        f"<section><h2>{number}. {_text(group.exercise)}: {len(group.members)} students</h2>"
        f"<table><thead><tr><th>Student</th><th>Nearest</th><th>Likeness</th><th>Surprise</th></tr></thead>"
        f"<tbody>{rows}</tbody></table><div class=pair>"
        f"{_code(first.student, one, other)}{_code(first.nearest, other, one)}</div></section>"
    )


def _code(student: str, code: str, other: str) -> str:
    there = {rough_words(line) for line in other[:SHOWN].splitlines()} - {()}
    lines = []
    for line in code[:SHOWN].splitlines():
        mark = "=" if rough_words(line) in there else " "
        lines.append(f"<b>{mark}</b> {_text(line)}")
    rest = f"<p>{len(code) - SHOWN} characters more are not shown.</p>" if len(code) > SHOWN else ""
    return f"<figure><figcaption>{_text(student)}</figcaption><pre>{chr(10).join(lines)}</pre>{rest}</figure>"


def _text(text: str) -> str:
    """Escaped; control characters, and those that turn the direction of text around, are spelled out."""
    return escape("".join(c if c.isprintable() or c == "\t" else ascii(c)[1:-1] for c in text))
