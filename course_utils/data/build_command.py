"""The command `build-data`."""

import argparse
import sys

from tqdm import tqdm

from course_utils.data import sources
from course_utils.data.build import build_cifar_mini
from course_utils.data.distort import Distortions
from course_utils.data.images import DataError
from course_utils.data.location import cifar_mini_folder
from course_utils.data.reading import load_cifar_mini

DEFAULT_SEED = 2024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `build-data`."""
    add = parser.add_argument
    add("--source", default="drawn", help="drawn (default), cifar10, or the path of a .tar.gz, an .npz or a folder")
    add("--train", type=int, default=1000, metavar="N", help="training images, a multiple of ten (default 1000)")
    add("--test", type=int, default=1000, metavar="N", help="test images, a multiple of ten (default 1000)")
    add("--seed", type=int, default=DEFAULT_SEED, help=f"what is drawn, or chosen (default {DEFAULT_SEED})")
    add(
        "--noise", type=float, default=0.0, metavar="SIGMA", help="Gaussian noise on training images; pixels are 0 to 1"
    )
    flag = {"nargs": "?", "const": True, "default": False, "type": _yes_or_no, "metavar": "yes|no"}
    add("--crop", **flag, help="shift training images by up to four pixels")
    add("--jitter", **flag, help="change brightness, contrast and saturation of training images")
    add("--if-missing", action="store_true", help="do nothing if whole data is there, whatever its source")
    add("--require-official", action="store_true", help="refuse an archive whose checksum is not the official one")
    add("--root", metavar="FOLDER", help="the data folder (default: the variable COURSE_DATA, else the course's data)")


def run(args: argparse.Namespace) -> int:
    """Make the data and say what was made. Raises CourseError or OSError."""
    folder = cifar_mini_folder(args.root)
    if args.if_missing and _is_whole(args.root):
        print(f"Images are there: {load_cifar_mini('train', args.root).describe()} in {folder}.")
        return 0
    total = args.train + args.test
    with tqdm(total=total, unit="image", desc="images", disable=None, leave=False) as bar:
        request = sources.Request(
            args.train, args.test, args.seed, args.require_official, folder.parent / "download", bar.update
        )
        data = build_cifar_mini(
            folder,
            args.source,
            request,
            Distortions(args.noise, args.crop, args.jitter),
            waiting=lambda: print("Another build is running; waiting for it.", file=sys.stderr),
            still_needed=lambda: not (args.if_missing and _is_whole(args.root)),
        )
    for notice in data.notices if data else ():
        print(f"note: {notice}")
    train, test = load_cifar_mini("train", args.root), load_cifar_mini("test", args.root)
    print(f"{folder}: {train.describe()} for training, {len(test)} for testing.")
    return 0


def _is_whole(root: str | None) -> bool:
    try:
        load_cifar_mini("train", root)
    except DataError:
        return False
    return True


def _yes_or_no(text: str) -> bool:
    values = {"yes": True, "1": True, "true": True, "on": True, "no": False, "0": False, "false": False, "off": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"{text!r}: yes or no is needed")
    return values[text.lower()]
