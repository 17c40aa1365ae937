"""The archive reader: reads what is right, runs nothing, writes nothing, and refuses the rest with a reason."""

import contextlib
import gzip
import io
import os
import pickle
import struct
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from data_samples import BATCHES, FOLDER, meta_pickle, python2_pickle

from course_utils.data import archive
from course_utils.data.archive import read_archive
from course_utils.data.images import CIFAR10_CLASSES, DataError

FIRST = f"{FOLDER}/data_batch_1"


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def plain(name: str, size: int = 3) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


def test_a_python_2_archive_gives_its_images_and_labels_in_order(write_archive, members, pixels):
    train, test, classes = read_archive(write_archive(members))
    assert np.array_equal(train.images, pixels[:50])
    assert np.array_equal(test.images, pixels[50:])
    assert train.labels.tolist() == list(range(10)) * 5
    assert classes == CIFAR10_CLASSES


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_archive_repacked_by_python_3_is_read(write_archive, members, pixels, protocol, order):
    def batch(images: np.ndarray) -> bytes:
        rows = np.array(images.transpose(0, 3, 1, 2).reshape(-1, 3072), order=order)
        return pickle.dumps({b"data": rows, b"labels": list(range(10))}, protocol=protocol)

    contents = {f"{FOLDER}/{name}": batch(pixels[i * 10 : i * 10 + 10]) for i, name in enumerate(BATCHES)}
    train, _, _ = read_archive(write_archive(members | contents))
    assert np.array_equal(train.images, pixels[:50])


def test_a_harmless_extra_member_is_passed_over(write_archive, members):
    read_archive(write_archive(members | {f"{FOLDER}/readme.html": b"<p>"}, plain("other.txt")))


@pytest.mark.parametrize(
    "member",
    [
        plain("../evil"),
        plain(f"{FOLDER}/../../evil"),
        plain("/tmp/evil"),
        plain("C:\\evil"),
        plain("..\\evil"),
        link(FIRST, "/etc/passwd"),
        link(FIRST, "/etc/passwd", tarfile.LNKTYPE),
        link(f"{FOLDER}/fifo", "", tarfile.FIFOTYPE),
        link(f"{FOLDER}/device", "", tarfile.CHRTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.type.decode()}",
)
def test_a_member_that_points_outside_is_refused_and_writes_nothing(write_archive, members, member, tmp_path):
    path = write_archive(members, member)
    with pytest.raises(DataError, match="refused"):
        read_archive(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_member_that_is_there_twice_is_refused(write_archive, members):
    path = write_archive(members, plain(FIRST))
    with pytest.raises(DataError, match="twice"):
        read_archive(path)


class Calls:
    """Pickles as a call of any function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
@pytest.mark.parametrize("member", [FIRST, f"{FOLDER}/batches.meta"])
def test_a_pickle_that_calls_anything_is_refused_and_nothing_has_run(
    write_archive, members, tmp_path, monkeypatch, member, protocol
):
    monkeypatch.chdir(tmp_path)
    for call in (
        Calls(os.system, "touch evil"),
        Calls(open, "evil", "w"),
        Calls(eval, "open('evil', 'w')"),
        Calls(subprocess.getoutput, "touch evil"),
        Calls(os.mkdir, "evil"),
    ):
        path = write_archive(members | {member: pickle.dumps({b"data": call}, protocol=protocol)})
        with pytest.raises(DataError, match="refused"):
            read_archive(path)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "module, name",
    [
        ("builtins", "getattr"),
        ("numpy", "load"),
        ("numpy", "ndarray.tofile"),
        ("numpy.core.multiarray", "fromfile"),
        ("_codecs", "lookup"),
        ("course_utils.data.archive", "os.system"),
    ],
)
def test_a_pickle_may_name_only_what_arrays_need(write_archive, members, module, name):
    data = b"\x80\x04" + b"".join(b"\x8c" + bytes([len(t)]) + t.encode() for t in (module, name)) + b"\x93."
    with pytest.raises(DataError, match=rf"refused, the pickle calls {module}\.{name}"):
        read_archive(write_archive(members | {FIRST: data}))


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"\x80\x02Nr\xff\xff\xff\xff.", "memo"),  # LONG_BINPUT: the C unpickler would reserve 64 GB
        (b"P1\n.", "PERSID"),
        (b"\x82\x01.", "EXT1"),
        (b"(i__main__\nx\n.", "INST"),
        (b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00utf_8tR.", "encoded as"),
    ],
)
def test_an_opcode_that_no_batch_uses_is_refused(write_archive, members, data, reason):
    with pytest.raises(DataError, match=f"refused.*{reason}"):
        read_archive(write_archive(members | {FIRST: data}))


def test_a_pickle_cannot_change_how_later_pickles_are_read(write_archive, members):
    """BUILD on the class that stands for numpy.ndarray tries to set its attributes."""
    poison = b"\x80\x02cnumpy\nndarray\n(N}X\x05\x00\x00\x00stateK\x01stb."
    with pytest.raises(DataError):
        read_archive(write_archive(members | {FIRST: poison}))
    assert archive._PickledArray.state is None
    read_archive(write_archive(members))


def array_pickle(shape: tuple, code: str, data: bytes) -> bytes:
    """A batch with an array that claims what it likes."""
    rows = np.zeros((10, 3072), np.uint8).__reduce__()
    dtype = Calls(np.dtype, code, False, True)

    class Array:
        def __reduce__(self):
            return rows[0], rows[1], (1, shape, dtype, False, data)

    return pickle.dumps({b"data": Array(), b"labels": list(range(10))}, protocol=2)


@pytest.mark.parametrize(
    "data, reason",
    [
        (array_pickle((10**9, 3072), "u1", b"x"), "bytes"),
        (array_pickle((10, -3072), "u1", b"x"), "cannot be read"),
        (array_pickle((10, 3072), "O8", b"x" * 30720), "dtype"),
        (array_pickle((10, 3072), "f4", b"x" * 122880), "dtype"),
        (array_pickle((10, 3071), "u1", b"x" * 30710), "3072"),
        (array_pickle((30720,), "u1", b"x" * 30720), "3072"),
        (pickle.dumps({b"data": [1], b"labels": [1]}, protocol=2), "3072"),
        (pickle.dumps([1], protocol=2), "dictionary"),
        (pickle.dumps({b"data": 1}, protocol=2)[:-3], "damaged"),
        (b"", "damaged"),
        (python2_pickle(np.zeros((10, 32, 32, 3), np.uint8), [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]), "0 to 9"),
        (python2_pickle(np.zeros((10, 32, 32, 3), np.uint8), [0, 1, 2]), "10 images but 3 labels"),
    ],
)
def test_a_wrong_array_or_label_is_refused(write_archive, members, data, reason):
    with pytest.raises(DataError, match=reason):
        read_archive(write_archive(members | {FIRST: data}))


@pytest.mark.parametrize(
    "names",
    [CIFAR10_CLASSES[:9], (*CIFAR10_CLASSES[:9], "cat"), (*CIFAR10_CLASSES[:9], "a\nb"), (*CIFAR10_CLASSES[:9], " ")],
)
def test_wrong_class_names_are_refused(write_archive, members, names):
    with pytest.raises(DataError, match="class"):
        read_archive(write_archive(members | {f"{FOLDER}/batches.meta": meta_pickle(names)}))


def test_a_missing_batch_is_named(write_archive, members):
    with pytest.raises(DataError, match="no cifar-10-batches-py/data_batch_1"):
        read_archive(write_archive({name: data for name, data in members.items() if name != FIRST}))


@pytest.mark.parametrize("part", [0.0, 0.001, 0.3, 0.7, 0.999])
def test_a_cut_off_archive_is_refused(write_archive, members, part):
    path = write_archive(members)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(DataError, match=r"small\.tar\.gz"):
        read_archive(path)


def test_an_archive_that_fails_gzips_own_checksum_is_refused(write_archive, members):
    path = write_archive(members)
    data = bytearray(path.read_bytes())
    data[-8] ^= 1  # gzip's CRC-32 of all that was unpacked
    path.write_bytes(data)
    with pytest.raises(DataError, match="damaged"):
        read_archive(path)


@pytest.mark.parametrize("content", [b"no archive", gzip.compress(b"no tar file"), b"\x1f\x8b" + b"\xff" * 100])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content):
    path = tmp_path / "x.tar.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.tar\.gz"):
        read_archive(path)


def test_a_member_that_claims_a_huge_size_is_refused_unread(tmp_path: Path):
    """A header that claims 100 GB, of which a few bytes follow."""
    info = plain(FIRST, 100 * 2**30)
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + b"x" * 512))
    with pytest.raises(DataError, match="refused"):
        read_archive(path)


def test_an_archive_that_unpacks_to_too_much_is_refused(write_archive, members, monkeypatch):
    monkeypatch.setattr(archive, "MAX_TOTAL", 100_000)  # the real limit would take seconds to reach
    with pytest.raises(DataError, match="unpacks"):
        read_archive(write_archive(members))


def test_what_follows_the_tar_counts_towards_the_limit(tmp_path, members, monkeypatch):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in members.items():
            info = plain(name, len(data))
            tar.addfile(info, io.BytesIO(data))
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(buffer.getvalue() + bytes(3_000_000), compresslevel=1))
    monkeypatch.setattr(archive, "MAX_TOTAL", 1_000_000)
    with pytest.raises(DataError, match="unpacks"):
        read_archive(path)


def test_an_archive_of_too_many_members_is_refused(write_archive, members):
    with pytest.raises(DataError, match="members"):
        read_archive(write_archive(members, *(plain(f"x{i}", 0) for i in range(150))))


def test_an_endless_member_name_is_refused(tmp_path, monkeypatch):
    """Names longer than 100 characters are members of their own, which tarfile reads by itself."""
    monkeypatch.setattr(archive, "MAX_TOTAL", 1_000_000)
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 50_000_000
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + b"a" * 50_000_512, compresslevel=1))
    with pytest.raises(DataError, match="unpacks"):
        read_archive(path)


def test_a_chain_of_long_names_is_refused(tmp_path):
    """Each long name makes tarfile call itself once more."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress((info.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(512, b"\0")) * 2000))
    with pytest.raises(DataError, match="damaged"):
        read_archive(path)


@pytest.mark.parametrize("code", [["x"], "x" * 10**6])
def test_a_message_does_not_repeat_what_a_pickle_made_endless(write_archive, members, code):
    with pytest.raises(DataError) as caught:
        read_archive(write_archive(members | {FIRST: array_pickle((10, 3072), code, b"x" * 30720)}))
    assert len(str(caught.value)) < 200


def test_a_pickle_of_too_many_parts_is_refused(write_archive, members, monkeypatch):
    monkeypatch.setattr(archive, "MAX_OPCODES", 1000)
    with pytest.raises(DataError, match="parts"):
        read_archive(write_archive(members | {FIRST: b"\x80\x02" + b"N" * 2000 + b"."}))


def test_random_damage_is_always_refused_or_harmless(members):
    """Damage inside the pickles, which gzip's checksum cannot tell from what was meant."""
    rng = np.random.default_rng(0)
    meta, batch = members[f"{FOLDER}/batches.meta"], members[FIRST]
    for data, read in ((meta, archive._load), (batch, archive._batch)):
        for _ in range(300):
            damaged = bytearray(data)
            # Most of a batch is pixels: aim at its first and last hundred bytes.
            for place in rng.integers(-100, 100, 3):
                damaged[place % len(data)] = rng.integers(256)
            with contextlib.suppress(DataError):
                read(bytes(damaged), "x")


def test_the_hand_written_python_2_pickle_is_one_that_python_reads(pixels):
    batch = pickle.loads(python2_pickle(pixels[:10], list(range(10))), encoding="bytes")
    assert batch[b"data"].shape == (10, 3072)
    assert struct.unpack("3B", batch[b"data"][0, :3].tobytes()) == tuple(pixels[0, 0, :3, 0])
