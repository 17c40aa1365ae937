"""Set the course up: `.venv` from the exact lock, the project inside it, notebooks that are missing.

Run as a plain file, before any environment exists (`make lab` does it, and `python -m course_utils lab` where there is
no make)::

    python3 -I course_utils/bootstrap.py env         # make, repair or update .venv; nothing to do: about 0.1 s
    python3 -I course_utils/bootstrap.py notebooks   # bring back notebooks that are missing, never overwrite one

Standard library only, and no syntax newer than Python 3.8, so that an old Python can say which one is needed.
Settings come from the environment: PYTHON (the interpreter to use), TORCH (`full` or `cpu`), TORCH_INDEX (address of
a package index that has CPU builds). Every foreseeable failure is a `SetupError`: one line, then what to do.
"""

from __future__ import annotations

import argparse
import csv
import errno
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Mapping

OLDEST, NEWEST = (3, 11), (3, 13)
WINDOWS = sys.platform == "win32"
CANDIDATES = ("python3.13", "python3.12", "python3.11", "python3", "python")
if WINDOWS:
    CANDIDATES += ("py -3.13", "py -3.12", "py -3.11")  # Python's own launcher, which is on the path when python is not
GB = 1_000_000_000
CUDA_PACKAGE = re.compile(r"(nvidia|cuda)-|triton\b")
PYTHON_ADVICE = "Install one (python.org, your system's packages), or name it: make lab PYTHON=/path/to/python3.12"
AGAIN = "Run the same command again: it goes on where it stopped."


class SetupError(Exception):
    """A failure that the reader can mend: the first argument says what is wrong, the second what to do."""


@dataclass(frozen=True)
class Size:
    """What an installation costs, in bytes: fetched from the index, and on the disk afterwards."""

    download: float
    installed: float


# Linux with CUDA was measured on x86-64 with Python 3.11 (3.23 and 6.37 GB). The others are estimates from the sizes of
# single wheels: a torch wheel without CUDA has 0.2 GB.
SIZES = {
    ("linux", "full"): Size(3.2 * GB, 6.4 * GB),
    ("linux", "cpu"): Size(0.5 * GB, 1.6 * GB),
    ("darwin", "full"): Size(0.4 * GB, 1.2 * GB),
    ("win32", "full"): Size(0.4 * GB, 1.2 * GB),
}


# ---------------------------------------------------------------------------------------------- the interpreter


@dataclass(frozen=True)
class Python:
    """An interpreter: where it is, its (major, minor), and whether it can make virtual environments."""

    executable: str
    version: tuple[int, int]
    has_venv: bool


PROBE = """
import json, sys
from importlib.util import find_spec
base = getattr(sys, "_base_executable", None) or sys.executable  # a virtual environment's python: the one behind it
print(json.dumps([base, sys.version_info[:2], bool(find_spec("venv") and find_spec("ensurepip"))]))
"""


def probe(name: str) -> Python | None:
    """The interpreter that `name` starts, or None where it starts none."""
    command = name.split() if name.startswith("py -") else [name]
    try:
        answer = subprocess.run([*command, "-I", "-c", PROBE], capture_output=True, text=True, timeout=30, check=True)
        executable, version, has_venv = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return Python(executable, (version[0], version[1]), has_venv)


def dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def fits(version: str) -> bool:
    """Whether the course runs on Python `version`, as "3.12"."""
    major, minor = version.split(".")
    return OLDEST <= (int(major), int(minor)) <= NEWEST


def find_python(named: str = "", probe: Callable[[str], Python | None] = probe) -> Python:
    """The interpreter to build on: the one that the user named, else this one or the first of CANDIDATES that fits.

    Raises:
        SetupError: there is none, it is too old or too new, or it cannot make virtual environments.
    """
    names = (named,) if named else (sys.executable, *CANDIDATES)
    found = {python.executable: (name, python) for name in names for python in [probe(name)] if python}
    fitting = [python for _, python in found.values() if fits(dotted(python.version))]
    for python in fitting:
        if python.has_venv:
            return python
    if fitting:
        raise SetupError(
            f"{fitting[0].executable} cannot make virtual environments: its venv or ensurepip module is missing.",
            f"Debian and Ubuntu: sudo apt-get install python{dotted(fitting[0].version)}-venv, then the same command.",
        )
    if named and not found:
        raise SetupError(f"PYTHON={named} starts no Python interpreter.", PYTHON_ADVICE)
    there = ", ".join(f"{name} is {dotted(python.version)}" for name, python in found.values()) or "none was found"
    raise SetupError(f"The course needs Python {dotted(OLDEST)} to {dotted(NEWEST)}: {there}.", PYTHON_ADVICE)


# ---------------------------------------------------------------------------------------------- the lock


def pinned(lock: str, package: str) -> str:
    """The version at which the lock pins a package."""
    match = re.search(rf"^{re.escape(package)}==([^\s;]+)", lock, re.MULTILINE)
    if not match:
        raise SetupError(f"requirements.txt has no exact version of {package}.", "Write the lock again: make lock")
    return match.group(1)


def cpu_lock(lock: str) -> str:
    """The lock for a machine without CUDA: no CUDA packages, torch and torchvision in their builds named `+cpu`."""
    lines = [line for line in lock.splitlines() if not CUDA_PACKAGE.match(line)]
    return "\n".join(re.sub(r"^(torch|torchvision)==([^\s;+]+)", r"\1==\2+cpu", line) for line in lines) + "\n"


# ---------------------------------------------------------------------------------------------- failures of pip

NETWORK = (
    r"name resolution|NameResolutionError|NewConnectionError|Failed to establish|Connection refused|unreachable|"
    r"[Tt]imed out|Timeout|Connection broken|IncompleteRead|RemoteDisconnected|Connection reset|Connection aborted|"
    r"Max retries exceeded|Retrying \(|incomplete-download"
)
PIP_FAILURES = (
    (r"No space left on device|Errno 28\b|[Qq]uota exceeded", "The disk is full.", "Make room. " + AGAIN),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|SSLError",
        "The package index's certificate is not trusted (a company's or a school's proxy?).",
        "Ask for its certificate file and name it: make lab PIP_CERT=/path/to/certificates.pem",
    ),
    (
        r"ProxyError|407 Proxy",
        "The proxy refused the connection to the package index.",
        "Check the settings HTTPS_PROXY and HTTP_PROXY. " + AGAIN,
    ),
    (
        NETWORK,
        "The package index cannot be reached: no network, or it broke off.",
        AGAIN + " Without network: make lab PIP_NO_INDEX=1 PIP_FIND_LINKS=/folder/of/wheels (the folder is filled, "
        "on a machine like this one, by: pip download -r requirements.txt -d wheels)",
    ),
    (
        r"Windows Long Path",
        "Windows allows no path as long as a package needs.",
        "Move the course's folder to a short path, such as C:\\course, then the same command.",
    ),
    (r"Permission denied|Errno 13\b", "pip may not write here: permission denied.", "Own the folder, or clone again."),
    (
        r"No matching distribution found for ([^\s;]+)",
        "The package index has no {0} for {python} on {machine}.",
        "Another Python may have it: make lab PYTHON=python3.12. An own index or wheels folder must hold every package "
        "of requirements.txt.",
    ),
)


def explain_pip(words: str, python: str = "this Python") -> tuple[str, str]:
    """(What went wrong, what to do) from the text that pip wrote to stderr."""
    for pattern, what, cure in PIP_FAILURES:
        match = re.search(pattern, words)
        if match:
            machine = f"{platform.system()} {platform.machine()}"
            return what.format(*match.groups(), python=python, machine=machine), cure
    errors = [line for line in words.splitlines() if line.strip() and not line.startswith("WARNING")]
    return "pip failed: " + (errors[-1].strip() if errors else "it gave no reason."), AGAIN


# ---------------------------------------------------------------------------------------------- half-installed packages


def is_whole(info: Path) -> bool:
    """Whether every file of a package is there with the size in its RECORD (pip writes RECORD and INSTALLER last)."""
    if not (info / "INSTALLER").exists() or not (info / "RECORD").exists():
        return False
    with open(info / "RECORD", encoding="utf-8", newline="") as record:
        for name, _, size in csv.reader(record):
            try:
                if size and (info.parent / name).stat().st_size != int(size):
                    return False
            except OSError:
                return False
    return True


def forget_half_installed(site: Path) -> list[str]:
    """Take away the records of packages that are not whole, so that pip installs these again; their names."""
    broken = [info for info in sorted(site.glob("*.dist-info")) if not is_whole(info)]
    for info in broken:
        shutil.rmtree(info)
    for leftover in site.glob("~*"):  # what pip had put aside when it was stopped
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    return [info.name.split("-")[0] for info in broken]


def folder_bytes(folder: Path) -> int:
    return sum(
        os.lstat(os.path.join(parent, name)).st_size for parent, _, names in os.walk(str(folder)) for name in names
    )


# ---------------------------------------------------------------------------------------------- the set-up


def sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


class Setup:
    """The set-up of one checkout.

    Args:
        root: the checkout's folder.
        env: the user's settings and what child processes inherit.
        free_bytes: free bytes on the disk that holds a path.
        command: what the user typed to come here; advice names it.
    """

    def __init__(
        self,
        root: Path,
        env: Mapping[str, str] = os.environ,
        free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(str(path)).free,
        command: str = "make lab",
    ) -> None:
        self.root = root
        self.env = env
        self.free_bytes = free_bytes
        self.venv = root / ".venv"
        self.python = venv_python(root)
        self.stamp = self.venv / "course-set-up.json"
        self.log = self.venv / "course-set-up.log"
        self.scratch = self.venv / "course-set-up.tmp"
        self.use_cache = True
        self.command = command

    # -- what is there, what is wanted

    def read_stamp(self) -> dict:
        """What the last set-up left: equal to `wanted()` when it is current, empty when there was none."""
        try:
            stamp = json.loads(self.stamp.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return stamp if isinstance(stamp, dict) else {}

    def write_stamp(self, stamp: dict) -> None:
        new = self.stamp.with_suffix(".new")
        new.write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
        os.replace(str(new), str(self.stamp))

    def venv_version(self) -> str | None:
        """The Python of `.venv`, as "3.12"; None where there is no interpreter in it."""
        try:
            text = (self.venv / "pyvenv.cfg").read_text(encoding="utf-8")
        except OSError:
            return None
        match = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+)", text, re.MULTILINE)
        return match.group(1) if match and self.python.exists() else None

    def wanted(self, stamp: dict, version: str) -> dict:
        """The stamp that a set-up of today's files and settings would leave. An earlier choice of build is kept."""
        torch = self.env.get("TORCH") or stamp.get("torch") or "full"
        if torch not in ("full", "cpu"):
            raise SetupError(f"TORCH={torch} is neither full nor cpu.", "Give TORCH=cpu, or leave it out.")
        if sys.platform != "linux":
            torch = "full"  # the only builds with CUDA packages are Linux's
        packages = [name for name in ("course_utils", "grading") if (self.root / name).is_dir()]
        project = (self.root / "pyproject.toml").read_bytes()
        return {
            "python": version,
            "torch": torch,
            "torch_index": self.env.get("TORCH_INDEX") or stamp.get("torch_index") or "",
            "lock": sha256((self.root / "requirements.txt").read_bytes()),
            # The project is installed by reference: another place or another package needs a new reference.
            "project": sha256(project, str(self.root).encode(), " ".join(packages).encode()),
        }

    # -- steps

    def environment(self) -> None:
        """Bring `.venv` to the lock, doing only what is not done yet.

        Raises:
            SetupError: with what to do. What was finished before stays, and the next call goes on from there.
        """
        stamp = self.read_stamp()
        version = self.venv_version()
        named = self.env.get("PYTHON", "")
        chosen = find_python(named) if named or not version else None
        wanted = self.wanted(stamp, dotted(chosen.version) if chosen else version or "")
        if version == wanted["python"] and stamp == wanted:
            return

        if not os.access(str(self.root), os.W_OK):
            raise SetupError(
                f"{self.root} is read-only, and .venv in it is not up to date.",
                "Copy the course's folder to a place of your own, then the same command there.",
            )
        if version and not stamp and (version != wanted["python"] or not fits(version)):
            raise SetupError(
                f".venv holds Python {version}, and this set-up did not make it.",
                "Move it away, or delete the folder .venv, then the same command.",
            )
        if version != wanted["python"] or not self.has_pip():
            self.create(chosen or find_python(named), wanted["torch"])
            stamp = {}
        if any(stamp.get(key) != wanted[key] for key in ("python", "torch", "lock")):
            self.install_packages(wanted)
            stamp = {}
        if stamp.get("project") != wanted["project"]:
            say("Installing the course's own packages by reference to this folder.")
            self.pip(wanted, "install", "--no-deps", "--no-build-isolation", "--editable", ".")
        self.write_stamp(wanted)

    def has_pip(self) -> bool:
        try:
            return subprocess.run([str(self.python), "-m", "pip", "--version"], capture_output=True).returncode == 0
        except OSError:
            return False

    def create(self, python: Python, torch: str) -> None:
        """Make an empty `.venv`; what a stopped attempt or another Python left there goes."""
        self.check_space(torch)
        say(f"Making .venv with Python {dotted(python.version)} ({python.executable}).")
        made = subprocess.run(
            [python.executable, "-m", "venv", "--clear", str(self.venv)],
            env=self.child_env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if made.returncode:
            if self.free_bytes(self.root) < 0.05 * GB:  # venv itself gives no reason
                raise SetupError("The disk is full.", "Make room. " + AGAIN)
            raise SetupError(
                f".venv could not be made: {(made.stdout.strip() or 'no reason given').splitlines()[-1]}", AGAIN
            )

    def install_packages(self, wanted: dict) -> None:
        """Install what differs from the lock."""
        # A stamp without a lock says that an installation is under way, and which build was chosen.
        self.write_stamp({key: wanted[key] for key in ("python", "torch", "torch_index")})
        library = Path("Lib") if WINDOWS else Path("lib") / ("python" + wanted["python"])
        site = self.venv / library / "site-packages"
        again = forget_half_installed(site)
        if again:
            say("Not whole, installed again: " + ", ".join(again))
        self.announce(wanted)
        lock = (self.root / "requirements.txt").read_text(encoding="utf-8")
        install = ("install", "--no-deps")  # the lock is complete: nothing to resolve
        if wanted["torch"] == "cpu":
            pair = [f"{name}=={pinned(lock, name)}+cpu" for name in ("torch", "torchvision")]
            index = ["--index-url", wanted["torch_index"]] if wanted["torch_index"] else []
            try:
                self.pip(wanted, *install, *index, *pair)
            except SetupError as error:
                if "has no torch" not in str(error.args[0]):
                    raise
                raise SetupError(
                    f"{wanted['torch_index'] or 'Your package index'} has no CPU build {pair[0]}.",
                    "Name an index with CPU builds, the one that pytorch.org shows for CPU: "
                    "make lab TORCH=cpu TORCH_INDEX=ADDRESS; or install the builds with CUDA: make lab TORCH=full",
                ) from None
            lock_file = self.venv / "course-lock-cpu.txt"
            lock_file.write_text(cpu_lock(lock), encoding="utf-8")
            self.pip(wanted, *install, "-r", str(lock_file))
            cuda = sorted({line.split("==")[0] for line in lock.splitlines() if CUDA_PACKAGE.match(line)})
            there = [name for name in cuda if any(site.glob(name.replace("-", "_") + "-*.dist-info"))]
            if there:
                self.pip(wanted, "uninstall", "--yes", *there)
        else:
            if any(site.glob("torch-*+cpu.dist-info")):  # pip would take a +cpu build for the pinned version
                self.pip(wanted, "uninstall", "--yes", "torch", "torchvision")
            self.pip(wanted, *install, "-r", "requirements.txt")
        self.try_imports()

    def try_imports(self) -> None:
        """Import the packages with compiled parts: a library that the system lacks shows here, not in a lesson."""
        say("Trying the packages.")
        code = "import numpy, cv2, matplotlib, torch, torchvision"
        tried = subprocess.run([str(self.python), "-c", code], env=self.child_env(), capture_output=True, text=True)
        if tried.returncode:
            raise SetupError(*explain_import(tried.stderr))

    # -- space

    def space_needed(self, torch: str) -> Size:
        """What is still to be fetched and stored; what `.venv` already holds is counted as done."""
        size = SIZES.get((sys.platform, torch), SIZES["linux", "full"])
        missing = max(0.0, 1 - folder_bytes(self.venv) / size.installed)
        return Size(size.download * missing, size.installed * missing)

    def check_space(self, torch: str) -> Size:
        """Refuse before the first byte when it cannot fit, and do without pip's cache when only that does not fit."""
        need = self.space_needed(torch)
        # pip keeps every file that it fetched in a temporary folder (inside .venv) until all are there.
        total = need.download + need.installed
        free = self.free_bytes(self.root)
        if free < total:
            raise SetupError(
                f"The disk is too full: about {total / GB:.1f} GB are needed for a while ({need.installed / GB:.1f} GB "
                f"in the end), {free / GB:.1f} GB are free.",
                "Make room, or take the smaller builds without CUDA (make help says how). " + AGAIN,
            )
        home = Path(os.path.expanduser("~"))
        same_disk = home.exists() and os.stat(str(home)).st_dev == os.stat(str(self.root)).st_dev
        cache_room = self.free_bytes(home if home.exists() else self.root) - (total if same_disk else 0)
        self.use_cache = cache_room >= need.download
        return need

    def announce(self, wanted: dict) -> None:
        """Say what will be fetched and how much room it takes."""
        need = self.check_space(wanted["torch"])
        if need.download < 0.05 * GB:
            say("Bringing .venv to the lock (requirements.txt).")
            return
        free = self.free_bytes(self.root)
        say(
            f"Installing the packages of requirements.txt: about {need.download / GB:.1f} GB to download and "
            f"{need.installed / GB:.1f} GB on the disk ({free / GB:.0f} GB free)."
        )
        if sys.platform == "linux" and wanted["torch"] == "full":
            small = SIZES["linux", "cpu"]
            fetched, kept = f"{small.download / GB:.1f} GB", f"{small.installed / GB:.1f} GB"
            say(f"  Most of it is CUDA. Without a GPU {fetched} to download, {kept} on the disk will do: stop (Ctrl-C)")
            say("  and give the address of the package index that pytorch.org shows for CPU:")
            say(f"  {self.command} TORCH=cpu TORCH_INDEX=ADDRESS")
        if not self.use_cache:
            say("  Without pip's cache, which would not fit on the disk as well.")

    # -- child processes

    def child_env(self) -> dict:
        """The user's environment without settings that would send packages elsewhere or mix in foreign ones."""
        foreign = ("PYTHONPATH", "PYTHONHOME", "__PYVENV_LAUNCHER__", "PIP_TARGET", "PIP_PREFIX")
        env = {key: value for key, value in self.env.items() if key not in foreign}
        env.update(PIP_USER="0", PIP_DISABLE_PIP_VERSION_CHECK="1")
        if not self.use_cache:
            env["PIP_NO_CACHE_DIR"] = "1"
        return env

    def pip(self, wanted: dict, *arguments: str) -> None:
        """Run pip. Its progress goes to the terminal as it is, its complaints to the log.

        Raises:
            SetupError: pip failed; pip's own words are in the log.
        """
        shutil.rmtree(str(self.scratch), ignore_errors=True)
        self.scratch.mkdir()
        temporary = {name: str(self.scratch) for name in ("TMPDIR", "TEMP", "TMP")}
        env = dict(self.child_env(), **temporary)  # /tmp is often a small disk in memory
        words = []
        try:
            with open(str(self.log), "a", encoding="utf-8") as log, subprocess.Popen(
                [str(self.python), "-m", "pip", *arguments],
                cwd=str(self.root),
                env=env,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            ) as process:
                for line in process.stderr or ():
                    words.append(line)
                    log.write(line)
                    if "Retrying (" in line:
                        say("  The package index does not answer; pip tries again.")
        finally:
            shutil.rmtree(str(self.scratch), ignore_errors=True)
        if process.returncode < 0:
            raise SetupError(f"pip was stopped by signal {-process.returncode} (9: too little memory?).", AGAIN)
        if process.returncode:
            what, cure = explain_pip("".join(words), "Python " + wanted["python"])
            raise SetupError(what, f"{cure}\npip's own words: {self.log.relative_to(self.root)}")

    # -- notebooks

    def notebooks(self) -> list[str]:
        """Bring back the notebooks that the folder lacks, from git or, in a bundle, from the package; their paths.

        Existing files are not touched.

        A learner who wants to begin a section again moves the notebook away and runs `make lab`.

        Raises:
            SetupError: there is no notebook at all.
        """
        restored = []
        for path in self.git("ls-files", "-z", "--deleted", "--", "notebooks").decode().split("\0"):
            target = self.root / path
            if not path or target.exists():
                continue
            content = self.git("show", ":./" + path)
            if content:
                restored.append(self.bring_back(target, content))
        for source in sorted((self.root / "course_utils" / "released" / "notebooks").glob("*/*.ipynb")):
            target = self.root / "notebooks" / source.parent.name / source.name
            if not target.exists():
                restored.append(self.bring_back(target, source.read_bytes()))
        if not any((self.root / "notebooks").glob("*/*.ipynb")):
            raise SetupError("There are no notebooks here.", "Get the course again, or build them: make build")
        return restored

    def bring_back(self, target: Path, content: bytes) -> str:
        """Write a notebook that is missing; its path in the checkout."""
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_name(target.name + ".new")
        new.write_bytes(content)
        os.replace(str(new), str(target))
        path = target.relative_to(self.root).as_posix()
        say(f"Brought back {path}, which was missing.")
        return path

    def git(self, *arguments: str) -> bytes:
        """What git prints; nothing where this is no clone."""
        try:
            return subprocess.run(["git", *arguments], cwd=str(self.root), capture_output=True).stdout
        except OSError:
            return b""


def venv_python(root: Path) -> Path:
    """The interpreter of a checkout's `.venv`."""
    return root / ".venv" / (Path("Scripts") / "python.exe" if WINDOWS else Path("bin") / "python")


def explain_import(words: str) -> tuple[str, str]:
    """(What went wrong, what to do) from a failed import's traceback."""
    last = words.strip().splitlines()[-1] if words.strip() else "a package could not be imported, without a reason."
    if re.search(r"lib(GL|gthread|glib|xcb|X11)[^ ]*: cannot open", last):
        return (
            f"OpenCV needs a system library: {last.split(': ', 1)[-1]}",
            "Debian and Ubuntu: sudo apt-get install libgl1 libglib2.0-0. Fedora: sudo dnf install mesa-libGL glib2. "
            "Then the same command.",
        )
    return f"A package does not start: {last}", "Delete the folder .venv, then the same command."


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: list[str] | None = None, setup: Setup | None = None) -> int:
    """Run one command; the exit status: 0 done, 1 failed (one line and what to do on stderr), 130 interrupted."""
    parser = argparse.ArgumentParser(prog="bootstrap.py", description="Set the course up (see the Makefile).")
    parser.add_argument("command", choices=("env", "notebooks"))
    command = parser.parse_args(arguments).command
    setup = setup or Setup(Path(__file__).resolve().parent.parent)
    try:
        if command == "env":
            setup.environment()
        else:
            setup.notebooks()
    except KeyboardInterrupt:
        print("\nStopped. " + AGAIN, file=sys.stderr)
        return 130
    except SetupError as error:
        what, cure = error.args
    except OSError as error:
        what, cure = "The disk is full." if error.errno == errno.ENOSPC else str(error), AGAIN
    else:
        return 0
    print(f"\nSet-up: {what}\n{cure}".replace("make lab", setup.command), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
