"""The pages of a book beside the notebooks: front page and indexes, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nbformat import NotebookNode

from course_utils.observe.errors import ADVICE
from course_utils.observe.registry import all_exercises
from course_utils.student.released import find
from grading.book.editions import Heading, plain_title
from grading.book.places import Places, Row, read_rows, rows_of
from grading.source import Section

__all__ = ["pages"]

WIDE = "---\nhide-toc: true\n---\n\n"  # tables of five columns need the room
TABLE = "When something looks wrong"
SHORTEST = 14  # characters of an error text that say which error it is
SHOWN = 3  # places named for one error


def pages(edition: str, notebooks: dict[Section, NotebookNode], headings: dict[int, list[Heading]]) -> dict[str, str]:
    """File name -> Markdown, for an edition with these notebooks (before anything is put into their cells)."""
    places = Places(headings)
    linked = [(row, places.linked(row)[0]) for row in read_rows()]
    by_number = dict(zip(headings, notebooks, strict=True))
    titles = {number: plain_title(listed[0].title) for number, listed in headings.items()}
    return {
        "index.md": _front(edition, by_number, titles),
        "topics.md": WIDE
        + _rows_page(
            "Topics", "What is taught, and where.", ("topic",), [x for x in linked if x[0].kind == "topics"], titles
        ),
        "beliefs.md": WIDE
        + _rows_page(
            "Beliefs",
            "Sentences about PyTorch that are going round. Each was checked by running it on the course's version, and each is a "
            "prediction that you make before you run the cell. Those marked *true* hold.",
            ("belief", "what the notebook shows"),
            [x for x in linked if x[0].kind == "beliefs"],
            titles,
        ),
        "symptoms.md": _symptoms(
            by_number,
            dict(zip(headings, notebooks.values(), strict=True)),
            headings,
            [x for x in linked if x[0].kind == "reports"],
            titles,
        ),
        "exercises.md": WIDE + _exercises(by_number, places, titles),
    }


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, [":--"] * len(head), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _front(edition: str, sections: dict[int, Section], titles: dict[int, str]) -> str:
    about = (
        "This is the edition **with all answers**: the notebooks as the course runs them, every output kept. For "
        "instructors, and for looking back after the work."
        if edition == "solutions"
        else "This is the edition **for learners**: every demonstration with its output, every exercise with its task, and no "
        "answer. What a cell measured lies in a fold below it: guess first. To answer exercises, open the notebooks with "
        "`make lab`."
    )
    rows = []
    for number, section in sections.items():
        own = all_exercises(section.name)
        points = sum(e.points for e in own)
        rows.append((f"[{titles[number]}]({section.name}.ipynb)", str(len(own)), f"{points:g}"))
    notebooks = "\n".join(f"{section.name}" for section in sections.values())
    return f"""# PyTorch foundations for computer vision

What PyTorch really does underneath computer-vision code. Every line runs, and every claim is measured in front of you.

{about}

{_table(("section", "exercises", "points"), rows)}

Looking for something? [Topics](topics.md) lists what is taught, [beliefs](beliefs.md) what is believed about PyTorch and what
running it shows, [symptoms](symptoms.md) error texts and odd behaviour, [exercises](exercises.md) all tasks with points,
minutes and level. The search box finds words, error texts among them.

```{{toctree}}
:caption: Notebooks
:hidden:

{notebooks}
```

```{{toctree}}
:caption: Indexes
:hidden:

topics
beliefs
Symptoms <symptoms>
exercises
```
"""


def _rows_page(
    title: str, about: str, head: tuple[str, ...], rows: list[tuple[Row, str]], titles: dict[int, str]
) -> str:
    parts = [f"# {title}", about]
    for number, name in titles.items():
        own = [(f"**{row.id}**", *row.cells, where) for row, where in rows if row.section == number]
        parts += [f"## {name}", _table(("", *head, "where"), own)]
    return "\n\n".join(parts) + "\n"


def _exercises(sections: dict[int, Section], places: Places, titles: dict[int, str]) -> str:
    parts = ["# Exercises", "Level 1: apply what was just shown. Level 2: combine. Level 3: think."]
    for number, section in sections.items():
        own = {e.id: e for e in all_exercises(section.name)}
        rows = [
            (
                f"[`{e}`](#{h.target})",
                own[e].summary.replace("|", "\\|"),
                f"{own[e].points:g}",
                str(own[e].minutes),
                "●" * own[e].difficulty + "○" * (3 - own[e].difficulty) + f" {own[e].difficulty}",
            )
            for e, h in places.exercises.items()
            if e in own
        ]
        words = sum(find(section.assignment).section.reflections.values())
        total = (
            f"{sum(e.points for e in own.values()):g} points, {sum(e.minutes for e in own.values())} minutes; {words:g} "
            "more points for the last question, which is answered in words and read by a person."
        )
        parts += [f"## {titles[number]}", total, _table(("exercise", "asks for", "points", "minutes", "level"), rows)]
    return "\n\n".join(parts) + "\n"


# ------------------------------------------------------------------------------------------------ symptoms
def _symptoms(
    sections: dict[int, Section],
    notebooks: dict[int, NotebookNode],
    headings: dict[int, list[Heading]],
    reports: list[tuple[Row, str]],
    titles: dict[int, str],
) -> str:
    messages: list[tuple[str, str]] = []
    behaviour: list[tuple[str, str]] = []
    for number, notebook in notebooks.items():
        cell = next(c for c in notebook.cells if c.cell_type == "markdown" and f"## {TABLE}" in c.source)
        table = next(h for h in headings[number] if h.title == TABLE)
        for symptom, cause, check, fix in rows_of(cell.source, "symptom"):
            said = _said(symptom)
            found = [
                (n, h)
                for n in sorted(notebooks, key=lambda n: n != number)
                for h in _met(said, notebooks[n], headings[n])
            ]
            links = [f"[{n}. {_short(h)}](#{h.target})" for n, h in found[:SHOWN]]
            met = "; ".join([*links, f"[table of section {number}](#{table.target})"])
            told = {"Cause": cause, "Check": check, "Fix": fix, "Where you meet it": met}
            entry = (_names_whole(symptom), "\n".join(f"* **{name}:** {text}" for name, text in told.items()))
            (messages if said else behaviour).append(entry)
    parts = [
        # The search ranks by the best word in a title and then by the alphabet: the quotation mark comes before all
        # numbers and letters, so that who looks for an error text finds this page first.
        '# "RuntimeError: ..." and other symptoms',
        "What you see, what is behind it, how to make sure, and what to do. The search box finds these texts, too.",
        "## Error texts and warnings",
        "The simulated GPU says `sim` where CUDA says `cuda`.",
        *_headed(sorted(messages, key=lambda entry: re.sub(r"\W+", "", entry[0]).lower())),
        "## Odd behaviour, without a message",
        *_headed(behaviour),
        "## What `check` advises",
        "When an answer raises, its card adds a line of advice. These texts it knows; `...` stands for anything.",
        _table(("the message contains", "advice"), ((_readable(p), _escaped(line)) for p, line in ADVICE)),
        "## From bug reports",
        "Mistakes that people reported to well-known projects, and where the course meets them.",
    ]
    for number in sections:
        own = [(*row.cells, where) for row, where in reports if row.section == number]
        parts += [f"### {titles[number]}", _table(("report", "where"), own)]
    return "\n\n".join(parts) + "\n"


def _headed(entries: Iterable[tuple[str, str]]) -> list[str]:
    """Each symptom under a heading of its own: the search puts headings first, and a heading can be linked to."""
    return [f"### {symptom}\n\n{told}" for symptom, told in entries]


def _said(symptom: str) -> list[str]:
    """The pieces of error texts in a cell of the table, as they can be searched for."""
    quoted = [a or b for a, b in re.findall(r'"([^"]+)"|`([^`]+)`', symptom)]
    pieces = [piece.strip() for text in quoted for piece in re.split(r"\.\.\.|\(pid|\d+\b", text)]
    return [_plain(piece) for piece in pieces if len(piece) >= SHORTEST and " " in piece]


def _names_whole(cell: str) -> str:
    """Markdown would read ``__init__`` in an error text as ``init`` in bold."""
    parts = cell.split("`")
    return "`".join(part if i % 2 else part.replace("__", r"\_\_") for i, part in enumerate(parts))


def _plain(text: str) -> str:
    return re.sub(r"\bsim\b", "cuda", text.replace("`", "").replace("SIM", "CUDA")).lower()


def _met(said: list[str], notebook: NotebookNode, headings: list[Heading]) -> list[Heading]:
    """The headings below which a cell puts out one of these texts, or a text speaks of it; outputs first."""
    shown: list[Heading] = []
    spoken: list[Heading] = []
    for index, cell in enumerate(notebook.cells):
        above = [h for h in headings if h.cell <= index]
        if above[-1].title == TABLE:
            break  # the table itself, and the summary below it
        outputs = _plain(
            "\n".join(o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in cell.get("outputs", []))
        )
        for text, place in ((outputs, shown), (_plain(cell.source), spoken)):
            if any(piece in text for piece in said) and above[-1] not in place:
                place.append(above[-1])
    return shown or spoken


def _short(heading: Heading) -> str:
    return re.sub(r"^Part \d+\. ", "", heading.title)


def _escaped(text: str) -> str:
    return re.sub(r"([|*_<>`\\\[\]])", r"\\\1", text)


def _readable(pattern: str) -> str:
    """A regular expression of the table of advice as a reader understands it."""
    text = pattern.strip("^$")
    for regex, plain in ((r"\(?\\w\+\)?|\.\*|\\d\+", " ... "), (r"\[(\w)\w\]", r"\1"), (r"\?|\\b", "")):
        text = re.sub(regex, plain, text)
    depth, words = 0, []
    for sign in re.findall(r"\\.|.", text):
        depth += {"(": 1, ")": -1}.get(sign, 0)
        words.append(sign[-1] if sign != "|" else "/" if depth else '" or "')
    return _escaped(re.sub(r" {2,}", " ", "".join(words)).strip())
