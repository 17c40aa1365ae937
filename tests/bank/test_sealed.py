"""Right answers of the bank, observed under the seal: it must find nothing to tell the instructor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from grading.source import ROOT, sections

OBSERVE = """
import json, sys
import IPython.display
import numpy, torch, torchvision
from course_utils.devices import available_device
from course_utils.observe import all_exercises, find_exercise, seal
from course_utils.observe.plain import MIME
from grading.bank import SLOW, answers

sent = []
IPython.display.publish_display_data = lambda data, **more: sent.append(data)
chosen = [a for a in answers(sys.argv[1]) if a.right and find_exercise(a.exercise).seconds <= SLOW]
seal.arm()
for answer in chosen:
    sys.audit(seal.ORDER, answer.exercise, 11, "nonce", {answer.exercise: answer.value})
    noticed = json.loads(json.loads(sent.pop()[MIME])["body"])["seal"]
    if any(noticed.values()):
        print(answer.exercise, answer.name, noticed)
print(len(chosen), "observed")
"""


@pytest.mark.parametrize("section", [s.name for s in sections()])
def test_an_honest_answer_is_flagged(section):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OBSERVE, section],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    *found, last = run.stdout.splitlines()
    assert found == []
    assert int(last.split()[0]) > 5
