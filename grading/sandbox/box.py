"""What the kernel of one submission can see, and where it can write.

Readable: the system's programs and libraries, the Python environment, ``course_utils``, the images without the labels
of the test images. Writable: a scratch folder of its own, with a copy of the submitted files, and the folder of its
sockets, where nothing but sockets can be made. Nothing else is there: no ``solutions/``, no ``grading/``, no gradebook, no
home, no other submission.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import site
import stat
import sys
from pathlib import Path

from course_utils.data.location import data_root
from course_utils.data.reading import label_file
from grading.source import ROOT

__all__ = ["copy_submission", "data_view", "environment", "exposing", "python_folders", "system_folders"]

_ETC = (
    "alternatives",
    "fonts",
    "group",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "ssl/certs",
    "timezone",
)
_SYS = ("/sys/devices/system/cpu", "/sys/devices/system/node")  # libraries count processors there
# Of what an instructor's shell has set, only this; the rest may hold passwords and keys.
_VARIABLES = ("LANG", "LANGUAGE", "TZ", "COURSE_DEVICE", "COURSE_STATIC", "CUDA_VISIBLE_DEVICES")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def system_folders() -> list[str]:
    """Programs and libraries. Not all of /usr: people keep courses in /usr/src and homes in /usr/home."""
    top = [f"/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32")]
    usr = ["bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "share", "local", "include"]
    everything = [*top, *(f"/usr/{n}" for n in usr), *(f"/etc/{n}" for n in _ETC), *_SYS]
    return [path for path in everything if os.path.lexists(path)]


def python_folders() -> list[str]:
    """The environment that this process runs in: as it is spelled, and where links lead."""
    folders = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable))}
    if site.getusersitepackages() in sys.path:
        folders.add(site.getusersitepackages())
    folders |= {os.path.realpath(folder) for folder in folders}
    return sorted(folder for folder in folders if folder not in ("/", "/usr") and os.path.isdir(folder))


def exposing(readable: list[str]) -> str:
    """A readable folder that holds the whole course, or an empty text: in it the solutions would lie open."""
    root = str(ROOT.resolve())
    return next((p for p in readable if root == p or root.startswith(os.path.realpath(p).rstrip("/") + "/")), "")


def data_view(folder: Path) -> list[str]:
    """Make ``folder`` a view of the course's data in which no test image has its label; the real files that it needs.

    The labels are zeros there: ``load_cifar_mini`` wants the file, and reads the training images as ever. Pictures
    are left out, they may show labels.
    """
    real = data_root().resolve() / "cifar_mini"
    view = folder / "cifar_mini"
    view.mkdir(parents=True)
    needed = []
    if real.is_dir():
        for file in sorted(real.iterdir()):
            if file.name == label_file("test"):
                (view / file.name).write_bytes(bytes(file.stat().st_size))
            elif file.is_file() and file.suffix != ".png":
                (view / file.name).symlink_to(file.resolve())
                needed.append(str(file.resolve()))
    return needed


def environment(home: str, data: str, also: list[str]) -> dict[str, str]:
    """The variables of a kernel whose writable folder is ``home``."""
    kept = {name: value for name, value in os.environ.items() if name in (*_VARIABLES, *also) or name[:3] == "LC_"}
    return {
        **{name: os.environ.get(name, "1") for name in _THREADS},
        **kept,
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin"]),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "COURSE_DATA": data,
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "USER": "student",
        "LOGNAME": "student",
        "HOME": home,
        "TMPDIR": f"{home}/tmp",
        "XDG_CACHE_HOME": f"{home}/.cache",
        "XDG_CONFIG_HOME": f"{home}/.config",
        "IPYTHONDIR": f"{home}/.ipython",
        "MPLCONFIGDIR": f"{home}/.config/matplotlib",
        "TORCH_HOME": f"{home}/.cache/torch",
    }


def copy_submission(source: str, work: str, most: int) -> None:
    """Copy plain files and folders, ``most`` bytes together. Links, pipes and devices stay behind: they lead elsewhere."""
    os.makedirs(work, exist_ok=True)
    left = most
    for folder, _, files in os.walk(source):  # does not follow links to folders
        place = os.path.join(work, os.path.relpath(folder, source))
        os.makedirs(place, exist_ok=True)
        for name in files:
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):  # unreadable, or gone: the notebook does without it
                found = os.lstat(path)
                if stat.S_ISREG(found.st_mode) and found.st_size <= left:
                    left -= found.st_size
                    shutil.copyfile(path, os.path.join(place, name), follow_symlinks=False)
