"""The table of topics and beliefs in solutions/README.md, held against the notebooks' sources."""

import re
from pathlib import Path

import pytest

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"
README = (SOLUTIONS / "README.md").read_text(encoding="utf-8")
SOURCES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(SOLUTIONS.glob("[0-9][0-9]_*.py"))}
EVERYTHING = "\n".join(SOURCES.values())


def called(function: str, source: str) -> list[str]:
    return re.findall(rf'\b{function}\(\s*"(\w+)"', source)


def named_in_readme() -> set[str]:
    lists = re.findall(r"predict: (\w+(?:, \w+)*)", README)
    return {name for names in lists for name in names.split(", ")}


@pytest.mark.parametrize("section", SOURCES)
def test_every_prediction_is_asked_once_and_then_measured(section):
    asked, measured = called("predict", SOURCES[section]), called("reveal", SOURCES[section])
    assert len(asked) == len(set(asked)), "two predictions of one name overwrite each other"
    assert set(asked) == set(measured)
    for name in asked:
        source = SOURCES[section]
        assert re.search(rf'predict\(\s*"{name}"', source).start() < re.search(rf'reveal\(\s*"{name}"', source).start()


def test_the_table_names_every_prediction_and_no_other():
    assert named_in_readme() == set(called("predict", EVERYTHING))


def test_the_table_names_every_exercise_of_the_sections_that_exist():
    exercises = set(re.findall(r'^# %% exercise="(\w+)"', EVERYTHING, re.M))
    assert exercises and {name for name in exercises if f"`{name}`" not in README} == set()


def test_the_headings_that_the_table_sends_a_reader_to_exist():
    headings = set(re.findall(r"^# #+ (?:Part \d+\. )?(.+)$", EVERYTHING, re.M))
    quoted = re.findall(r'"([^"]+?)(?:\.\.\.)?"', " ".join(re.findall(r'Part \d(?: "[^"]+"(?:, "[^"]+")*)', README)))
    lost = [q for q in quoted if not any(h.startswith(q.rstrip()) for h in headings)]
    assert quoted and lost == []
