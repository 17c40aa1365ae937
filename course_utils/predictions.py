"""Predict first, then run: a guess is remembered and compared with what was measured, never with a stored answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from course_utils.demos import show_markdown, table
from course_utils.widgets import can_interact, display_widget

__all__ = ["my_predictions", "predict", "reveal"]


@dataclass
class _Prediction:
    question: str
    options: list[str]
    guess: str | None = None
    measured: str | None = None


_predictions: dict[str, _Prediction] = {}


def _text(value: Any) -> str:
    """As a reader writes it: yes and no, float32 without its module."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value).removeprefix("torch.")


def predict(name: str, question: str, options: Sequence[Any], guess: Any = None) -> None:
    """Ask the reader for a guess, before the cell below is run.

    Parameters
    ----------
    name : str
        The name that ``reveal`` uses.
    question : str
        Markdown; one question.
    options : sequence
        At least two different answers. What is measured may also be none of them.
    guess : optional
        The guess, written into the cell instead of chosen: for front ends without radio buttons.

    Raises
    ------
    ValueError
        If there are fewer than two different options, or ``guess`` is none of them.
    """
    texts = [_text(o) for o in options]
    if len(set(texts)) != len(texts) or len(texts) < 2:
        raise ValueError(f"{name}: a prediction needs at least two different options, not {texts}")
    if guess is not None and _text(guess) not in texts:
        raise ValueError(f"{name}: guess={guess!r} is none of the options. Choose one of {', '.join(texts)}.")
    before = _predictions.get(name)
    kept = before.guess if before and before.guess in texts else None
    made = _predictions[name] = _Prediction(question, texts, _text(guess) if guess is not None else kept)
    markdown = f"**Predict.** {question}\n\n" + "\n".join(f"* {t}" for t in texts)
    plain = f"Predict. {question}\n" + "\n".join(f"  ( ) {t}" for t in texts)
    if can_interact():
        display_widget(_radio_buttons(made), markdown, plain)
    else:
        show_markdown(markdown, plain)


def _radio_buttons(made: _Prediction) -> Any:
    import ipywidgets

    question = ipywidgets.HTMLMath(f"<b>Predict.</b> {_inline_html(made.question)}")
    choice = ipywidgets.RadioButtons(options=made.options, value=made.guess, layout={"width": "auto"})

    def remember(change: dict[str, Any]) -> None:
        made.guess = change["new"]

    choice.observe(remember, names="value")
    return ipywidgets.VBox([question, choice])


def _inline_html(markdown: str) -> str:
    """The little Markdown that questions use, `code`, as HTML."""
    from html import escape

    parts = escape(markdown).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def reveal(name: str, measured: Any) -> None:
    """Compare the guess with what the cell has measured.

    Parameters
    ----------
    name : str
        As given to ``predict``.
    measured : Any
        What came out, in the words of the options; ``True`` and ``False`` become "yes" and "no".

    Raises
    ------
    KeyError
        If the cell with the question was not run.
    """
    if name not in _predictions:
        raise KeyError(f"no prediction {name!r}: run the cell with the question first")
    made = _predictions[name]
    made.measured = _text(measured)
    if made.guess is None:
        verdict = ""  # my_predictions counts the questions without a guess
    elif made.guess == made.measured:
        verdict = "✓ As you predicted."
    else:
        verdict = f"✗ You predicted: {made.guess}. Find out why before you read on."
    show_markdown(f"**Measured: {made.measured}.** {verdict}".strip(), f"Measured: {made.measured}. {verdict}".strip())


def my_predictions() -> None:
    """A table of all predictions of this notebook so far: question, guess, measured."""
    rows = []
    for made in _predictions.values():
        sign = "○" if None in (made.guess, made.measured) else ("✓" if made.guess == made.measured else "✗")
        rows.append((sign, made.question, made.guess or "(none)", made.measured or "(not run)"))
    guessed = [r for r in rows if r[0] != "○"]
    table(("", "question", "your guess", "measured"), rows, code=())
    right = sum(r[0] == "✓" for r in guessed)
    print(f"{right} of {len(guessed)} guesses were right; {len(rows) - len(guessed)} questions without a guess.")
