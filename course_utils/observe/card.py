"""A verdict as a card: HTML for JupyterLab, in light and dark, and for nbgrader's feedback.

Styles are inline, because feedback is sanitised and a saved notebook carries no style sheet. Colours come from
JupyterLab's variables with fallbacks; every mark is told by a sign and a word, never by colour alone.
"""

from __future__ import annotations

from html import escape

from course_utils.observe import message
from course_utils.observe.compare import Finding, Kind, Verdict

__all__ = ["html"]

_SIGNS = {
    Kind.RIGHT: ("✓", "--jp-success-color1", "#2e7d32"),
    Kind.WASTEFUL: ("◐", "--jp-warn-color1", "#b26a00"),
    Kind.PARTLY: ("◐", "--jp-warn-color1", "#b26a00"),
    Kind.NOT_STARTED: ("○", "--jp-ui-font-color2", "#666666"),
    Kind.SKIPPED: ("–", "--jp-ui-font-color2", "#666666"),
    Kind.NOT_GRADABLE: ("!", "--jp-warn-color1", "#b26a00"),
}
_WRONG = ("✗", "--jp-error-color1", "#c62828")
_CELL = "padding: 2px 10px 2px 0; text-align: left; vertical-align: top; border: none; background: none;"


def _row(cells: list[str], head: bool = False) -> str:
    tag = "th" if head else "td"
    return "<tr>" + "".join(f'<{tag} style="{_CELL}">{cell}</{tag}>' for cell in cells) + "</tr>"


def _fact_row(finding: Finding) -> str:
    if finding.ok:
        mark = "✓ holds"
    elif not finding.seen:
        mark = "– not reached"
    elif finding.spec.share is not None:
        mark = "◐ costs points"
    else:
        mark = "✗ fails"
    cases = f" (case {', '.join(str(c + 1) for c in finding.cases)})" if finding.cases and finding.seen else ""
    return _row([escape(mark), escape(finding.name + cases)])


def html(verdict: Verdict, hidden: bool = False) -> str:
    """The card. ``hidden`` leaves expected values out, as :func:`message.lines` does."""
    sign, variable, fallback = _SIGNS.get(verdict.kind, _WRONG)
    head, *body = message.lines(verdict, hidden)
    rows = []
    for line in body:
        label, _, content = line.partition(":")
        rows.append(_row([f"<b>{escape(label)}</b>", f"<code>{escape(content.strip())}</code>"]))
    table = f'<table style="border: none; margin: 4px 0;">{"".join(rows)}</table>' if rows else ""
    facts = ""
    if verdict.findings:
        held = sum(f.ok for f in verdict.findings)
        inner = "".join(_fact_row(f) for f in verdict.findings)
        facts = (
            f'<details style="margin-top: 4px;"><summary>{held} of {len(verdict.findings)} facts hold</summary>'
            f'<table style="border: none; margin: 4px 0;">{inner}</table></details>'
        )
    notes = "".join(f'<div style="margin-top: 4px;">Note: {escape(r)}</div>' for r in verdict.remarks)
    style = (
        f"border-left: 5px solid var({variable}, {fallback}); padding: 6px 12px; margin: 6px 0; "
        "background: var(--jp-layout-color2, #f5f5f5); color: var(--jp-content-font-color1, #1a1a1a); "
        "font-size: 14px; max-width: 60em;"
    )
    return (
        f'<div style="{style}" role="status"><div><b>{escape(sign)} {escape(head)}</b></div>{table}{facts}{notes}</div>'
    )
