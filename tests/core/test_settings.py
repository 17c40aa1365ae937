"""nbgrader's configuration as this course gives it."""

from __future__ import annotations

from grading.settings import load_config
from grading.source import ROOT


def test_work_goes_to_another_exchange_than_the_one_that_was_named(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_EXCHANGE", str(tmp_path / "exchange"))
    assert load_config().Exchange.root == str(tmp_path / "exchange")
    assert (tmp_path / "exchange").is_dir()
    monkeypatch.delenv("COURSE_EXCHANGE")
    assert load_config().Exchange.root == str(ROOT / "grading" / "exchange")
