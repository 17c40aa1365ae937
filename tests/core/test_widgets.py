"""The helpers of the demonstrations: predictions, error and warning texts, tables, figures, the stride explorer."""

import base64
import inspect
import re
import warnings

import numpy as np
import pytest
import torch

from course_utils import demos, plots, predictions, widgets
from course_utils.widgets import strides


@pytest.fixture(autouse=True)
def no_predictions(monkeypatch):
    monkeypatch.setattr(predictions, "_predictions", {})


@pytest.fixture
def shown(monkeypatch):
    """What would be displayed in a notebook: (markdown, plain) pairs."""
    out = []
    for module in (demos, predictions, plots):
        monkeypatch.setattr(module, "show_markdown", lambda markdown, plain: out.append((markdown, plain)))
    return out


# ------------------------------------------------------------------------------------------------ predictions
def test_a_guess_is_compared_with_what_was_measured_not_with_its_place_in_the_list(shown):
    predictions.predict("dtype", "Which dtype?", ["float32", "float64"], guess="float64")
    predictions.reveal("dtype", torch.float64)
    predictions.reveal("dtype", torch.float32)
    assert "As you predicted" in shown[1][1]
    assert "You predicted: float64" in shown[2][1]


def test_true_and_false_read_yes_and_no(shown):
    predictions.predict("same", "Is it the same?", [True, False], guess=False)
    predictions.reveal("same", False)
    assert "( ) yes" in shown[0][1] and "( ) no" in shown[0][1]
    assert shown[1][1] == "Measured: no. ✓ As you predicted."


def test_running_a_question_again_keeps_the_guess(shown):
    predictions.predict("n", "How many?", [1, 2], guess=2)
    predictions.predict("n", "How many?", [1, 2])
    predictions.reveal("n", 2)
    assert "As you predicted" in shown[-1][1]


def test_without_a_guess_the_measurement_comes_with_a_reproach(shown):
    predictions.predict("n", "How many?", [1, 2])
    predictions.reveal("n", 2)
    assert shown[-1] == ("**Measured: 2.**", "Measured: 2.")


def test_a_measurement_outside_the_options_is_shown_as_it_is(shown):
    predictions.predict("n", "How many?", [1, 2], guess=1)
    predictions.reveal("n", 17)
    assert "Measured: 17." in shown[-1][1] and "You predicted: 1" in shown[-1][1]


@pytest.mark.parametrize(
    ("options", "guess"), [([1], None), ([1, 1], None), ([True, "yes"], None), (["a", "b"], "c")], ids=str
)
def test_a_question_that_cannot_be_answered_is_refused(options, guess):
    with pytest.raises(ValueError, match="broken: "):
        predictions.predict("broken", "?", options, guess=guess)


def test_reveal_before_its_question_says_what_to_run():
    with pytest.raises(KeyError, match="run the cell with the question first"):
        predictions.reveal("never asked", 1)


def test_the_summary_counts_only_guesses_that_were_made(shown, capsys):
    predictions.predict("right", "A?", [1, 2], guess=1)
    predictions.predict("wrong", "B?", [1, 2], guess=2)
    predictions.predict("open", "C?", [1, 2])
    for name in ("right", "wrong", "open"):
        predictions.reveal(name, 1)
    predictions.my_predictions()
    assert "1 of 2 guesses were right; 1 questions without a guess." in capsys.readouterr().out
    assert "C?" in shown[-1][1] and "(none)" in shown[-1][1]


def test_the_radio_buttons_store_the_choice():
    made = predictions._Prediction("`a < b`?", ["yes", "no"])
    question, buttons = predictions._radio_buttons(made).children
    assert buttons.value is None, "a preselected answer would count as a guess"
    buttons.value = "no"
    assert made.guess == "no"
    assert "<code>a &lt; b</code>" in question.value


# ------------------------------------------------------------------------------------------------ errors, warnings, tables
def test_an_error_is_shown_by_its_first_line_and_stops_nothing(capsys):
    with demos.shows_error():
        raise ValueError("first\nsecond")
    with demos.shows_error():
        pass
    assert capsys.readouterr().out == "ValueError: first\nno error\n"


def test_an_interrupt_still_stops_the_notebook():
    with pytest.raises(KeyboardInterrupt), demos.shows_error():
        raise KeyboardInterrupt


def test_a_once_only_warning_of_torch_is_shown_every_time_and_nothing_reaches_stderr(capfd):
    array = np.ones(3)
    array.flags.writeable = False
    for _ in range(2):
        with demos.shows_warning():
            torch.from_numpy(array)
    out, err = capfd.readouterr()
    assert out.count("The given NumPy array is not writable") == 2 and err == ""
    assert not torch.is_warn_always_enabled()


def test_a_warning_that_is_given_twice_in_a_block_is_shown_once(capsys):
    with demos.shows_warning():
        warnings.warn("look out", stacklevel=1)
        warnings.warn("look out", stacklevel=1)
    assert capsys.readouterr().out == "UserWarning: look out\n"


def test_operators_names_inner_calls_and_keeps_the_profiler_off_stderr(capfd):
    assert demos.operators(torch.zeros, 2, 3) == ["zeros", "empty", "zero_"]
    assert capfd.readouterr().err == ""


def test_a_table_keeps_cells_apart_that_hold_a_bar(shown):
    demos.table(("code", "same"), [("a | b", True)])
    assert shown[0][0].splitlines()[-1] == "| `a \\| b` | yes |"
    assert shown[0][1].splitlines()[-1] == "a | b  yes"


def test_a_row_that_does_not_fit_the_head_is_refused():
    with pytest.raises(ValueError, match="does not fit a head of 2"):
        demos.table(("a", "b"), [(1, 2), (1, 2, 3)])


# ------------------------------------------------------------------------------------------------ figures
def test_a_figure_carries_its_picture_its_caption_and_its_alt_text(shown):
    plots.bars(["a", "b"], [1, 2], "bytes", caption="Two bars.", alt="Bars [1] and\n2.")
    markdown, plain = shown[0]
    found = re.match(r"!\[(.*?)\]\(data:image/png;base64,(.*?)\)\n\n\*\*Figure\.\*\* Two bars\.", markdown)
    assert found and found[1] == "Bars (1) and 2."
    assert base64.b64decode(found[2]).startswith(b"\x89PNG")
    assert plain == "[Figure: Bars [1] and 2.]\nTwo bars."


def test_a_figure_without_alt_text_is_refused():
    with pytest.raises(ValueError, match="alt text"):
        plots.show(plots.figure(1, 1), caption="something", alt=" ")


def test_images_need_as_many_titles():
    with pytest.raises(ValueError, match="2 images need as many titles, not 1"):
        plots.image_row([np.zeros((2, 3))] * 2, ["one"], caption="c", alt="a")


# ------------------------------------------------------------------------------------------------ the stride explorer
@pytest.mark.parametrize("shape", strides.SHAPES, ids=str)
def test_the_walk_ends_at_the_place_whose_number_the_tensor_holds(shape):
    order = tuple(reversed(range(len(shape))))
    tensor, code = strides._cut(shape, order, start=1, step=2)
    assert torch.equal(eval(code), tensor), "the title must be the expression that makes the tensor"
    for element, value in enumerate(tensor.flatten().tolist()):
        assert strides.walk(tensor, element).endswith(f"= place {value}")


def test_the_alt_text_tells_what_the_picture_tells():
    x = torch.arange(12).view(3, 4).t()
    text = strides.alt_text(x, "x.t()", element=5)
    for part in ("(4, 3)", "stride (1, 4)", "not contiguous", "0, 4, 8, 1, 5, 9", "offset 0 + 1*1 + 2*4 = place 9"):
        assert part in text


def test_moving_the_controls_never_leaves_an_impossible_choice():
    box = strides._explorer((3, 4), (1, 0), 0, 1, 5, "caption")
    shape, order, start, step, element, picture, _ = box.children
    start.value, element.value = 3, 2
    shape.value = (2, 3, 2)  # fewer rows than the start, another number of axes
    assert len(order.value) == 3 and start.value <= start.max == 1
    step.value = 3
    element.value = element.max
    code = "torch.arange(12).view(2, 3, 2)[1::3]"
    assert f'alt="{code} has shape (1, 3, 2)' in picture.value
    shape.value = (12,)
    assert order.value == (0,) and "torch.arange(12)[1::3] has shape (4,)" in picture.value


def test_only_small_tensors_are_drawn():
    with pytest.raises(ValueError, match="at most 24 cells"):
        strides.draw(torch.arange(100)[:4], "x")
    with pytest.raises(ValueError, match="element 12 is not one of the 12 elements"):
        strides.draw(torch.arange(12), "x", element=12)
    with pytest.raises(ValueError, match="choose a shape"):
        strides.stride_explorer(shape=(5, 5))


def test_outside_a_notebook_the_explorer_is_a_picture(shown):
    strides.stride_explorer()
    assert "data:image/png" in shown[0][0] and "torch.arange(12).view(3, 4).permute(1, 0)" in shown[0][1]


@pytest.mark.parametrize("variable", ["NBGRADER_EXECUTION", "COURSE_STATIC"])
def test_no_widget_where_nobody_can_move_it(variable, monkeypatch):
    class Shell:
        kernel = object()

    import IPython

    monkeypatch.setattr(IPython, "get_ipython", lambda: Shell())
    for name in ("NBGRADER_EXECUTION", "COURSE_STATIC"):
        monkeypatch.delenv(name, raising=False)
    assert widgets.can_interact()
    monkeypatch.setenv(variable, "1")
    assert not widgets.can_interact()


def test_the_package_offers_what_the_notebooks_import():
    import course_utils

    for name in ("predict", "reveal", "my_predictions", "shows_error", "shows_warning", "table", "operators"):
        assert inspect.isfunction(getattr(course_utils, name)), name
