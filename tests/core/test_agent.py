"""The agent in a student's kernel: it tells facts, whatever the answer was, and nothing that decides."""

from __future__ import annotations

import json

import pytest

from course_utils.observe import agent, registry, seal
from grading.judge import Report, read_report

NONCE, KEY = "0123456789abcdef", b"a key for tests"


def read(text: str) -> Report:
    return read_report(json.dumps({"body": text, "mac": seal.mac(text, KEY)}), NONCE, "doubled", KEY)


def observer(answer, case, see):
    """Twice the number."""
    n = case.integer(3, 9)
    see.form(answer(n), why="A number.", fix="Return a number.")
    see("value", answer(n), atol=0.125, share=0.25, why="Not doubled.", fix="Multiply by 2.")


@pytest.fixture
def send(monkeypatch, trial):
    monkeypatch.setitem(registry._EXERCISES, "doubled", trial(observer, cases=1).exercise)

    def report(**namespace):
        return json.dumps({"nonce": NONCE, "exercise": "doubled", **agent.report("doubled", 5, namespace)})

    return report


def test_facts_do_not_come_through(send):
    report = read(send(doubled=lambda n: 2 * n))
    assert [name for name, _ in report.facts] == ["type of the result", "value"]
    assert report.facts[0][1] == "int"
    assert (report.ended, report.remarks, report.missing) == (None, (), False)


def test_the_report_holds_tolerances_shares_or_advice(send):
    text = send(doubled=lambda n: 2 * n)
    for secret in ("0.125", "0.25", "Not doubled", "Multiply", "share", "points"):
        assert secret not in text


def test_a_missing_answer_is_not_reported_as_missing(send):
    assert read(send(other=3)).missing
    assert not read(send(doubled=None)).missing


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("-inf"), "\ud800", 10**5000, [[]], {(1, 2): {3}}, object(), lambda: 0, b"\xff", 1j],
    ids=lambda v: type(v).__name__,
)
def test_an_odd_result_cannot_be_sent(value, send):
    text = send(doubled=lambda n: value)
    text.encode()
    assert len(read(text).facts) == 2


def test_a_crash_is_not_reported(send):
    def doubled(n):
        raise ValueError("\ud800 " * 1000)

    ended = read(send(doubled=doubled)).ended
    assert (ended.kind, ended.error) == ("crashed", "ValueError")
    assert len(ended.message) <= 300


def test_a_report_grows_beyond_its_limit(send, monkeypatch):
    monkeypatch.setattr(agent, "MAX_BYTES", 1000)
    text = send(doubled=lambda n: list(range(1000)))
    assert len(text) < 1000
    report = read(text)
    assert (report.facts, report.ended.error) == ([], "TooMuchData")


def test_what_the_answer_prints_passes_for_a_report(send, capsys):
    def doubled(n):
        print(json.dumps({"nonce": NONCE, "exercise": "doubled", "facts": []}))
        return 2 * n

    assert len(read(send(doubled=doubled)).facts) == 2
    assert capsys.readouterr() == ("", "")
