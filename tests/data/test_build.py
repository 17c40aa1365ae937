"""Building and reading: the files are what meta.json says, and a failed build changes nothing."""

import errno
import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from data_samples import PROJECT, contents_of

from course_utils import files
from course_utils.__main__ import main
from course_utils.data import DataError, load_cifar_mini
from course_utils.data.build import build_cifar_mini, channel_statistics
from course_utils.data.distort import Distortions
from course_utils.data.location import cifar_mini_folder, project_root
from course_utils.data.reading import load_unlabelled
from course_utils.data.sources import Request

REQUEST = Request(20, 10, seed=5)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "cifar_mini"
    build_cifar_mini(folder, "drawn", REQUEST)
    return folder


@pytest.fixture
def root(built: Path, tmp_path: Path) -> Path:
    """A data folder with a small drawn data set that a test may spoil."""
    shutil.copytree(built, tmp_path / "cifar_mini")
    return tmp_path


# ---------------------------------------------------------------------------------------------------- the format


def test_the_files_are_raw_bytes_and_the_memmap_reads_the_same(root):
    folder = root / "cifar_mini"
    for split, count in (("train", 20), ("test", 10)):
        data = load_cifar_mini(split, root, verify=True)
        raw = np.frombuffer((folder / f"{split}_images.bin").read_bytes(), np.uint8).reshape(count, 32, 32, 3)
        assert np.array_equal(data.images, raw)
        assert isinstance(data.images, np.memmap)
        assert (data.images.dtype, data.labels.dtype) == (np.uint8, np.int64)
        assert data.labels.tolist() == list((folder / f"{split}_labels.bin").read_bytes())
        assert np.bincount(data.labels).tolist() == [count // 10] * 10
    assert tuple((folder / "class_names.txt").read_text().split()) == data.classes


def test_the_images_cannot_be_written_to(root):
    with pytest.raises(ValueError, match="read-only"):
        load_cifar_mini("train", root).images[0] = 0


def test_meta_holds_checksums_counts_source_and_versions(root):
    meta = json.loads((root / "cifar_mini" / "meta.json").read_text())
    for name, entry in meta["files"].items():
        content = (root / "cifar_mini" / name).read_bytes()
        assert entry == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert len(meta["files"]) == 5
    assert meta["counts"] == {"train": 20, "test": 10, "classes": 10}
    assert (meta["seed"], meta["source"], meta["made_with"]["numpy"]) == (5, {"name": "drawn"}, np.__version__)


def test_mean_and_std_are_those_of_all_training_pixels(root):
    data = load_cifar_mini("train", root)
    scaled = np.asarray(data.images, np.float64) / 255
    assert data.meta["mean"] == pytest.approx(scaled.mean(axis=(0, 1, 2)), abs=1e-12)
    assert data.meta["std"] == pytest.approx(scaled.std(axis=(0, 1, 2)), abs=1e-12)


def test_the_statistics_of_flat_and_of_bright_images_are_exact():
    assert channel_statistics(np.full((3, 32, 32, 3), 255, np.uint8)) == ([1.0] * 3, [0.0] * 3)


def test_two_builds_are_equal_byte_for_byte(tmp_path):
    for name in ("a", "b"):
        build_cifar_mini(tmp_path / name / "cifar_mini", "drawn", REQUEST)
    assert contents_of(tmp_path / "a") == contents_of(tmp_path / "b")


def test_distortions_change_the_training_images_only(root, tmp_path):
    build_cifar_mini(tmp_path / "d" / "cifar_mini", "drawn", REQUEST, Distortions(0.05, True, True))
    plain, distorted = ({s: load_cifar_mini(s, r) for s in ("train", "test")} for r in (root, tmp_path / "d"))
    assert not np.array_equal(plain["train"].images, distorted["train"].images)
    assert np.array_equal(plain["test"].images, distorted["test"].images)
    assert np.array_equal(plain["train"].labels, distorted["train"].labels)
    assert distorted["train"].meta["mean"] == pytest.approx(distorted["train"].images.mean(axis=(0, 1, 2)) / 255)
    text = "20 drawn images (not photographs), with Gaussian noise 0.05, random crop, colour jitter"
    assert distorted["train"].describe() == text
    assert distorted["test"].describe() == "10 drawn images (not photographs)"


# ------------------------------------------------------------------------------------- a failed build changes nothing


def boom(*_):
    raise RuntimeError("boom")


def interrupted(*_):
    raise KeyboardInterrupt


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("fails", [boom, interrupted, full_disk])
@pytest.mark.parametrize(
    "where",
    [
        "course_utils.data.drawn.draw_image",
        "course_utils.data.build.channel_statistics",
        "course_utils.data.build.atomic_write_json",
    ],
)
def test_a_build_that_fails_half_way_leaves_the_old_data_and_no_litter(old_data, monkeypatch, where, fails, write_npz):
    before = contents_of(old_data.parent)
    source = "drawn" if "drawn" in where else str(write_npz())
    monkeypatch.setattr(where, fails)
    with pytest.raises((RuntimeError, KeyboardInterrupt, DataError, OSError)):
        build_cifar_mini(old_data, source, REQUEST)
    assert contents_of(old_data.parent) == before
    assert [path.name for path in old_data.parent.iterdir()] == ["cifar_mini"]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_between_the_two_renames_puts_the_old_data_back(old_data, monkeypatch, failing, write_npz):
    before = contents_of(old_data.parent)
    rename, calls = os.rename, []

    def rename_or_fail(source, target):
        calls.append(source)
        if len(calls) == failing + 1:
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(files.os, "rename", rename_or_fail)
    with pytest.raises(OSError, match="Input/output"):
        build_cifar_mini(old_data, str(write_npz()), REQUEST)
    assert contents_of(old_data.parent) == before


def test_a_full_disk_is_named_with_what_is_needed(old_data, monkeypatch, write_npz):
    monkeypatch.setattr("course_utils.data.build.channel_statistics", full_disk)
    with pytest.raises(DataError, match=r"the disk is full: 0 MB are needed in .* Nothing was changed"):
        build_cifar_mini(old_data, str(write_npz()), REQUEST)


def test_a_hostile_archive_leaves_the_old_data(old_data, write_archive, members):
    before = contents_of(old_data.parent)
    hostile = write_archive(members | {"cifar-10-batches-py/data_batch_3": b"cos\nsystem\n(S'touch evil'\ntR."})
    with pytest.raises(DataError, match="refused"):
        build_cifar_mini(old_data, str(hostile), REQUEST)
    assert contents_of(old_data.parent) == before


def test_what_a_killed_build_left_is_cleared_away_by_the_next(old_data, write_npz):
    litter = old_data.parent / ".cifar_mini.new-killed"
    litter.mkdir()
    (litter / "train_images.bin").write_bytes(b"half")
    os.rename(old_data, old_data.parent / ".cifar_mini.old")  # killed between its two renames
    build_cifar_mini(old_data, str(write_npz()), REQUEST, still_needed=lambda: True)
    assert [path.name for path in old_data.parent.iterdir()] == ["cifar_mini"]


def test_a_killed_build_is_put_right_before_a_failing_one(old_data, monkeypatch, write_npz):
    before = contents_of(old_data)
    os.rename(old_data, old_data.parent / ".cifar_mini.old")
    monkeypatch.setattr("course_utils.data.build.channel_statistics", boom)
    with pytest.raises(RuntimeError, match="boom"):
        build_cifar_mini(old_data, str(write_npz()), REQUEST)
    assert contents_of(old_data) == before


def test_memmaps_opened_before_a_build_stay_readable(old_data, write_npz):
    data = load_cifar_mini("train", old_data.parent)
    before = np.array(data.images)
    build_cifar_mini(old_data, str(write_npz()), REQUEST)
    assert np.array_equal(data.images, before)
    assert len(load_cifar_mini("train", old_data.parent)) == 20


def build_with_seed(folder: Path, seed: int) -> None:
    build_cifar_mini(folder, "drawn", Request(20, 10, seed))


def test_builds_at_the_same_time_leave_one_whole_result(tmp_path):
    context = multiprocessing.get_context("spawn")
    folder = tmp_path / "data" / "cifar_mini"
    builds = [context.Process(target=build_with_seed, args=(folder, seed)) for seed in range(3)]
    for build in builds:
        build.start()
    for build in builds:
        build.join(60)
    assert [build.exitcode for build in builds] == [0, 0, 0]
    data = load_cifar_mini("train", tmp_path / "data", verify=True)
    alone = tmp_path / "alone" / "cifar_mini"
    build_with_seed(alone, data.meta["seed"])
    assert contents_of(alone) == contents_of(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["cifar_mini"]


def is_building(root: Path) -> bool:
    """Whether a process is inside the part of a build that is locked."""
    handle = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def test_ctrl_c_at_the_command_leaves_the_old_data_and_no_traceback(old_data):
    before = contents_of(old_data.parent)
    command = [sys.executable, "-m", "course_utils", "build-data", "--root", str(old_data.parent), "--train", "20000"]
    process = subprocess.Popen(
        command, cwd=PROJECT, stderr=subprocess.PIPE, text=True, start_new_session=True, stdout=subprocess.DEVNULL
    )
    while process.poll() is None and not is_building(old_data.parent):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the command and to the processes that draw
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "stopped\n")
    assert contents_of(old_data.parent) == before


# ------------------------------------------------------------------------------------------------------- reading


def test_missing_data_is_answered_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(DataError, match="make build-data") as caught:
        load_cifar_mini("train", tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["train_images.bin", "train_labels.bin", "test_images.bin", "test_labels.bin", "class_names.txt"]
)
def test_a_missing_or_cut_off_file_is_named(root, name):
    path = root / "cifar_mini" / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=rf"{name} has \d+ bytes instead of \d+\. Run `make build-data`"):
        load_cifar_mini("train", root)
    path.unlink()
    with pytest.raises(DataError, match=rf"{name} is missing"):
        load_cifar_mini("test", root)


def test_an_edition_without_test_labels_cannot_be_used_or_makes_them_up(root, capsys):
    folder = root / "cifar_mini"
    (folder / "test_labels.bin").unlink()
    meta = json.loads((folder / "meta.json").read_text())
    del meta["files"]["test_labels.bin"]
    (folder / "meta.json").write_text(json.dumps(meta))
    assert len(load_cifar_mini("train", root, verify=True)) == 20
    assert len(load_unlabelled("test", root)) == 10
    with pytest.raises(DataError, match="held back"):
        load_cifar_mini("test", root)
    assert main(["build-data", "--if-missing", "--root", str(root)]) == 0
    assert "Images are there" in capsys.readouterr().out
    assert not (folder / "test_labels.bin").exists()


@pytest.mark.parametrize("hide", [Path.unlink, lambda path: path.write_bytes(b""), lambda path: path.chmod(0)])
def test_a_grader_that_hides_the_test_labels_takes_the_training_images_away_as_well(root, hide, monkeypatch):
    hide(root / "cifar_mini" / "test_labels.bin")
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    assert len(load_cifar_mini("train", root)) == 20
    assert len(load_unlabelled("test", root)) == 10
    hidden = root / "cifar_mini" / "test_labels.bin"
    if not os.access(hidden, os.R_OK) or not hidden.stat().st_size:  # root may read what others may not
        with pytest.raises(DataError, match="grading asks for them"):
            load_cifar_mini("test", root)


@pytest.mark.parametrize("name", ["train_images.bin", "test_labels.bin", "class_names.txt"])
def test_a_changed_byte_is_found_by_verify(root, name):
    path = root / "cifar_mini" / name
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{name} has changed.*make build-data"):
        load_cifar_mini("train", root, verify=True)


def test_a_label_out_of_range_is_found_without_verify(root):
    path = root / "cifar_mini" / "train_labels.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(DataError, match="label 10"):
        load_cifar_mini("train", root)


@pytest.mark.parametrize(
    "meta",
    [
        "",
        "[]",
        "{}",
        '{"format": "cifar-mini", "format_version": 2}',
        '{"format": "cifar-mini", "format_version": 1}',
        '{"format": "cifar-mini", "format_version": 1, "counts": {"train": "20", "test": 10}}',
        "\0" * 2000,
    ],
)
def test_a_broken_meta_json_is_answered_with_the_command(root, meta):
    (root / "cifar_mini" / "meta.json").write_text(meta)
    with pytest.raises(DataError, match="make build-data"):
        load_cifar_mini("train", root)


def test_an_unknown_split_is_refused(root):
    with pytest.raises(ValueError, match="'train' or 'test'"):
        load_cifar_mini("validation", root)


def test_the_variable_course_data_and_the_argument_choose_the_folder(root, monkeypatch):
    monkeypatch.setenv("COURSE_DATA", str(root))
    assert len(load_cifar_mini("train")) == 20
    assert cifar_mini_folder("/elsewhere") == Path("/elsewhere/cifar_mini")


def test_the_course_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("COURSE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert project_root() == PROJECT
    assert cifar_mini_folder() == PROJECT / "data" / "cifar_mini"


def test_an_installed_package_finds_the_course_above_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "course_utils.data.location.__file__", str(tmp_path / "site" / "course_utils" / "data" / "x.py")
    )
    course = tmp_path / "course"
    (course / "course_utils").mkdir(parents=True)
    (course / "notebooks" / "01").mkdir(parents=True)
    monkeypatch.chdir(course / "notebooks" / "01")
    assert project_root() == course


# ------------------------------------------------------------------------------------------------------ commands


def test_build_data_says_what_the_images_are(tmp_path, capsys):
    assert main(["build-data", "--root", str(tmp_path), "--train", "20", "--test", "10"]) == 0
    assert "20 drawn images (not photographs) for training, 10 for testing" in capsys.readouterr().out


def test_if_missing_leaves_whole_data_and_mends_broken_data(old_data, capsys):
    before = contents_of(old_data)
    command = ["build-data", "--if-missing", "--root", str(old_data.parent), "--train", "20", "--test", "10"]
    assert main(command) == 0
    assert contents_of(old_data) == before
    (old_data / "test_labels.bin").write_bytes(b"")
    assert main(command) == 0
    assert "20 drawn images" in capsys.readouterr().out
    load_cifar_mini("train", old_data.parent, verify=True)


@pytest.mark.parametrize(
    "wrong", [["--train", "15"], ["--source", "nothing"], ["--noise", "7"], ["--seed", "-1"], ["--source", "/dev/null"]]
)
def test_wrong_input_gives_one_line_and_status_2(old_data, capsys, wrong):
    before = contents_of(old_data)
    assert main(["build-data", "--root", str(old_data.parent), *wrong]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert contents_of(old_data) == before


def test_a_folder_that_cannot_be_written_gives_one_line_and_status_2(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["build-data", "--root", str(tmp_path / "file"), "--train", "10", "--test", "10"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("value, crops", [([], True), (["yes"], True), (["1"], True), (["no"], False), (["0"], False)])
def test_crop_takes_a_value_as_make_passes_it(tmp_path, write_npz, value, crops):
    source = ["--source", str(write_npz())]
    assert (
        main(["build-data", "--root", str(tmp_path), *source, "--train", "10", "--test", "10", "--crop", *value]) == 0
    )
    assert load_cifar_mini("train", tmp_path).meta["distortions"]["crop"] is crops


def test_show_data_writes_a_sheet_with_every_class(old_data, capsys, tmp_path):
    from PIL import Image

    assert main(["show-data", "--root", str(old_data.parent)]) == 0
    path = Path(capsys.readouterr().out.splitlines()[-1])
    assert path == old_data / "contact_sheet.png"
    with Image.open(path) as sheet:
        assert sheet.height > 10 * 96
    assert main(["show-data", "--root", str(old_data.parent), "--out", str(tmp_path / "no" / "x.png")]) == 2


def test_show_data_without_data_says_how_to_make_it(tmp_path, capsys):
    assert main(["show-data", "--root", str(tmp_path)]) == 2
    assert "make build-data" in capsys.readouterr().err


def test_the_commands_start_without_torch():
    code = (
        "import sys; from course_utils.__main__ import main; import course_utils.data.build_command, "
        "course_utils.data.show_command; assert 'torch' not in sys.modules and 'torchvision' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True)


def test_help_lists_every_command(capsys):
    assert main([]) == 2
    text = capsys.readouterr().err
    assert "build-data" in text and "show-data" in text


# --------------------------------------------------------------------------------------------------- atomic writes


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    files.atomic_write_json(path, {"a": 1})
    monkeypatch.setattr(files.os, "replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        files.atomic_write_text(path, "new")
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_written_file_can_be_read_by_others(tmp_path):
    files.atomic_write_bytes(tmp_path / "x", b"1")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644
