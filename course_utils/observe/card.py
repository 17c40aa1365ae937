"""A verdict as a card: HTML for JupyterLab, in light and dark, and for nbgrader's feedback.

Styles are inline, because a saved notebook carries no style sheet; feedback is sanitised, loses them, and gets a style
sheet for the same classes (``CSS``). Only tags that survive nbconvert's sanitiser are used. Colours come from
JupyterLab's variables, with fallbacks; every mark is told by a sign and a word, never by colour alone.
"""

from __future__ import annotations

from html import escape

from course_utils.observe import message
from course_utils.observe.compare import Finding, Kind, Verdict

__all__ = ["CSS", "html"]

_GOOD = ("✓", "good", "--jp-success-color1", "#2e7d32")
_HALF = ("◐", "half", "--jp-warn-color1", "#b26a00")
_NONE = ("○", "none", "--jp-ui-font-color2", "#666666")
_BAD = ("✗", "bad", "--jp-error-color1", "#c62828")
_SIGNS = {
    Kind.RIGHT: _GOOD,
    Kind.WASTEFUL: _HALF,
    Kind.PARTLY: _HALF,
    Kind.NOT_STARTED: _NONE,
    Kind.SKIPPED: _NONE,
    Kind.NOT_GRADABLE: _HALF,
}

CSS = """
.course-card { border-left: 5px solid #666; padding: 6px 12px; margin: 6px 0; background: #f5f5f5; color: #1a1a1a; }
.course-card-good { border-color: #2e7d32; } .course-card-half { border-color: #b26a00; }
.course-card-bad { border-color: #c62828; }
.course-card ul { list-style: none; padding-left: 0; margin: 2px 0; }
.course-card code { white-space: pre-wrap; }
"""


def _fact(finding: Finding) -> str:
    if finding.ok:
        mark = "✓ holds:"
    elif not finding.seen:
        mark = "○ not reached:"
    elif finding.spec.share is not None:
        mark = "◐ costs points:"
    else:
        mark = "✗ fails:"
    cases = f" (case {', '.join(str(c + 1) for c in finding.cases)})" if finding.cases and finding.seen else ""
    return f"<li>{escape(f'{mark} {finding.name}{cases}')}</li>"


def html(verdict: Verdict, hidden: bool = False) -> str:
    """The card. ``hidden`` leaves expected values out, as :func:`message.lines` does."""
    sign, name, variable, fallback = _SIGNS.get(verdict.kind, _BAD)
    head, *body = message.lines(verdict, hidden)
    rows = []
    for line in body:
        label, _, content = line.partition(":")
        rows.append(f"<div><b>{escape(label)}:</b> <code>{escape(content.strip())}</code></div>")
    facts = ""
    if verdict.findings:
        held = sum(f.ok for f in verdict.findings)
        count = f"{held} of {len(verdict.findings)} facts hold"
        listed = "".join(_fact(f) for f in verdict.findings)
        items = f'<ul style="list-style: none; padding-left: 0; margin: 2px 0;">{listed}</ul>'
        # A fold for the notebook; the sanitiser of the feedback knows no <details>.
        facts = f"<div>{count}</div>{items}" if hidden else f"<details><summary>{count}</summary>{items}</details>"
    notes = "".join(f"<div>Note: {escape(message.one_line(remark, 300))}</div>" for remark in verdict.remarks)
    style = (
        f"border-left: 5px solid var({variable}, {fallback}); padding: 6px 12px; margin: 6px 0; "
        "background: var(--jp-layout-color2, #f5f5f5); color: var(--jp-content-font-color1, #1a1a1a); max-width: 60em;"
    )
    return (
        f'<div class="course-card course-card-{name}" style="{style}">'
        f"<div><b>{escape(sign)} {escape(head)}</b></div>{''.join(rows)}{facts}{notes}</div>"
    )
