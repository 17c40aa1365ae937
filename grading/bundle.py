"""Pack what students get: one zip, without answers, without the grader, without anybody's work.

    python -m grading.bundle [--to FILE] [--no-data]         what `make student-bundle` runs

The notebooks are released anew from ``solutions/``, whatever lies in ``notebooks/``. The same sources and images give the
same bytes. The labels of the test images stay here: grading asks for them, and nothing that a student runs does. Whoever
draws the default images with ``build-data`` draws their labels, too: `make build-data SEED=...` before packing makes
images that only this machine can label, because the seed is held back as well.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import zipfile
from pathlib import Path

import nbformat

from course_utils.data.images import DataError
from course_utils.data.location import cifar_mini_folder
from course_utils.data.reading import CLASS_NAMES_FILE, META_FILE, image_file, label_file, load_cifar_mini
from course_utils.files import atomic_write_bytes
from course_utils.student.released import released_text
from grading.build import release_text, source_notebook
from grading.source import ROOT, SourceError, sections

__all__ = ["TOP", "contents", "write_zip"]

TOP = "pytorch-foundations"
TEMPLATES = Path(__file__).parent / "student_bundle"
AS_THEY_ARE = ("LICENSE", "environment.yml", "requirements.txt", "data/README.md")
CODE = (".py", ".json")


def contents(data: bool = True) -> dict[str, bytes]:
    """Every file of the bundle by its path.

    Raises
    ------
    SourceError
        If nbgrader refuses a section.
    DataError
        If there are no images to pack.
    """
    files = {name: (ROOT / name).read_bytes() for name in AS_THEY_ARE}
    files["pyproject.toml"] = student_project((ROOT / "pyproject.toml").read_text(encoding="utf-8")).encode()
    files |= {path.name: path.read_bytes() for path in TEMPLATES.iterdir() if path.is_file()}
    for path in (ROOT / "course_utils").rglob("*"):
        if path.suffix in CODE and path.is_file() and "__pycache__" not in path.parts:
            files[path.relative_to(ROOT).as_posix()] = path.read_bytes()
    for section in sections():
        name = f"{section.assignment}/{section.name}.ipynb"
        text = release_text(section, source_notebook(section))
        # What `ready` compares with must be what is handed out, even before the next `make build`.
        cells = released_text(section.assignment, nbformat.reads(text, as_version=4))
        files[f"course_utils/released/{section.name}.json"] = cells.encode()
        files[f"notebooks/{name}"] = text.encode()
        # What `lab` brings back where a notebook is missing: there is no git to ask.
        files[f"course_utils/released/notebooks/{name}"] = files[f"notebooks/{name}"]
    if data:
        files |= {f"data/cifar_mini/{name}": content for name, content in images().items()}
    return files


def student_project(text: str) -> str:
    """pyproject.toml with what an installation needs: no tools, no maintainers' packages, no grader."""
    text = text.partition("\n[tool.ruff]")[0]
    text = re.sub(r"\n\[project\.optional-dependencies\]\n.*?(?=\n\[)", "", text, flags=re.DOTALL)
    return text.replace('"course_utils*", "grading*"', '"course_utils*"').rstrip() + "\n"


def images() -> dict[str, bytes]:
    """The images without the labels of the test images, and without the seed that draws them."""
    load_cifar_mini("train", verify=True)
    folder = cifar_mini_folder()
    names = [image_file("train"), label_file("train"), image_file("test"), CLASS_NAMES_FILE]
    meta = json.loads((folder / META_FILE).read_text(encoding="utf-8"))
    meta["files"] = {name: entry for name, entry in meta["files"].items() if name in names}
    meta["seed"] = None
    packed = {name: (folder / name).read_bytes() for name in names}
    return {**packed, META_FILE: (json.dumps(meta, indent=2, ensure_ascii=False) + "\n").encode()}


def write_zip(files: dict[str, bytes], path: Path) -> None:
    """Write files below :data:`TOP`, sorted, all with the same date."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(f"{TOP}/{name}", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            archive.writestr(entry, files[name])
    atomic_write_bytes(path, buffer.getvalue())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m grading.bundle", description="Pack what students get.")
    parser.add_argument("--to", type=Path, default=ROOT / f"{TOP}.zip", metavar="FILE", help=f"default: {TOP}.zip")
    parser.add_argument("--no-data", action="store_true", help="without images: the bundle then draws its own")
    options = parser.parse_args(argv)
    try:
        files = contents(data=not options.no_data)
        write_zip(files, options.to)
    except (SourceError, DataError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.to}: {len(files)} files, {options.to.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
