"""The tables of ``solutions/README.md``, with every place that they name turned into a link."""

from __future__ import annotations

import re
from dataclasses import dataclass

from grading.book.editions import Heading, plain_title
from grading.source import SOLUTIONS

__all__ = ["Places", "Row", "cells_of", "read_rows", "rows_of"]

_TOKEN = re.compile(
    r"section (?P<section>\d), Part (?P<its_part>\d+)|the same heading as (?P<row>C\d+)|(?P<same>the same|, the same)\b"
    r'|(?P<part>Part \d+)|"(?P<quoted>[^"]+)"|`(?P<code>\w+)`|(?P<top>the (?:opening )?scene(?: at the beginning)?|the first cells)'
    r"|(?P<table>the table of symptoms)|(?P<habits>^Habits\b)"
)


@dataclass(frozen=True)
class Row:
    """A row of a table of the README: ``kind`` is "topics", "beliefs" or "reports", ``cells`` all but the place."""

    kind: str
    section: int
    id: str
    cells: tuple[str, ...]
    where: str


def cells_of(line: str) -> list[str]:
    """The cells of one line of a Markdown table."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def rows_of(text: str, head: str) -> list[list[str]]:
    """The rows of the first table whose head's first cell is ``head``."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("|") and cells_of(line)[0] == head), None)
    if start is None:
        return []
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(cells_of(line))
    return rows


def read_rows(text: str | None = None) -> list[Row]:
    """All rows of the README, in its order."""
    text = (SOLUTIONS / "README.md").read_text(encoding="utf-8") if text is None else text
    rows: list[Row] = []
    kind, section = "", 0
    for line in text.splitlines():
        head = re.match(r"### (\d+)\.", line)
        if head:
            section = int(head.group(1))
        cells = cells_of(line) if line.startswith("|") else []
        if not cells or set(cells[0]) <= set(":- "):
            continue
        if cells[0] in ("id", "report"):
            kind = "reports" if cells[0] == "report" else "beliefs" if "belief" in cells else "topics"
        elif section:
            name = "" if kind == "reports" else cells[0]
            rows.append(Row(kind, section, name, tuple(cells[0 if kind == "reports" else 1 : -1]), cells[-1]))
    return rows


class Places:
    """Finds the headings that a row names.

    Parameters
    ----------
    headings : dict
        Number of the section -> its headings.
    """

    def __init__(self, headings: dict[int, list[Heading]]) -> None:
        self.headings = headings
        self.exercises = {
            plain_title(h.title).removeprefix("Exercise: "): h
            for listed in headings.values()
            for h in listed
            if h.title.startswith("Exercise: ")
        }
        self._rows: dict[tuple[int, str], Heading] = {}
        self._last: dict[int, Heading] = {}

    def heading(self, section: int, words: str, part: int | None = None) -> Heading | None:
        """The heading that begins with these words, in the part that was named before if there is one."""
        words = plain_title(words).removesuffix("...").rstrip(" .")
        found = [
            h for h in self.headings[section] if re.sub(r"^Part \d+\. ", "", plain_title(h.title)).startswith(words)
        ]
        return next((h for h in found if h.part == part), found[0] if found else None)

    def part(self, section: int, number: int) -> Heading | None:
        return next((h for h in self.headings[section] if h.level == 2 and h.title.startswith(f"Part {number}.")), None)

    def linked(self, row: Row) -> tuple[str, list[Heading]]:
        """The place of a row as Markdown with links, and the headings that they lead to. Rows in the README's order."""
        part: int | None = None
        met: list[Heading] = []

        def link(match: re.Match[str]) -> str:
            nonlocal part
            text = match.group(0)
            heading: Heading | None = None
            if match["section"]:
                heading = self.part(int(match["section"]), int(match["its_part"]))
            elif match["row"]:
                heading = self._rows.get((row.section, match["row"]))
            elif match["same"]:
                heading = self._last.get(row.section)
            elif match["part"]:
                part = int(match["part"].removeprefix("Part "))
                heading = self.part(row.section, part)
            elif match["quoted"]:
                heading = self.heading(row.section, match["quoted"], part)
            elif match["code"]:
                heading = self.exercises.get(match["code"])
            elif match["top"]:
                heading = self.headings[row.section][0]
            elif match["table"]:
                heading = self.heading(row.section, "When something looks wrong")
            elif match["habits"]:
                heading = self.heading(row.section, "Habits")
            if heading is None:
                return text
            met.append(heading)
            shown = text.strip('"') if match["quoted"] else text
            return f"[{shown}](#{heading.target})"

        markdown = _TOKEN.sub(link, row.where)
        places = [h for h in met if not h.title.startswith("Exercise: ")]
        if places:
            # The heading, if the row names one, and not the part around it.
            first = next((h for h in places if h.level > 2), places[0])
            self._rows.setdefault((row.section, row.id), first)
            self._last[row.section] = first
        return markdown, met
