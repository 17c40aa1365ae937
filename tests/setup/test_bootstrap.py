"""The set-up: one clear line for every foreseeable failure, nothing done twice, nothing left half done."""

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_utils import bootstrap
from course_utils.bootstrap import GB, Python, Setup, SetupError, cpu_lock, explain_import, explain_pip, find_python
from tests.setup.clean import env

ROOT = Path(__file__).parents[2]
LOCK = "small==1.0\nother==1.0\n"

# A build backend small enough to need no package at all: an editable wheel that puts the checkout on the path.
BACKEND = """
import pathlib, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "tiny_course-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as wheel:
        wheel.writestr("tiny_course.pth", str(pathlib.Path.cwd()))
        info = "tiny_course-1.0.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: tiny-course\\nVersion: 1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "tiny-course"
version = "1.0"
"""


def wheel(folder: Path, name: str, version: str) -> None:
    """Write a wheel with one module, which holds its version."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,{len(text)}\n" for path, text in files.items()) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            file.writestr(path, text)


class FakeSetup(Setup):
    """A set-up whose steps are written down instead of done. `fail` raises at the step that begins so."""

    def __init__(self, root: Path, fail: str = "", **settings: str) -> None:
        super().__init__(root, env(**settings), free_bytes=lambda path: 100 * GB)
        self.steps: list[str] = []
        self.fail = fail

    def create(self, python: Python, torch: str) -> None:
        self.steps.append("create")
        self.python.parent.mkdir(parents=True, exist_ok=True)
        self.python.touch()
        (self.venv / "pyvenv.cfg").write_text("version = " + bootstrap.dotted(python.version) + ".1\n")
        self.stamp.unlink(missing_ok=True)

    def has_pip(self) -> bool:
        return self.python.exists()

    def pip(self, wanted: dict, *arguments: str) -> None:
        self.steps.append("pip " + " ".join(arguments))
        if self.fail and self.steps[-1].startswith(self.fail):
            raise SetupError("The disk is full.", "Make room.")

    def try_imports(self) -> None:
        self.steps.append("imports")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout (in a folder with a space in its name) with a lock of two small packages."""
    root = tmp_path / "my course"
    (root / "course_utils").mkdir(parents=True)
    shutil.copy(ROOT / "course_utils" / "bootstrap.py", root / "course_utils")
    (root / "requirements.txt").write_text(LOCK)
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "backend.py").write_text(BACKEND)
    return root


@pytest.fixture(autouse=True)
def any_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "find_python", lambda named="": Python(sys.executable, sys.version_info[:2], True))


# ---------------------------------------------------------------------------------------------- which Python


def only(**there: Python) -> "bootstrap.Callable[[str], Python | None]":
    return lambda name: there.get(name.replace(".", "_"))


def test_the_first_python_that_fits_is_taken_past_an_old_one() -> None:
    found = find_python(
        probe=only(python3=Python("/usr/bin/python3", (3, 9), True), python3_12=Python("/opt/python", (3, 12), True))
    )
    assert found.executable == "/opt/python"


@pytest.mark.parametrize("version", [(3, 9), (3, 10), (3, 14), (2, 7)])
def test_a_python_that_does_not_fit_is_refused_with_what_is_there_and_what_is_needed(version: tuple[int, int]) -> None:
    with pytest.raises(SetupError) as error:
        find_python(probe=only(python3=Python("/usr/bin/python3", version, True)))
    what, cure = error.value.args
    assert what == f"The course needs Python 3.11 to 3.13: python3 is {version[0]}.{version[1]}."
    assert "make lab PYTHON=" in cure


def test_a_machine_without_python_is_told_so() -> None:
    with pytest.raises(SetupError, match="none was found"):
        find_python(probe=only())


def test_the_python_that_the_user_named_is_not_replaced_by_another() -> None:
    good = Python("/opt/python", (3, 12), True)
    with pytest.raises(SetupError, match="starts no Python"):
        find_python("nowhere", probe=only(python3=good))
    with pytest.raises(SetupError, match=r"old is 3\.9"):
        find_python("old", probe=only(python3=good, old=Python("/usr/bin/old", (3, 9), True)))


def test_a_python_without_venv_is_passed_over_or_its_debian_package_is_named() -> None:
    bare = Python("/usr/bin/python3", (3, 11), False)
    with pytest.raises(SetupError, match="cannot make virtual environments") as error:
        find_python(probe=only(python3=bare))
    assert "python3.11-venv" in error.value.args[1]
    whole = Python("/opt/python", (3, 12), True)
    assert find_python(probe=only(python3_12=bare, python3=whole)) is whole


def test_a_virtual_environment_is_not_built_on_another_one() -> None:
    found = bootstrap.probe(sys.executable)
    assert found is not None
    assert found.version == sys.version_info[:2]
    assert Path(found.executable).resolve() == Path(sys.executable).resolve()
    assert str(Path(sys.prefix)) not in found.executable or sys.prefix == sys.base_prefix


@pytest.mark.parametrize("settings", [{"PYTHON": "no-such-python"}, {"PYTHON": "/etc/passwd"}])
def test_make_gives_one_line_and_no_traceback_for_a_wrong_python(checkout: Path, settings: dict[str, str]) -> None:
    shutil.copy(ROOT / "Makefile", checkout)
    run = subprocess.run(["make", "ready"], cwd=checkout, env=env(**settings), capture_output=True, text=True)
    assert run.returncode != 0
    assert f"PYTHON={settings['PYTHON']} starts no Python interpreter." in run.stderr
    assert "Traceback" not in run.stderr


def test_make_gives_one_line_where_there_is_no_python_at_all(checkout: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", checkout)
    (tmp_path / "bin").mkdir()
    make = shutil.which("make")
    assert make
    run = subprocess.run(
        [make, "ready"], cwd=checkout, env=env(PATH=str(tmp_path / "bin")), capture_output=True, text=True
    )
    assert run.returncode != 0
    assert "The course needs Python 3.11 to 3.13, and none was found." in run.stderr


# ---------------------------------------------------------------------------------------------- room and network


def test_a_full_disk_is_refused_before_the_first_byte(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setup = Setup(checkout, env(), free_bytes=lambda path: 2 * GB)
    assert bootstrap.main(["env"], setup) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[0].startswith("Set-up: The disk is too full: about ")
    assert "2.0 GB are free" in lines[0]
    assert len(lines) == 2
    assert not setup.venv.exists()


def test_a_disk_that_fills_up_while_the_environment_is_made_is_named_as_the_reason(checkout: Path) -> None:
    free = iter([100 * GB, 100 * GB, 0])
    setup = Setup(checkout, env(), free_bytes=lambda path: next(free))
    with pytest.raises(SetupError, match=r"The disk is full\."):
        setup.create(Python("false", (3, 12), True), "full")


def test_a_disk_that_has_room_for_the_packages_but_not_for_pips_cache_is_enough(checkout: Path) -> None:
    setup = Setup(checkout, env(), free_bytes=lambda path: 10 * GB)
    setup.check_space("full")
    assert setup.child_env()["PIP_NO_CACHE_DIR"] == "1"
    roomy = Setup(checkout, env(), free_bytes=lambda path: 100 * GB)
    roomy.check_space("full")
    assert "PIP_NO_CACHE_DIR" not in roomy.child_env()


def test_what_the_environment_already_holds_needs_no_room_again(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "folder_bytes", lambda folder: 0.9 * bootstrap.SIZES["linux", "full"].installed)
    need = Setup(checkout, env()).space_needed("full")
    assert need.installed < 0.2 * bootstrap.SIZES["linux", "full"].installed


def test_download_and_disk_are_said_before_the_installation(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setup = FakeSetup(checkout)
    setup.environment()
    said = capsys.readouterr().out
    assert "GB to download and" in said
    assert "GB on the disk" in said
    if sys.platform == "linux":
        assert "make lab TORCH=cpu TORCH_INDEX=ADDRESS" in said


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(... Temporary failure "
            "in name resolution)': /simple/alembic/\nERROR: No matching distribution found for alembic==1.20.1",
            "cannot be reached",
        ),
        ("pip._vendor.urllib3.exceptions.ReadTimeoutError: Read timed out.", "cannot be reached"),
        ("urllib3.exceptions.ProtocolError: ('Connection broken: IncompleteRead(9 bytes read)')", "cannot be reached"),
        ("SSLError(SSLCertVerificationError(1, 'certificate verify failed'))", "certificate is not trusted"),
        ("ERROR: No matching distribution found for torch==2.14.1", "has no torch==2.14.1 for Python 3.12"),
        ("ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: '/x'", "may not write"),
        ("WARNING: odd\nERROR: something new", "pip failed: ERROR: something new"),
        ("", "gave no reason"),
    ],
)
def test_what_pip_says_becomes_one_line_and_a_cure(words: str, what: str) -> None:
    line, cure = explain_pip(words, "Python 3.12")
    assert what in line
    assert "\n" not in line
    assert cure


def test_a_missing_system_library_is_named_with_its_package() -> None:
    words = "Traceback ...\nImportError: libGL.so.1: cannot open shared object file: No such file or directory\n"
    what, cure = explain_import(words)
    assert "libGL.so.1" in what
    assert "libgl1" in cure


# ---------------------------------------------------------------------------------------------- only what changed


def test_a_second_run_does_nothing(checkout: Path) -> None:
    FakeSetup(checkout).environment()
    second = FakeSetup(checkout)
    second.environment()
    assert second.steps == []


def test_a_changed_lock_is_installed_and_nothing_else_is_redone(checkout: Path) -> None:
    FakeSetup(checkout).environment()
    (checkout / "requirements.txt").write_text("small==2.0\n")
    second = FakeSetup(checkout)
    second.environment()
    assert second.steps[:2] == ["pip install --no-deps -r requirements.txt", "imports"]
    assert "create" not in second.steps


def test_a_changed_project_or_a_moved_checkout_is_referenced_anew_without_the_packages(checkout: Path) -> None:
    FakeSetup(checkout).environment()
    moved = checkout.rename(checkout.parent / "elsewhere")
    setup = FakeSetup(moved)
    setup.environment()
    assert setup.steps == ["pip install --no-deps --no-build-isolation --editable ."]


@pytest.mark.parametrize("step", ["pip install --no-deps -r", "pip install --no-deps --no-build"])
def test_an_installation_that_broke_off_is_finished_by_the_next_run(checkout: Path, step: str) -> None:
    with pytest.raises(SetupError):
        FakeSetup(checkout, fail=step).environment()
    second = FakeSetup(checkout)
    second.environment()
    assert second.steps[0].startswith("pip install --no-deps -r")
    assert "create" not in second.steps
    third = FakeSetup(checkout)
    third.environment()
    assert third.steps == []


def test_another_python_makes_a_new_environment(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeSetup(checkout).environment()
    other = (3, 11) if sys.version_info[:2] != (3, 11) else (3, 12)
    monkeypatch.setattr(bootstrap, "find_python", lambda named="": Python("/opt/python", other, True))
    kept = FakeSetup(checkout)
    kept.environment()
    assert kept.steps == [], "without PYTHON= the environment keeps its own"
    changed = FakeSetup(checkout, PYTHON="/opt/python")
    changed.environment()
    assert changed.steps[0] == "create"


def test_an_environment_of_another_python_that_the_set_up_did_not_make_is_left_alone(checkout: Path) -> None:
    setup = FakeSetup(checkout)
    setup.create(Python("python3", (3, 9), True), "full")
    with pytest.raises(SetupError, match=r"\.venv holds Python 3\.9, and this set-up did not make it"):
        setup.environment()
    assert setup.steps == ["create"]


@pytest.mark.skipif(sys.platform != "linux", reason="builds with and without CUDA exist for Linux alone")
def test_the_choice_of_the_cpu_build_is_kept_even_where_the_first_attempt_broke_off(checkout: Path) -> None:
    (checkout / "requirements.txt").write_text("torch==2.14.1\ntorchvision==0.29.1\nnvidia-x==1 ; sys_platform\n")
    with pytest.raises(SetupError):
        FakeSetup(checkout, fail="pip", TORCH="cpu", TORCH_INDEX="https://index.invalid/cpu").environment()
    second = FakeSetup(checkout)
    second.environment()
    pair = "torch==2.14.1+cpu torchvision==0.29.1+cpu"
    assert second.steps[0] == f"pip install --no-deps --index-url https://index.invalid/cpu {pair}"
    third = FakeSetup(checkout)
    third.environment()
    assert third.steps == []


def test_a_wrong_value_of_torch_is_refused(checkout: Path) -> None:
    with pytest.raises(SetupError, match="TORCH=gpu is neither full nor cpu"):
        FakeSetup(checkout, TORCH="gpu").environment()


def test_the_cpu_lock_has_every_package_but_cudas_and_names_the_cpu_builds() -> None:
    lock = (ROOT / "requirements.txt").read_text()
    lines = [line for line in lock.splitlines() if "==" in line]
    cpu = [line for line in cpu_lock(lock).splitlines() if "==" in line]
    gone = [line.split("==")[0] for line in lines if line.split("==")[0] not in [kept.split("==")[0] for kept in cpu]]
    assert gone
    assert all(name.startswith(("nvidia-", "cuda-")) or name == "triton" for name in gone)
    assert not any(line.startswith(("nvidia-", "cuda-", "triton")) for line in cpu)
    changed = [line for line in cpu if line not in lines]
    assert changed == [f"{name}=={bootstrap.pinned(lock, name)}+cpu" for name in ("torch", "torchvision")]


# ---------------------------------------------------------------------------------------------- with a real pip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout that was really set up, from a folder of wheels and without network."""
    folder = tmp_path_factory.mktemp("set up")
    root = folder / "my course"
    wheels = folder / "wheels"
    (root / "course_utils").mkdir(parents=True)
    wheels.mkdir()
    shutil.copy(ROOT / "course_utils" / "bootstrap.py", root / "course_utils")
    shutil.copy(ROOT / "Makefile", root)
    names = ("small", "other", "numpy", "cv2", "matplotlib", "torch", "torchvision")
    for name in names:
        wheel(wheels, name, "1.0")
    (root / "requirements.txt").write_text("".join(f"{name}==1.0\n" for name in names))
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "backend.py").write_text(BACKEND)
    first = set_up(root)
    assert first.returncode == 0, first.stdout + first.stderr
    yield root


def set_up(root: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    settings = {"PIP_FIND_LINKS": (root.parent / "wheels").as_uri(), "PYTHON": sys.executable, **settings}
    return subprocess.run(["make", "ready"], cwd=root, env=env(**settings), capture_output=True, text=True)


def python_says(root: Path, code: str) -> str:
    run = subprocess.run([root / ".venv" / "bin" / "python", "-c", code], cwd="/", capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_the_environment_has_the_packages_and_the_course_from_any_folder(installed: Path) -> None:
    assert python_says(installed, "import small, other, course_utils; print(small.version)") == "1.0"


def test_running_it_again_starts_no_pip(installed: Path) -> None:
    again = set_up(installed)
    assert (again.returncode, again.stdout) == (0, "")


def test_a_package_that_was_cut_off_while_it_was_written_is_installed_again(installed: Path) -> None:
    (site,) = (installed / ".venv" / "lib").glob("*/site-packages")
    (site / "small.py").write_text("ver")  # a part of the file
    (site / "other-1.0.dist-info" / "INSTALLER").unlink()  # pip had not come to the end
    stamp = installed / ".venv" / "course-set-up.json"
    unfinished = {key: value for key, value in json.loads(stamp.read_text()).items() if key not in ("lock", "project")}
    stamp.write_text(json.dumps(unfinished))
    repaired = set_up(installed)
    assert repaired.returncode == 0, repaired.stderr
    assert "Not whole, installed again: other, small" in repaired.stdout
    assert python_says(installed, "import small; print(small.version)") == "1.0"
    assert (site / "other-1.0.dist-info" / "INSTALLER").exists()


def test_a_version_that_the_index_lacks_is_one_line_and_leaves_the_old_package(installed: Path) -> None:
    lock = installed / "requirements.txt"
    before = lock.read_text()
    try:
        lock.write_text(before.replace("small==1.0", "small==9.0"))
        run = set_up(installed)
        assert run.returncode != 0
        assert "Set-up: The package index has no small==9.0 for Python" in run.stderr
        assert "Traceback" not in run.stderr
        assert python_says(installed, "import small; print(small.version)") == "1.0"
    finally:
        lock.write_text(before)
        assert set_up(installed).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="builds with and without CUDA exist for Linux alone")
def test_an_index_without_cpu_builds_is_named_and_the_way_out_is_said(installed: Path) -> None:
    run = set_up(installed, TORCH="cpu")
    assert run.returncode != 0
    assert "Set-up: Your package index has no CPU build torch==1.0+cpu." in run.stderr
    assert "TORCH_INDEX=ADDRESS" in run.stderr
    assert set_up(installed, TORCH="full").returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="builds with and without CUDA exist for Linux alone")
def test_the_cpu_builds_come_from_the_index_that_was_named_and_take_cudas_packages_away(installed: Path) -> None:
    lock = installed / "requirements.txt"
    before = lock.read_text()
    index = installed.parent / "index"
    for name in ("torch", "torchvision"):
        (index / name).mkdir(parents=True)
        wheel(index / name, name, "1.0+cpu")
        (index / name / "index.html").write_text(f'<a href="{name}-1.0%2Bcpu-py3-none-any.whl">wheel</a>')
    wheel(installed.parent / "wheels", "nvidia_x", "1.0")
    from_index = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": (installed.parent / "empty").as_uri()}
    torch = "import torch, torchvision, importlib.util as u; print(torch.version, bool(u.find_spec('nvidia_x')))"
    try:
        lock.write_text(before + "nvidia-x==1.0 ; sys_platform == 'linux'\n")
        assert set_up(installed).returncode == 0
        assert python_says(installed, torch) == "1.0 True"

        run = set_up(installed, TORCH="cpu", TORCH_INDEX=index.as_uri(), **from_index)
        assert run.returncode == 0, run.stderr
        assert python_says(installed, torch) == "1.0+cpu False"
        assert set_up(installed).stdout == "", "the choice is kept without naming it again"

        assert set_up(installed, TORCH="full").returncode == 0
        assert python_says(installed, torch) == "1.0 True"
    finally:
        lock.write_text(before)
        assert set_up(installed).returncode == 0


# ---------------------------------------------------------------------------------------------- notebooks


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.invalid")
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def clone(checkout: Path) -> Path:
    for section in ("01_one", "02_two"):
        (checkout / "notebooks" / section).mkdir(parents=True)
        (checkout / "notebooks" / section / f"{section[3:]}.ipynb").write_text(f"released {section}")
    git(checkout, "init", "-q")
    git(checkout, "add", "notebooks")
    git(checkout, "commit", "-q", "-m", "released")
    return checkout


def test_a_learners_notebook_is_never_overwritten_and_a_missing_one_comes_back(clone: Path) -> None:
    mine = clone / "notebooks" / "01_one" / "one.ipynb"
    mine.write_text("my work")
    missing = clone / "notebooks" / "02_two" / "two.ipynb"
    shutil.rmtree(missing.parent)
    assert Setup(clone, env()).notebooks() == ["notebooks/02_two/two.ipynb"]
    assert mine.read_text() == "my work"
    assert missing.read_text() == "released 02_two"
    assert Setup(clone, env()).notebooks() == []


def test_a_folder_without_notebooks_and_without_git_says_what_to_do(checkout: Path) -> None:
    with pytest.raises(SetupError, match="There are no notebooks here") as error:
        Setup(checkout, env()).notebooks()
    assert "make build" in error.value.args[1]


def test_a_copy_without_git_keeps_its_notebooks(clone: Path) -> None:
    shutil.rmtree(clone / ".git")
    assert Setup(clone, env()).notebooks() == []
