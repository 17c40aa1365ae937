"""Builds the books: ``python -m grading.book`` (``make book``)."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import nbformat

from course_utils.files import replace_folder
from grading.book.editions import EDITIONS, edition, executed, headings
from grading.book.pages import pages
from grading.source import ROOT, SourceError, sections

__all__ = ["build_book", "write_sources"]

HERE = Path(__file__).parent


def write_sources(name: str, folder: Path) -> None:
    """Everything that Sphinx reads for an edition, written into an empty folder."""
    found = {int(section.assignment[:2]): section for section in sections()}
    notebooks = {section: executed(section) for section in found.values()}
    places = {number: headings(section, notebooks[section]) for number, section in found.items()}
    for page, text in pages(name, notebooks, places).items():
        (folder / page).write_text(text, encoding="utf-8")
    for section in found.values():
        nbformat.write(edition(section, name), folder / f"{section.name}.ipynb")
    shutil.copytree(HERE / "static", folder / "_static")
    shutil.copy(HERE / "conf.py", folder / "conf.py")


def build_book(name: str, target: Path) -> None:
    """Render an edition into ``target``, which is replaced when all is done.

    Raises
    ------
    SourceError
        If Sphinx has anything to complain about; a link that leads nowhere is such a thing.
    """
    from sphinx.cmd.build import build_main

    os.environ.setdefault("SOURCE_DATE_EPOCH", "0")  # the same notebooks give the same book
    os.environ["COURSE_BOOK_EDITION"] = name
    with tempfile.TemporaryDirectory() as scratch:
        source, out = Path(scratch, "source"), Path(scratch, "html")
        source.mkdir()
        write_sources(name, source)
        said = io.StringIO()
        options = ["-b", "html", "-W", "--keep-going", "-q", "-d", str(Path(scratch, "doctrees"))]
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            failed = build_main([*options, str(source), str(out)])
        if failed:
            raise SourceError(f"the {name} edition cannot be rendered:\n{said.getvalue()}")
        (out / ".buildinfo").unlink(missing_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        with replace_folder(target) as fresh:
            shutil.copytree(out, fresh, dirs_exist_ok=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m grading.book", description="Render the course as static HTML.")
    parser.add_argument("edition", nargs="?", choices=EDITIONS, help="by default both")
    parser.add_argument("--out", type=Path, default=ROOT / "book", help="the folder for both (default: book/)")
    options = parser.parse_args(argv)
    missing = [m for m in ("sphinx", "myst_nb", "sphinx_immaterial") if find_spec(m) is None]
    if missing:
        print(f"error: {', '.join(missing)} missing: pip install -r requirements.txt", file=sys.stderr)
        return 2
    try:
        for name in [options.edition] if options.edition else EDITIONS:
            build_book(name, options.out / name)
            print(f"{options.out / name / 'index.html'}")
    except SourceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
