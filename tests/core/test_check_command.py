"""check, hint and progress as a learner calls them, and what is remembered."""

from __future__ import annotations

import json
import os
import re
import types

import pytest

from course_utils import checking, files
from course_utils import progress_store as store
from course_utils.checking import CheckFailed, check, hint, judge_public, progress
from course_utils.observe import all_exercises, registry
from course_utils.observe.compare import Kind, Verdict

FACTS = "doubled, value: wrong value, 0 of 4 points"


def observer(answer, case, see):
    """Twice the number."""
    n = case.integer(3, 9)
    see("value", answer(n), why="Not doubled.", fix="Multiply by 2.")
    see("bytes at peak", COST[0], at_most=True, allowance=10, why="Wasteful.", fix="Save.")


COST = [100]
HINTS: list = []  # what hint() has shown
DISPLAY = checking._display


def hinted(*arguments, **options) -> str:
    """What one call of hint shows, as text without its first line, which is the exercise's name."""
    hint(*arguments, **options)
    return repr(HINTS[-1]).partition("\n")[2]


@pytest.fixture
def shell(monkeypatch, tmp_path, trial):
    """A notebook: IPython's namespace, published outputs, a progress folder of its own, and one exercise, ``doubled``."""
    all_exercises()
    toy = trial(observer, lambda n: 2 * n)
    expected = toy.behaviour(registry.public_seed("doubled"))
    monkeypatch.setitem(registry._EXERCISES, "doubled", toy.exercise)
    monkeypatch.setattr(checking, "public_behaviour", lambda section, name: expected)
    monkeypatch.setattr(checking, "all_exercises", lambda section=None: [toy.exercise])
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "progress"))
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    shell = types.SimpleNamespace(user_ns={}, shown=[])
    monkeypatch.setattr(checking, "_shell", lambda: shell)
    monkeypatch.setattr(checking, "_show", shell.shown.append)
    monkeypatch.setattr(checking, "_display", HINTS.append)
    COST[0] = 100
    return shell


def right(n):
    return 2 * n


def wrong(n):
    return n + 2


def record() -> store.Record:
    return store.load("toy").get("doubled", store.Record())


# ------------------------------------------------------------------------------------------------ check
def test_a_right_answer_raises_or_is_not_praised(shell):
    shell.user_ns["doubled"] = right
    check("doubled")
    assert [v.kind for v in shell.shown] == [Kind.RIGHT]
    assert (record().tries, record().best, record().last, record().kind) == (1, 4.0, 4.0, "right")


def test_an_answer_is_not_found_by_what_it_is(shell):
    def doubled(n):
        return 2 * n

    check(doubled)  # by its own name

    table = right
    shell.user_ns["doubled"] = table
    check(table)  # by being what the name stands for
    assert [v.kind for v in shell.shown] == [Kind.RIGHT] * 2


def test_a_wrong_answer_passes_in_silence(shell):
    shell.user_ns["doubled"] = wrong
    with pytest.raises(CheckFailed) as caught:
        check("doubled")
    assert str(caught.value) == f"{FACTS}. The card above says more."
    assert caught.value._render_traceback_() == [str(caught.value)]
    assert shell.shown[0].points == 0


def test_a_missing_name_is_taken_for_something_else(shell):
    with pytest.raises(CheckFailed, match="name missing"):
        check("doubled")
    assert record().tries == 0


def test_a_name_that_stands_for_none_counts_as_missing(shell):
    shell.user_ns["doubled"] = None
    with pytest.raises(CheckFailed, match="crashed"):
        check("doubled")


@pytest.mark.parametrize("thing", [3, None, [], types.SimpleNamespace(__name__=[])], ids=repr)
def test_something_that_answers_no_exercise_is_judged(thing, shell):
    with pytest.raises(TypeError, match="give its name"):
        check(thing)


def test_a_misspelt_name_gets_no_suggestion(shell):
    with pytest.raises(LookupError, match="Did you mean doubled"):
        check("duobled")


def test_a_plain_script_is_told_less_than_a_notebook(shell, monkeypatch):
    monkeypatch.setattr(checking, "_shell", lambda: None)
    monkeypatch.setitem(globals(), "doubled", wrong)
    with pytest.raises(CheckFailed) as caught:
        check("doubled")
    assert [line[:5] for line in str(caught.value).splitlines()] == ["doubl", "expec", "got: ", "why: ", "try: "]
    assert shell.shown == []
    assert not store.progress_folder().exists()


def test_nbgrader_validate_sees_a_card_or_no_message(shell, monkeypatch, capsys):
    monkeypatch.setenv("NBGRADER_EXECUTION", "validate")

    def doubled(n):
        print("loud")
        return n + 2

    with pytest.raises(CheckFailed) as caught:
        check(doubled)
    assert caught.value._render_traceback_()[0] == FACTS
    assert len(caught.value._render_traceback_()) == 5
    assert shell.shown == []
    assert capsys.readouterr() == ("", "")
    assert not store.progress_folder().exists()


def test_what_an_answer_prints_is_not_shown_to_its_author(shell, capsys):
    def doubled(n):
        print("n is", n)
        return 2 * n

    check(doubled)
    out, err = capsys.readouterr()
    assert out.count("n is") == 2
    assert err == ""


def test_a_check_is_counted_twice(shell, monkeypatch):
    saved = []
    monkeypatch.setattr(store, "save", lambda *args: saved.append(args))
    shell.user_ns["doubled"] = right
    check("doubled")
    assert len(saved) == 1


def test_grading_and_checking_judge_differently(shell):
    verdict = judge_public(registry.find_exercise("doubled"), wrong)
    assert isinstance(verdict, Verdict)
    assert (verdict.kind, verdict.first.fix) == (Kind.WRONG_VALUE, "Multiply by 2.")
    assert not store.progress_folder().exists()


# ------------------------------------------------------------------------------------------------ hints
def opened() -> int:
    return len(re.findall(r"Hint \d of 3", hinted("doubled")))


def fail(shell, answer) -> None:
    shell.user_ns["doubled"] = answer
    with pytest.raises(CheckFailed):
        check("doubled")


def test_hints_open_without_different_tries(shell):
    assert [opened(), opened()] == [1, 1]
    fail(shell, wrong)
    assert [opened(), opened()] == [2, 2]
    for cost in (200, 203):  # the same answer again; a cost may differ from run to run
        COST[0] = cost
        fail(shell, wrong)
    assert opened() == 2
    fail(shell, lambda n: n)
    assert [opened(), opened()] == [3, 3]


def test_an_address_in_an_error_opens_a_hint(shell):
    def confused(n):
        raise ValueError(object())

    for _ in range(3):
        fail(shell, confused)
    assert len(record().failed) == 1


def test_a_stub_or_a_right_answer_opens_a_hint(shell):
    def stub(n):
        raise NotImplementedError

    fail(shell, stub)
    shell.user_ns["doubled"] = right
    check("doubled")
    assert (record().tries, record().failed) == (2, [])


def test_a_hint_cannot_be_read_again_or_read_too_early(shell):
    fail(shell, wrong)
    assert opened() == 1
    text = hinted("doubled", level=3)
    assert "second" in text and "third" not in text
    assert "after one more different try" in text
    assert record().hints == 2
    assert hinted("doubled", level=1).startswith("Hint 1 of 3: first")
    for odd in (0, -1):
        assert "Hint" not in hinted("doubled", level=odd)
    assert record().hints == 2


def test_a_hint_breaks_out_of_its_page(shell, monkeypatch):
    exercise = registry.find_exercise("doubled")
    monkeypatch.setitem(
        registry._EXERCISES, "doubled", registry.Exercise(**{**vars(exercise), "hints": ("<script>a < b</script>",)})
    )
    hinted("doubled")
    assert "<script>" not in HINTS[-1]._repr_html_()


def test_two_hints_in_one_cell_show_one(shell, monkeypatch, capsys):
    for text in ("first", "second"):
        assert hint("doubled") is None, "a value would be shown a second time below the cell"
        fail(shell, wrong)
        assert text in repr(HINTS[-1])
    monkeypatch.setattr(checking, "_shell", lambda: None)
    monkeypatch.setattr(checking, "_display", DISPLAY)
    hint("doubled", level=1)
    assert capsys.readouterr().out.startswith("doubled\nHint 1 of 3: first")


def test_progress_of_all_sections_is_one_long_list_without_sums(shell, monkeypatch, trial):
    from dataclasses import replace

    toy = registry.find_exercise("doubled")
    other = replace(toy, id="halved", section="tensor_costs")
    monkeypatch.setattr(checking, "all_exercises", lambda section=None: [toy, other])
    shell.user_ns["doubled"] = right
    check("doubled")
    lines = [line.split() for line in repr(progress()).splitlines()]
    firsts = [line[0] for line in lines[:-1]]
    assert firsts == ["exercise", "toy", "doubled", "01_tensor_costs", "halved", "total"]
    assert lines[1][1:] == ["4", "/", "4"] and lines[3][1:] == ["0", "/", "4"] and lines[5][1:] == ["4", "/", "8"]
    assert lines[-1][-3:] == ["?", "/", "2"]  # in words, and no part of the sum
    assert progress()._repr_html_().count("<th") == 4 * 8


def test_progress_does_not_show_what_was_reached(shell):
    assert "○ not started" in repr(progress())
    fail(shell, wrong)
    assert "✗ wrong value" in repr(progress())
    shell.user_ns["doubled"] = right
    check("doubled")
    fail(shell, wrong)
    text = repr(progress())
    assert re.search(r"doubled +✗ wrong value +0 / 4 +4 +3 ", text)
    assert "0 / 4" in text.splitlines()[-1]
    assert progress()._repr_html_().count("<tr>") == 3


# ------------------------------------------------------------------------------------------------ the file
BROKEN = {
    "no JSON": "{ broken",
    "cut off": '{"doubled": {"tries": 3',
    "no text": b"\xff\xfe\x00",
    "a list": "[1, 2]",
    "a number": "3",
    "a record that is none": '{"doubled": 3}',
    "unknown fields": '{"doubled": {"surprise": 1}}',
    "a text for a number": '{"doubled": {"tries": "many"}}',
    "no list": '{"doubled": {"failed": 3}}',
    "too deep": "[" * 100_000,
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_progress_file_stops_the_check_or_is_lost(what, shell):
    folder = store.progress_folder()
    folder.mkdir(parents=True)
    data = BROKEN[what] if isinstance(BROKEN[what], bytes) else BROKEN[what].encode()
    (folder / "toy.json").write_bytes(data)
    shell.user_ns["doubled"] = right
    check("doubled")
    assert (folder / "toy.unreadable").read_bytes() == data
    assert record().tries == 1
    repr(progress()), hinted("doubled")


def test_an_interrupted_write_leaves_half_a_progress_file(shell, monkeypatch):
    shell.user_ns["doubled"] = right
    check("doubled")
    file = store.progress_folder() / "toy.json"
    before = file.read_bytes()

    def fails(*args):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", fails)
        check("doubled")
    assert file.read_bytes() == before
    assert list(store.progress_folder().iterdir()) == [file]


def test_a_folder_that_cannot_be_written_stops_the_check(shell, monkeypatch, tmp_path):
    target = tmp_path / "a file"
    target.write_text("in the way")
    monkeypatch.setenv("COURSE_PROGRESS", str(target))
    shell.user_ns["doubled"] = right
    check("doubled")
    hinted("doubled"), repr(progress())
    assert target.read_text() == "in the way"


def test_a_folder_that_was_deleted_or_a_user_without_home_stops_the_check(shell, monkeypatch, tmp_path):
    monkeypatch.delenv("COURSE_PROGRESS")

    def nowhere():
        raise RuntimeError("no home")

    monkeypatch.setattr(store.Path, "home", nowhere)
    here = os.getcwd()
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    try:
        shell.user_ns["doubled"] = right
        check("doubled")
    finally:
        os.chdir(here)


def test_progress_of_other_exercises_is_lost(shell):
    store.save("toy", "other", store.Record(tries=5))
    shell.user_ns["doubled"] = right
    check("doubled")
    assert store.load("toy")["other"].tries == 5


def test_the_file_grows_with_every_try(shell):
    many = store.Record(failed=[str(i) for i in range(1000)])
    assert store.save("toy", "doubled", many)
    assert record().failed == [str(i) for i in range(1000 - store.MAX_FINGERPRINTS, 1000)]
    json.loads((store.progress_folder() / "toy.json").read_text())


def test_progress_is_kept_elsewhere_than_beside_the_notebooks(monkeypatch, tmp_path):
    monkeypatch.delenv("COURSE_PROGRESS", raising=False)
    for name in ("course_utils", "notebooks/01_toy"):
        (tmp_path / name).mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "notebooks" / "01_toy"):
        monkeypatch.chdir(folder)
        assert store.progress_folder() == tmp_path.resolve() / ".progress"


def test_a_graded_copy_says_that_nothing_was_started(monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    assert "progress is not shown" in repr(progress()) and "not started" not in progress()._repr_html_()
