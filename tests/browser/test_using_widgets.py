"""Each widget in JupyterLab: keys and mouse change what it shows."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.browser.lab import THEMES

METADATA = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}  # else JupyterLab asks which
CALLS = {
    "strides": "from course_utils.widgets.strides import stride_explorer\nstride_explorer()",
    "backward": (
        "import torch\nfrom course_utils.widgets.backward import backward_explorer\n"
        "model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())\n"
        "backward_explorer(model(torch.ones(3, 4)).sum(), model)"
    ),
    "queue": "from course_utils.widgets.queue import queue_explorer\nqueue_explorer()",
    "prefetch": "from course_utils.widgets.prefetch import prefetch_timeline\nprefetch_timeline()",
    "loss_scale": "from course_utils.widgets.loss_scale import loss_scale_stepper\nloss_scale_stepper()",
    "predict": "from course_utils import predict\npredict('even', 'Is 2 even?', [True, False])",
}
CONTROLS = {  # what is reached with Tab, and the keys that change it
    "strides": {".noUi-handle": "ArrowRight", "input[type=radio]:not(:checked)": "Space"},
    "backward": {".noUi-handle": "ArrowRight", "button:enabled": "Space"},
    "queue": {".noUi-handle": "ArrowRight", "input[type=radio]:not(:checked)": "Space"},
    "prefetch": {"input[type=radio]:not(:checked)": "Space"},
    "loss_scale": {".noUi-handle": "ArrowRight", "input[type=checkbox]": "Space"},
}


@pytest.fixture(scope="module")
def book(server, open_notebook):
    notebook = new_notebook(cells=[new_code_cell(call) for call in CALLS.values()], metadata=METADATA)
    nbformat.write(notebook, server.folder / "widgets.ipynb")
    notebook = open_notebook("widgets.ipynb")
    notebook.run_all(120)
    yield notebook
    notebook.close()


def changed(book, shown, before):
    """Wait until the widget's picture, which its text describes, is another one."""
    picture = shown.locator(".widget-html-content img")
    for _ in range(100):
        if picture.get_attribute("src") != before:
            return True
        book.page.wait_for_timeout(100)
    return False


@pytest.mark.parametrize("widget", CONTROLS)
def test_a_widget_does_not_answer_the_keyboard(book, widget):
    index = list(CALLS).index(widget)
    book.go_to(index)
    shown = book.cell(index).locator(".jp-OutputArea")  # not the cell's own buttons: one deletes it
    dead = []
    for selector, key in CONTROLS[widget].items():
        before = shown.locator(".widget-html-content img").get_attribute("src")
        shown.locator(selector).first.focus()
        book.page.keyboard.press(key)
        if not changed(book, shown, before):
            dead.append(selector)
    assert dead == []


@pytest.mark.parametrize("widget", CONTROLS)
def test_a_widget_does_not_answer_the_mouse(book, widget):
    index = list(CALLS).index(widget)
    book.go_to(index)
    shown = book.cell(index).locator(".jp-OutputArea")
    dead = []
    for selector in CONTROLS[widget]:
        before = shown.locator(".widget-html-content img").get_attribute("src")
        if selector == ".noUi-handle":
            track = shown.locator(".noUi-target").first
            box = track.bounding_box()
            track.click(position={"x": box["width"] * 0.9, "y": box["height"] / 2})
        else:
            shown.locator(selector).first.click()
        if not changed(book, shown, before):
            dead.append(selector)
    assert dead == []


def test_a_guess_is_lost(book):
    """A radio button of a question, chosen with a key, is known to the notebook."""
    index = list(CALLS).index("predict")
    book.go_to(index)
    book.cell(index).locator("input[type=radio]").first.focus()
    book.page.keyboard.press("Space")
    book.js(
        "panel.content.activeCell.model.sharedModel.setSource('from course_utils import reveal; reveal(\"even\", True)');"
    )
    book.run(index)
    assert "As you predicted" in str(book.outputs()[index])


@pytest.mark.parametrize("theme", THEMES)
def test_a_label_can_hardly_be_told_from_its_ground(book, theme):
    book.theme(theme)
    texts = book.measure("looks.contrasts()")
    book.photograph(
        f"widget-{theme}", {str(i): f"[data-windowed-list-index='{i}'] .widget-html-content img" for i in range(5)}
    )
    assert texts["count"] > 50 and texts["low"] == []
