"""The loss-scale stepper: what it shows is what a real GradScaler does."""

import pytest

from course_utils import plots
from course_utils.widgets import loss_scale


@pytest.fixture
def shown(monkeypatch):
    out = []
    monkeypatch.setattr(plots, "show_markdown", lambda markdown, plain: out.append((markdown, plain)))
    return out


def test_an_overflow_skips_the_step_and_halves_the_scale():
    life = loss_scale.scale_life(4, overflows=[2, 3], growth_interval=9, init_scale=1024.0)
    assert [s.skipped for s in life] == [False, True, True, False]
    assert [s.scale for s in life] == [1024.0, 1024.0, 512.0, 256.0]
    assert life[-1].scale_after == 256.0


def test_the_scale_doubles_after_good_steps_in_a_row_and_an_overflow_starts_the_count_again():
    life = loss_scale.scale_life(7, overflows=[3], growth_interval=3, init_scale=64.0)
    assert [s.good_steps for s in life] == [1, 2, 0, 1, 2, 0, 1]
    assert [s.scale_after for s in life] == [64.0, 64.0, 32.0, 32.0, 32.0, 64.0, 64.0]


@pytest.mark.parametrize(("steps", "overflows"), [(0, []), (25, []), (4, [5]), (4, [0])])
def test_a_walk_that_cannot_be_made_is_refused(steps, overflows):
    with pytest.raises(ValueError, match="overflows among them"):
        loss_scale.scale_life(steps, overflows)


def test_choices_outside_of_the_sliders_are_refused():
    with pytest.raises(ValueError, match="a growth interval of 1 to 8"):
        loss_scale.loss_scale_stepper(growth_interval=2000)


def test_the_alt_text_tells_scales_and_skipped_steps(shown):
    loss_scale.loss_scale_picture(loss_scale.scale_life(4, [2], 9, 1024.0))
    markdown, plain = shown[0]
    assert "data:image/png" in markdown
    assert "1,024, 1,024, 512, 512" in plain and "Skipped steps: 2." in plain


def test_outside_a_notebook_the_stepper_is_a_picture(shown):
    loss_scale.loss_scale_stepper(overflows=[])
    assert "data:image/png" in shown[0][0] and "Skipped steps: none." in shown[0][1]


def test_moving_the_controls_walks_through_the_new_steps():
    boxes, interval, power, step, sentence, picture, _ = loss_scale._stepper((2,), 4, 10, 8).children
    step.value = 2
    assert "step 2: scale 1,024; gradients overflow, the step is skipped; the scale becomes 512" in sentence.value
    boxes.children[2].value = False  # the label stands first
    assert "step 2: scale 1,024; the weights are changed; 2 good steps in a row" in sentence.value
    interval.value, power.value = 2, 5
    assert "the scale becomes 64" in sentence.value and "Skipped steps: none" in picture.value
