"""Exercises as behaviours: observe an answer, write down facts, compare, explain.

=================  ==================================================================
``exercise``       the registry: one observer per exercise
``case``           seeded inputs for an observer
``facts``          the recorder ``see`` and the plain data that it writes
``guard``          keeps an answer's warnings, output and mess out of the notebook
``run``            runs an observer on an answer
``compare``        behaviour of an answer against the reference's: a verdict
``clues``          what the difference of two values tells about the mistake
``message``        the five lines of text, and ``card`` the same for JupyterLab
``agent``          what runs in a student's kernel when an instructor grades
=================  ==================================================================

Everything here ships to students; nothing here knows an answer.
"""

from course_utils.observe.case import Case
from course_utils.observe.exercise import Exercise, NotStarted, all_exercises, exercise, find_exercise
from course_utils.observe.facts import See, attempt, describe

__all__ = ["Case", "Exercise", "NotStarted", "See", "all_exercises", "attempt", "describe", "exercise", "find_exercise"]
