"""Predictions scored against labels that only the judging process reads."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from course_utils.data.reading import load_cifar_mini, load_unlabelled
from course_utils.observe import message
from course_utils.observe.compare import Behaviour, Kind, compare
from course_utils.observe.expected import from_plain, to_plain
from course_utils.observe.facts import See
from course_utils.observe.scores import is_drawn, true_labels

STEPS = ((0.2, 0.2, None), (0.6, 0.6, 0.5), (0.8, 0.8, 0.5))


def facts(predictions, labels="test"):
    see = See(torch.device("cpu"))
    see.score("accuracy", predictions, labels=labels, steps=STEPS, why="Not enough.", fix="More.")
    return tuple(see.facts)


def judged(predictions, labels="test", reference=None):
    """Expected and received facts both go through JSON, as between two processes."""
    blank = torch.zeros(3, dtype=torch.int64) if reference is None else reference
    expected = from_plain(json.loads(json.dumps(to_plain(Behaviour("recipe", facts(blank, labels))))))
    got = [(f.name, json.loads(json.dumps(f.value))) for f in facts(predictions, labels)]
    return compare(expected, got, None, 10.0)


def partly_right(labels, share):
    """The true labels, but for the last ones."""
    wrong = (labels + 1) % 10
    cut = round(share * len(labels))
    return torch.from_numpy(np.concatenate([labels[:cut], wrong[cut:]]))


@pytest.mark.parametrize(("share", "points"), [(1.0, 10), (0.8, 10), (0.799, 5), (0.6, 5), (0.5, 0), (0.1, 0)])
def test_each_step_reached_earns_its_share(share, points):
    labels = true_labels("test")
    verdict = judged(partly_right(labels, share))
    assert verdict.points == points
    assert verdict.score == pytest.approx(share, abs=1e-3)


def test_a_part_of_the_training_labels_can_be_asked():
    labels = load_cifar_mini("train").labels
    assert np.array_equal(true_labels("train[800:]"), labels[800:])
    assert np.array_equal(true_labels("train[:10]"), labels[:10])
    assert judged(torch.from_numpy(labels[800:]), "train[800:]").kind is Kind.RIGHT


def test_the_recorded_behaviour_holds_no_label_and_no_prediction():
    labels = torch.from_numpy(true_labels("test"))
    plain = to_plain(Behaviour("recipe", facts(labels)))
    assert [f["value"] for f in plain["facts"]] == [None, None, None]


def test_what_the_reference_predicted_does_not_matter():
    labels = torch.from_numpy(true_labels("test"))
    assert judged(labels, reference=(labels + 1) % 10).kind is Kind.RIGHT


@pytest.mark.parametrize(
    "predictions",
    [
        torch.zeros(7, dtype=torch.int64),
        torch.zeros(1000, 10),
        torch.zeros(1000),
        torch.zeros(0, dtype=torch.int64),
        [0] * 1000,
        None,
        "labels",
        {"array": "int64", "shape": [1000], "stored": "<i8", "data": "!!"},
    ],
    ids=lambda p: type(p).__name__ + str(getattr(p, "shape", "")),
)
def test_what_is_no_prediction_is_wrong_and_stops_nobody(predictions):
    verdict = judged(predictions)
    assert verdict.points == 0 and verdict.score is None
    assert "no class numbers" in message.text(verdict)


def test_the_message_tells_both_accuracies_and_no_label():
    text = message.text(judged(partly_right(true_labels("test"), 0.7)))
    assert "at least 80.0 % right" in text and "70.0 % right" in text


def test_another_name_of_labels_is_refused():
    for name in ("valid", "test[", "test[a:]", "../test"):
        with pytest.raises(ValueError, match="no labels are called"):
            true_labels(name)


def test_photographs_have_steps_of_their_own(monkeypatch):
    from course_utils.observe import scores

    see = See(torch.device("cpu"))
    see.score("accuracy", [], labels="test", steps=[(0.9, 0.4, None)])
    assert is_drawn() == (load_cifar_mini("test").meta["source"]["name"] == "drawn")
    for drawn, needed in ((True, 0.9), (False, 0.4)):
        monkeypatch.setattr(scores, "is_drawn", lambda drawn=drawn: drawn)
        assert scores.least(see.facts[0].spec) == needed


def test_images_are_read_without_their_labels(tmp_path):
    import shutil

    from course_utils.data.images import DataError
    from course_utils.data.location import cifar_mini_folder

    shutil.copytree(cifar_mini_folder(), tmp_path / "cifar_mini")
    (tmp_path / "cifar_mini" / "test_labels.bin").unlink()
    images = load_unlabelled("test", tmp_path)
    assert np.array_equal(images, load_cifar_mini("test").images)
    (tmp_path / "cifar_mini" / "test_images.bin").write_bytes(b"short")
    with pytest.raises(DataError, match="make build-data"):
        load_unlabelled("test", tmp_path)
