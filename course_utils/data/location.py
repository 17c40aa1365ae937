"""Where the course's data lives."""

import os
from pathlib import Path

__all__ = ["cifar_mini_folder", "data_root", "project_root"]


def project_root() -> Path:
    """The course's folder: the one that holds the package, else the nearest one above the working folder.

    A notebook runs in `notebooks/01_tensor_costs/`, a command anywhere; both must find the same `data/`.
    """
    package = Path(__file__).resolve().parents[1]
    here = Path.cwd()
    for folder in (package.parent, here, *here.parents):
        # An installed copy of the package lies in site-packages, which is no course folder.
        if (folder / "course_utils").is_dir() and any((folder / n).exists() for n in ("notebooks", "pyproject.toml")):
            return folder
    return here


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder with all data: `root` if given, else the variable COURSE_DATA, else `data/` of the course."""
    chosen = root if root is not None else os.environ.get("COURSE_DATA")
    return Path(chosen).expanduser() if chosen else project_root() / "data"


def cifar_mini_folder(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder of CIFAR-mini inside a data root."""
    return data_root(root) / "cifar_mini"
