"""What a person reads: five lines of text, and a card of the same content that no value can break out of."""

from __future__ import annotations

import html
import re

import pytest

from course_utils.observe import card, message
from course_utils.observe.compare import Ended, Finding, Kind, Verdict
from course_utils.observe.errors import ADVICE, advice
from course_utils.observe.plain import Spec

FORM = Finding(
    "type of the result",
    False,
    Spec(form=True),
    "Tensor float32 (3, 5)",
    "ndarray uint8 (3, 5)",
    "A model takes a tensor.",
    "Call torch.from_numpy.",
    (0,),
)
VALUES = Finding("values", False, Spec(), "1 at [0]", "2; 1 of 3 differ", "Not doubled.", "Multiply by 2.", (1,))
COST = Finding("bytes at peak", False, Spec(at_most=True, share=0.4), "at most 100", "900", "Two copies.", "Use one.")
HOLDS = Finding("type of the result", True, Spec(form=True), "int", "int")
UNSEEN = Finding("values", False, Spec(), "1", "not reached: ValueError", cases=(0,), seen=False)
CRASH = Ended("crashed", "RuntimeError", "mat1 and mat2 shapes cannot be multiplied", "3: return x @ w")

GOLDEN = {
    Kind.RIGHT: (Verdict("doubled", Kind.RIGHT, 4.0, 4.0), "doubled: right, 4 of 4 points"),
    Kind.WRONG_FORM: (
        Verdict("doubled", Kind.WRONG_FORM, 0.0, 4.0, (FORM,)),
        """\
doubled, type of the result: wrong type or shape, 0 of 4 points
expected: Tensor float32 (3, 5)
got:      ndarray uint8 (3, 5)
why:      A model takes a tensor.
try:      Call torch.from_numpy.""",
    ),
    Kind.WRONG_VALUE: (
        Verdict("doubled", Kind.WRONG_VALUE, 0.0, 4.0, (HOLDS, VALUES, COST)),
        """\
doubled, values (case 2): wrong value, 0 of 4 points
expected: 1 at [0]
got:      2; 1 of 3 differ
why:      Not doubled.
try:      Multiply by 2.""",
    ),
    Kind.WASTEFUL: (
        Verdict("doubled", Kind.WASTEFUL, 2.4, 4.0, (HOLDS, COST)),
        """\
doubled, bytes at peak: right but wasteful, 2.4 of 4 points
expected: at most 100
got:      900
why:      Two copies.
try:      Use one.""",
    ),
    Kind.PARTLY: (
        Verdict("doubled", Kind.PARTLY, 2.0, 4.0, (Finding("exact", False, Spec(share=0.5), "21.5", "3"),)),
        """\
doubled, exact: partly right, 2 of 4 points
expected: 21.5
got:      3
why:      the reference behaves differently here
try:      hint("doubled")""",
    ),
    Kind.CRASHED: (
        Verdict("doubled", Kind.CRASHED, 0.0, 4.0, (HOLDS, UNSEEN), CRASH),
        """\
doubled: crashed, 0 of 4 points
expected: a result
got:      RuntimeError: mat1 and mat2 shapes cannot be multiplied
why:      raised at line 3: return x @ w
try:      Linear works on the last axis: print the shape just before this line""",
    ),
    Kind.NAME_MISSING: (
        Verdict("doubled", Kind.NAME_MISSING, 0.0, 4.0),
        """\
doubled: name missing, 0 of 4 points
expected: something called doubled
got:      no such name in this notebook
why:      the cell that defines it was not run, failed, or uses another name
try:      run the cell that defines doubled, and keep its name""",
    ),
    Kind.NOT_STARTED: (
        Verdict("doubled", Kind.NOT_STARTED, 0.0, 4.0),
        """\
doubled: not started, 0 of 4 points
why:      the answer is still as it was handed out
try:      write your answer above, check again; hint("doubled") helps""",
    ),
    Kind.SKIPPED: (
        Verdict("doubled", Kind.SKIPPED, 4.0, 4.0, detail="needs a second device"),
        "doubled: skipped, 4 of 4 points\nwhy:      needs a second device",
    ),
    Kind.NOT_GRADABLE: (
        Verdict("doubled", Kind.NOT_GRADABLE, 0.0, 4.0, detail="the machine ran out of memory"),
        "doubled: not gradable, 0 of 4 points\nwhy:      the machine ran out of memory",
    ),
}


def test_a_kind_of_verdict_has_no_message_here():
    assert set(GOLDEN) == set(Kind)


@pytest.mark.parametrize("kind", Kind, ids=lambda k: k.name)
def test_a_message_has_changed(kind):
    verdict, text = GOLDEN[kind]
    assert message.text(verdict) == text


@pytest.mark.parametrize("kind", Kind, ids=lambda k: k.name)
def test_the_card_says_other_things_than_the_text(kind):
    verdict, _ = GOLDEN[kind]
    shown = re.sub(r"<[^>]+>", " ", card.html(verdict)).replace("&quot;", '"')
    shown = " ".join(shown.split())
    for line in message.lines(verdict):
        assert " ".join(line.split()) in shown


LONG = "a very long text that goes on and on " * 50


@pytest.mark.parametrize("kind", Kind, ids=lambda k: k.name)
def test_a_long_text_is_cut_by_nbgrader_validate_instead_of_here(kind):
    finding = Finding(LONG, False, Spec(), LONG, LONG, LONG, LONG, (1,))
    ended = Ended("crashed", "E" * 300, LONG, LONG)
    verdict = Verdict("doubled", kind, 0.25, 4.0, (finding,), ended, (LONG,) * 5, LONG)
    for hidden in (False, True):
        rows = message.text(verdict, hidden).splitlines()
        assert max(map(len, rows)) <= message.WIDTH
        assert rows[0].endswith(f"{kind.value}, 0.25 of 4 points")
        assert len(rows) <= 5 + 3 * 2


def test_the_width_is_more_than_nbgrader_validate_shows():
    from nbgrader.validator import Validator

    validator = Validator()
    assert len(validator.indent) + message.WIDTH <= validator.width - 3


def test_hidden_expected_values_are_shown():
    for kind, (verdict, _) in GOLDEN.items():
        if verdict.first is not None and kind is not Kind.CRASHED:
            assert verdict.first.expected in message.text(verdict)
            for shown in (message.text(verdict, hidden=True), card.html(verdict, hidden=True)):
                assert verdict.first.expected not in shown
                assert "not shown" in shown


HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</code></div><b>", "&lt;b&gt;", "`'\""]


def hostile(text: str) -> Verdict:
    finding = Finding(text, False, Spec(), text, text, text, text, (0,))
    return Verdict("doubled", Kind.WRONG_VALUE, 0.0, 4.0, (finding,), Ended("crashed", text, text, text), (text,))


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("hidden", [False, True])
def test_a_value_breaks_out_of_the_card(text, hidden):
    page = card.html(hostile(text), hidden)
    harmless = card.html(hostile("x"), hidden)
    assert re.findall(r"<[^>]*>", page) == re.findall(r"<[^>]*>", harmless)


@pytest.mark.parametrize("kind", Kind, ids=lambda k: k.name)
def test_the_sanitiser_of_the_feedback_takes_content_out_of_the_card(kind):
    from nbconvert.filters.strings import clean_html

    verdict, _ = GOLDEN[kind]
    page = card.html(verdict, hidden=True)
    clean = clean_html(page)
    text = lambda markup: html.unescape(re.sub(r"<[^>]+>", "", markup))  # noqa: E731
    assert text(clean) == text(page)
    assert 'class="course-card' in clean
    assert "&lt;" not in clean


@pytest.mark.parametrize("text", ["\ud800", "\x1b[31mred", "a\x00b", "line\nbreak", "\u202eright to left"])
def test_a_control_character_or_half_a_character_reaches_the_screen(text):
    finding = Finding("values", False, Spec(), text, text, text, text, (0,))
    verdict = Verdict("doubled", Kind.WRONG_VALUE, 0.0, 4.0, (finding,), Ended("crashed", text, text, text), (text,))
    for shown in (message.text(verdict), card.html(verdict), card.html(verdict, hidden=True)):
        shown.encode("utf-8")
        assert not set(shown) & set("\x1b\x00\u202e")
    assert all(line.isprintable() for line in message.lines(verdict))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("ValueError", "At least one of the strides in the given numpy array for tensor is negative"),
        ("RuntimeError", "view size is not compatible with input tensor's size and stride"),
        ("RuntimeError", "a leaf Variable that requires grad is being used in an in-place operation."),
        ("RuntimeError", "Expected all tensors to be on the same device, but found at least two devices"),
        ("TypeError", "f() missing 1 required positional argument: 'x'"),
        ("NameError", "name 'torch' is not defined"),
        ("AttributeError", "'NoneType' object has no attribute 'shape'"),
    ],
)
def test_an_error_that_learners_often_meet_gets_no_advice(error, text):
    assert advice(error, text)


def test_a_wrong_call_of_torch_is_taken_for_a_changed_head_of_the_answer():
    kept = "keep the parameters as they were handed out"
    assert advice("TypeError", "as_layout() takes 1 positional argument but 2 were given", "as_layout") == kept
    assert advice("TypeError", "Net.forward() missing 1 required positional argument: 'x'", "Net") == kept
    by_name = advice("TypeError", "contiguous() takes 0 positional arguments but 1 was given", "as_layout")
    assert "memory_format=" in by_name
    other = advice("TypeError", "sum() received an invalid combination of arguments - got (dims=int, )", "as_layout")
    assert other and kept not in (by_name, other)


def test_advice_does_not_fit_its_line():
    for _, line in ADVICE:
        assert len(line) <= message.WIDTH - 10, line


def test_advice_is_given_for_an_unknown_error():
    assert advice("ValueError", "something else") == ""
