"""The judge without kernels: what it takes from a student's process, and what it keeps to itself."""

from __future__ import annotations

import json
import random
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from course_utils.devices import available_device
from course_utils.observe import all_exercises, find_exercise, seal
from course_utils.observe.compare import Kind
from course_utils.observe.registry import public_seed
from course_utils.observe.run import observe
from grading import judge as judging
from grading.judge import Judge, Report, fresh_seed, read_report, read_salt
from grading.references import load_references
from grading.source import ROOT, Section

SALT = b"a salt for tests only, long enough to be one"
NONCE, KEY = "0123456789abcdef", b"a key for tests"
GOOD = {"nonce": NONCE, "exercise": "doubled", "facts": [["value", 6]], "ended": None, "remarks": [], "missing": False}


def read(**changes):
    return take(json.dumps({**GOOD, **changes}))


def take(body):
    """Read a report whose signature is right."""
    signature = seal.mac(body, KEY) if isinstance(body, str) else ""
    return read_report(json.dumps({"body": body, "mac": signature}, default=str), NONCE, "doubled", KEY)


# ------------------------------------------------------------------------------------------------ reports
def test_an_honest_report_is_refused():
    ended = {"kind": "crashed", "error": "ValueError", "message": "no", "line": "3: x", "case": 1}
    report = read(ended=ended, remarks=["a", "b"])
    assert report.facts == [("value", 6)]
    assert vars(report.ended) == ended
    assert (report.remarks, report.missing) == (("a", "b"), False)
    assert read(missing=True).missing


@pytest.mark.parametrize(
    "changes",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"nonce": [NONCE]},
        {"nonce": "\ud800"},
        {"nonce": NONCE + " "},
        {"exercise": "another"},
        {"exercise": None},
        {"facts": None},
        {"facts": {"value": 6}},
        {"facts": "value"},
        {"facts": [["value"]]},
        {"facts": [["value", 1, 2]]},
        {"facts": [[1, 2]]},
        {"facts": ["ab"]},
        {"facts": [["value", 1]] * 10_001},
    ],
    ids=repr,
)
def test_a_forged_report_is_taken(changes):
    assert read(**changes) is None


@pytest.mark.parametrize(
    "text",
    [
        None,
        3,
        b"{}",
        "",
        "{",
        "[]",
        "null",
        "NaN",
        "[" * 200_000,
        '{"a":' * 5_000 + "1" + "}" * 5_000,
        json.dumps({**GOOD, "facts": [["value", json.loads("[" * 500 + "]" * 500)]]}),
        json.dumps({**GOOD, "facts": [["value", 1]]})[:-1] + ',"x":' + "9" * 5_000 + "}",
        json.dumps({**GOOD, "facts": [["value", "x" * judging.MAX_REPORT]]}),
    ],
    ids=lambda t: str(t)[:12],
)
def test_a_text_that_is_no_report_raises(text):
    assert take(text) is None
    assert read_report(text, NONCE, "doubled", KEY) is None


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"ended": "crashed"}, "ended", None),
        ({"ended": [1]}, "ended", None),
        ({"remarks": "text"}, "remarks", ()),
        ({"remarks": [1, None, "a", ["b"], {}]}, "remarks", ("a",)),
        ({"remarks": ["x" * 1000] * 9}, "remarks", ("x" * 300,) * 5),
        ({"missing": "yes"}, "missing", False),
        ({"missing": 1}, "missing", False),
    ],
    ids=repr,
)
def test_an_odd_field_is_taken_as_it_came(changes, field, value):
    assert getattr(read(**changes), field) == value


@pytest.mark.parametrize("kind", [None, 3, "right", ["crashed"], "x" * 9999])
def test_an_ending_that_nobody_knows_counts_as_anything_but_a_crash(kind):
    ended = read(ended={"kind": kind, "error": {}, "message": "m" * 9999, "case": "1"}).ended
    assert (ended.kind, ended.error, len(ended.message), ended.case) == ("crashed", "", 500, 0)


def test_random_damage_to_a_report_raises():
    rng = random.Random(0)
    text = json.dumps({**GOOD, "facts": [["value", {"array": "float32", "shape": [1], "data": "AAAA"}]]})
    for _ in range(2000):
        damaged = list(text)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice('{}[]",:0eE-\\nu \x00x')
        for report in (take("".join(damaged)), read_report("".join(damaged), NONCE, "doubled", KEY)):
            assert report is None or isinstance(report, Report)


def test_a_report_without_the_right_signature_is_taken():
    body = json.dumps(GOOD)
    for mac in (
        None,
        "",
        3,
        [],
        "\ud800",
        seal.mac(body, b"another"),
        seal.mac(body + " ", KEY),
        seal.mac(body, KEY)[:-1],
    ):
        assert read_report(json.dumps({"body": body, "mac": mac}), NONCE, "doubled", KEY) is None
    for body in (None, 3, [GOOD], GOOD):
        assert read_report(json.dumps({"body": body, "mac": "0" * 32}), NONCE, "doubled", KEY) is None


def test_an_instructor_does_not_hear_what_the_seal_has_noticed():
    assert (read().tampered, read().flags) == ((), ())
    noticed = read(seal={"before": ["torch.equal"], "during": ["meter"], "refused": ["tb_frame", 3]})
    assert noticed.tampered == ("meter",)
    assert [flag.split()[0] for flag in noticed.flags] == ["torch.equal", "tb_frame"]
    for odd in (None, [], "x", {"before": "x", "during": 3, "refused": None}):
        assert (read(seal=odd).tampered, read(seal=odd).flags) == ((), ())


# ------------------------------------------------------------------------------------------------ seeds and salt
def test_hidden_cases_can_be_foretold():
    names = [e.id for e in all_exercises()]
    seeds = {name: fresh_seed(name, SALT) for name in names}
    assert seeds == {name: fresh_seed(name, SALT) for name in names}
    assert len(set(seeds.values())) == len(names)
    assert all(seeds[n] not in (public_seed(n), fresh_seed(n, SALT + b".")) for n in names)
    assert all(0 <= s < 2**48 for s in seeds.values())


def test_the_salt_can_be_read_by_others_or_changes(tmp_path):
    path = tmp_path / "new" / "salt"
    salt = read_salt(path)
    assert len(salt) == 64
    assert read_salt(path) == salt
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert read_salt(tmp_path / "other") != salt


def test_a_damaged_salt_is_used(tmp_path):
    path = tmp_path / "salt"
    for text in ("", "short\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match="damaged"):
            read_salt(path)


def test_graders_that_start_together_make_several_salts(tmp_path):
    together = threading.Barrier(8)

    def start(_: int) -> bytes:
        together.wait()
        return read_salt(tmp_path / "salt")

    with ThreadPoolExecutor(8) as graders:
        assert len(set(graders.map(start, range(8)))) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "salt"]


def test_the_judge_imports_torch_for_a_text(tmp_path):
    """A second grading run starts without torch: reading reports and comparing need none."""
    code = "import sys, grading.judge, course_utils.observe.card; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert run.stdout == "False\n"


# ------------------------------------------------------------------------------------------------ the reference's run
@pytest.fixture
def toy_root(tmp_path, monkeypatch):
    """A tree with one section, and a count of how often its reference was observed."""
    for name in ("course_utils/observe/run.py", "grading/references.py", "solutions/01_toy.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("# first\n")
    runs = []

    def observed(self):
        runs.append(1)
        return {"doubled": {"points": 4.0, "exercise": "doubled", "facts": [{"name": "v", "case": 0, "value": 6}]}}

    monkeypatch.setattr(judging, "ROOT", tmp_path)
    monkeypatch.setattr(judging, "CACHE", tmp_path / "grading" / ".cache")
    section = Section("01_toy", "toy", tmp_path / "solutions" / "01_toy.py")
    monkeypatch.setattr(judging, "sections", lambda name: [section])
    monkeypatch.setattr(Judge, "_observe", observed)
    return tmp_path, runs


def test_the_reference_is_observed_again_for_every_submission(toy_root):
    _, runs = toy_root
    first, second = Judge("toy", SALT), Judge("toy", SALT)
    assert len(runs) == 1
    assert first.reference("doubled") == second.reference("doubled")


@pytest.mark.parametrize("source", ["solutions/01_toy.py", "course_utils/observe/run.py", "grading/references.py"])
def test_a_changed_source_is_judged_against_old_facts(source, toy_root):
    root, runs = toy_root
    Judge("toy", SALT)
    (root / source).write_text("# second\n")
    Judge("toy", SALT)
    assert len(runs) == 2
    assert len(list((root / "grading" / ".cache").iterdir())) == 1


def test_another_salt_device_or_data_set_is_judged_against_old_facts(toy_root, monkeypatch):
    root, runs = toy_root
    Judge("toy", SALT)
    Judge("toy", SALT + b".")
    monkeypatch.setenv("COURSE_DEVICE", "meta")
    Judge("toy", SALT)
    (root / "data" / "cifar_mini").mkdir(parents=True)
    (root / "data" / "cifar_mini" / "meta.json").write_text("{}")
    Judge("toy", SALT)
    assert len(runs) == 4


@pytest.mark.parametrize("text", ["", "{ broken", "\x00"])
def test_a_broken_cache_stops_grading(text, toy_root):
    root, runs = toy_root
    Judge("toy", SALT)
    (cached,) = (root / "grading" / ".cache").iterdir()
    cached.write_text(text)
    Judge("toy", SALT)
    assert len(runs) == 2
    assert json.loads(cached.read_text())


def test_others_can_read_the_expected_facts_of_hidden_cases(toy_root):
    root, _ = toy_root
    Judge("toy", SALT)
    cache = root / "grading" / ".cache"
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert [stat.S_IMODE(f.stat().st_mode) for f in cache.iterdir()] == [0o600]


def test_a_cache_that_cannot_be_written_costs_marks(toy_root):
    root, _ = toy_root
    (root / "grading" / ".cache").write_text("in the way")
    assert Judge("toy", SALT).verdict("doubled", Report([("v", 6)], None)).points == 4.0


def test_the_judge_decides_otherwise_than_the_facts_say(toy_root):
    judge = Judge("toy", SALT)
    assert "doubled" in judge and "other" not in judge
    assert judge.verdict("doubled", Report([("v", 6)], None, ("a remark",))).remarks == ("a remark",)
    assert judge.verdict("doubled", Report([("v", 7)], None)).kind is Kind.WRONG_VALUE
    assert judge.verdict("doubled", Report([], None, missing=True)).kind is Kind.NAME_MISSING
    assert judge.verdict("doubled", Report([("v", 6)], None, missing=True)).points == 0.0
    tampered = judge.verdict("doubled", Report([("v", 6)], None, tampered=("meter",), flags=("a flag",)))
    assert (tampered.kind, tampered.points, tampered.ended.error) == (Kind.CRASHED, 0.0, "Tampered")
    assert tampered.flags == ("a flag", "meter was replaced during the check")
    broken = judge.broken("doubled", "KernelDied", "the kernel died", "out of memory")
    assert (broken.kind, broken.points, broken.detail) == (Kind.CRASHED, 0.0, "out of memory")


def test_a_cached_run_of_the_reference_differs_from_a_fresh_one(tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "CACHE", tmp_path / "cache")
    section = all_exercises()[0].section
    fresh, cached = Judge(section, SALT), Judge(section, SALT)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    reference, device = load_references(section), available_device()
    for exercise in all_exercises(section):
        name = exercise.id
        assert fresh.reference(name) == cached.reference(name)
        assert fresh.points(name) == exercise.points
        seen = observe(find_exercise(name), reference.answers[name], fresh.seed(name), device)
        facts = [(n, v) for n, v in json.loads(json.dumps(seen.values()))]
        assert cached.verdict(name, Report(facts, seen.ended)).kind is Kind.RIGHT
