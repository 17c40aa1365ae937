"""The command `show-data`."""

import argparse
from pathlib import Path

from course_utils.data.location import cifar_mini_folder
from course_utils.data.reading import load_cifar_mini
from course_utils.data.sheet import contact_sheet
from course_utils.errors import CourseError
from course_utils.files import atomic_write_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `show-data`."""
    parser.add_argument("--out", type=Path, metavar="PATH", help="where to write the PNG (default: beside the images)")
    parser.add_argument("--split", choices=("train", "test"), default="train", help="which images (default: train)")
    parser.add_argument("--root", metavar="FOLDER", help="the data folder, as for build-data")


def run(args: argparse.Namespace) -> int:
    """Write the contact sheet and print its path. Raises CourseError or OSError."""
    data = load_cifar_mini(args.split, args.root, verify=True)
    out = args.out or cifar_mini_folder(args.root) / "contact_sheet.png"
    if not out.parent.is_dir():
        raise CourseError(f"no folder {out.parent} to write {out.name} into.")
    atomic_write_bytes(out, contact_sheet(data))
    print(f"{data.describe()}\n{out}")
    return 0
