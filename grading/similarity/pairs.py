"""From the answers of a class to groups of students whose answers are alike.

Two measures, both on the words of ``normalise.py``:

* *likeness*: the share of words that stand in both in the same order (rapidfuzz's normalised Indel similarity);
* *surprise*: for each run of five words that both have, and that neither the stub, the reference nor an answer of the
  bank has, the bits log2(answers / answers that have it). Such runs overlap, so the sum ranks and is no probability.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rapidfuzz.distance import Indel
from rapidfuzz.process import cdist

from grading.similarity.normalise import rough_words, words

__all__ = ["Alike", "Group", "groups"]

RUN = 5  # words
KNOWN = 0.9  # an answer at least so like the stub, the reference or one of the bank is one of those
LEAST = 12  # runs of their own that two answers share; below, they are too short to differ


@dataclass(frozen=True)
class Alike:
    """A student in a group, and the one of the group whose answer is nearest."""

    student: str
    nearest: str
    likeness: float
    surprise: float


@dataclass(frozen=True)
class Group:
    """Students whose answers hang together, most surprising first."""

    exercise: str
    members: tuple[Alike, ...]

    @property
    def surprise(self) -> float:
        return self.members[0].surprise


class _Letters(dict[str, str]):
    """A letter for each word: rapidfuzz compares strings faster than lists of words."""

    def __missing__(self, word: str) -> str:
        self[word] = chr(0x10000 + len(self))
        return self[word]


def _runs(text: str) -> frozenset[str]:
    return frozenset(text[i : i + RUN] for i in range(len(text) - RUN + 1))


def groups(
    exercise: str, answers: Mapping[str, str], known: Sequence[str], threshold: float = 0.8, jobs: int = -1
) -> list[Group]:
    """Groups of students whose answers to one exercise are alike, the most surprising first.

    Parameters
    ----------
    answers : mapping of str to str
        The code of each student.
    known : sequence of str
        Code that is nobody's own: the stub, the reference, answers of the bank.
    threshold : float
        The least likeness, from 0 to 1.
    jobs : int
        Threads; -1 for all cores.
    """
    letters = _Letters()

    def encode(found: tuple[str, ...]) -> str:
        return "".join(letters[word] for word in found)

    # In both ways: an answer with a syntax error is compared by its rough words, and may be one of these with a slip.
    common = sorted({encode(way(source)) for source in known for way in (words, rough_words)} - {""})
    not_own: set[str] = set().union(*map(_runs, common))
    students: dict[str, list[str]] = defaultdict(list)  # equal answers are compared once
    for student, source in sorted(answers.items()):
        students[encode(words(source))].append(student)
    own = {text: _runs(text) - not_own for text in students}
    own = {text: runs for text, runs in own.items() if len(runs) >= LEAST}
    if own and common:
        near = cdist(list(own), common, scorer=Indel.normalized_similarity, score_cutoff=KNOWN, workers=jobs)
        own = {text: runs for (text, runs), row in zip(own.items(), near, strict=True) if not row.any()}
    if not own:
        return []

    total = len(answers) + len(common)
    having: Counter[str] = Counter()
    for text, runs in own.items():
        having.update({run: len(students[text]) for run in runs})

    def surprise(one: frozenset[str], other: frozenset[str]) -> float:
        return sum(math.log2(total / having[run]) for run in one & other)

    texts = list(own)
    table = cdist(texts, texts, scorer=Indel.normalized_similarity, score_cutoff=threshold, workers=jobs)
    links: dict[int, dict[int, float]] = {i: {} for i in range(len(texts))}
    for i, j in zip(*np.nonzero(np.triu(table, 1)), strict=True):
        if len(own[texts[i]] & own[texts[j]]) >= LEAST:
            links[i][j] = links[j][i] = float(table[i, j])

    found = []
    for part in _parts(links):
        members = []
        for i in part:
            same, runs = students[texts[i]], own[texts[i]]
            for student in same:
                if len(same) > 1:
                    nearest = same[1] if student == same[0] else same[0]
                    members.append(Alike(student, nearest, 1.0, surprise(runs, runs)))
                elif links[i]:
                    j = max(links[i], key=lambda j: (links[i][j], -j))
                    members.append(Alike(student, students[texts[j]][0], links[i][j], surprise(runs, own[texts[j]])))
        if members:
            members.sort(key=lambda m: (-m.surprise, m.student))
            found.append(Group(exercise, tuple(members)))
    return sorted(found, key=lambda g: (-g.surprise, g.members[0].student))


def _parts(links: Mapping[int, Mapping[int, float]]) -> list[list[int]]:
    """What hangs together."""
    parts, seen = [], set()
    for start in links:
        if start in seen:
            continue
        seen.add(start)
        part, ahead = [], [start]
        while ahead:
            part.append(at := ahead.pop())
            new = links[at].keys() - seen
            seen |= new
            ahead += new
        parts.append(sorted(part))
    return parts
