"""Reads CIFAR-10's official Python archive without trusting it.

The archive is a gzipped tar of Python 2 pickles, and a pickle is a program. So nothing is written to disk, members are
taken by their exact names, sizes are limited, and the pickles are read by an unpickler whose only callables are four
inert stand-ins for what NumPy's arrays need. NumPy itself sees bytes only after everything has been checked.

Layout: https://www.cs.toronto.edu/~kriz/cifar.html
"""

import gzip
import hashlib
import io
import math
import pickle
import pickletools
import tarfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from course_utils.data.images import N_CLASSES, SIDE, DataError, LabelledImages, check_classes, check_images

OFFICIAL_MD5 = "c58f30108f718f92721af3b95e74349a"
"""Of cifar-10-python.tar.gz, as given on its page and checked by torchvision.datasets.CIFAR10."""
FOLDER = "cifar-10-batches-py"
TRAIN_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST_BATCH = "test_batch"
META = "batches.meta"

MIB = 2**20
MAX_BATCH = 64 * MIB  # the official ones have 31 MB
MAX_TOTAL = 400 * MIB  # unpacked; the official archive has 186 MB
MAX_MEMBERS = 100

# What NumPy's arrays, lists of numbers and short texts are pickled with by Python 2 and by Python 3 up to protocol 4.
# The limits of this list matter as much as find_class: a memo index, for one, may not claim gigabytes.
ALLOWED_OPCODES = frozenset(
    """
    PROTO FRAME STOP MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE DICT LIST TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS
    SETITEM SETITEMS NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG1 FLOAT BINFLOAT STRING BINSTRING
    SHORT_BINSTRING BINBYTES SHORT_BINBYTES UNICODE BINUNICODE SHORT_BINUNICODE PUT BINPUT LONG_BINPUT MEMOIZE GET
    BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD
    """.split()  # noqa: SIM905
)
MAX_OPCODES = 1_000_000  # an official batch has some 60,000


def file_md5(path: Path) -> str:
    """The MD5 checksum of a file, in hexadecimal. It recognises the official archive; it is no proof of safety."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def read_archive(path: Path) -> tuple[LabelledImages, LabelledImages, tuple[str, ...]]:
    """Read all images of an archive in the official layout.

    Args:
        path: a .tar.gz file.

    Returns:
        Training images, test images, class names.

    Raises:
        DataError: the archive is cut off, not in the layout, too large, or holds what no CIFAR-10 archive holds.
        OSError: it cannot be read.
    """
    members = _read_members(path)
    missing = [name for name in (*TRAIN_BATCHES, TEST_BATCH, META) if name not in members]
    if missing:
        raise DataError(f"{path.name}: no {FOLDER}/{missing[0]} in it; not CIFAR-10's Python archive.")
    meta = _load(members[META], f"{path.name}: {META}")
    names = meta.get("label_names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path.name}: {META} has no list label_names.")
    classes = check_classes(names, f"{path.name}: {META}")
    batches = [_batch(members[name], f"{path.name}: {name}") for name in TRAIN_BATCHES]
    train = LabelledImages(
        np.concatenate([batch.images for batch in batches]), np.concatenate([batch.labels for batch in batches])
    )
    return train, _batch(members[TEST_BATCH], f"{path.name}: {TEST_BATCH}"), classes


# --------------------------------------------------------------------------------------------------- the tar file


class _Limited(io.RawIOBase):
    """The unpacked bytes of a gzip file, up to a limit: a few kilobytes may unpack to any size."""

    def __init__(self, file: BinaryIO, limit: int, where: str) -> None:
        self._file, self._left, self._where = file, limit, where

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise DataError(f"{self._where}: refused, it unpacks to far more than CIFAR-10's 186 MB.")
        return data


def _read_members(path: Path) -> dict[str, bytes]:
    """The contents of the expected members by their names without the folder, read in one pass."""
    try:
        with gzip.open(path, "rb") as unpacked:
            stream = _Limited(unpacked, MAX_TOTAL, path.name)
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                members = _take(tar, path.name)
            while stream.read(MIB):  # to the end of the file, where gzip checks its checksum
                pass
    except DataError:
        raise
    except (
        EOFError,
        zlib.error,
        gzip.BadGzipFile,
        tarfile.TarError,
        ValueError,
        ArithmeticError,
        RuntimeError,
    ) as error:
        raise DataError(f"{path.name} is damaged, cut off, or no .tar.gz ({error}). Download it again.") from error
    return members


def _take(tar: tarfile.TarFile, where: str) -> dict[str, bytes]:
    wanted = {f"{FOLDER}/{name}": name for name in (*TRAIN_BATCHES, TEST_BATCH, META)}
    members: dict[str, bytes] = {}
    for count, member in enumerate(tar, start=1):
        name = member.name.removeprefix("./")
        parts = name.replace("\\", "/").split("/")
        if count > MAX_MEMBERS:
            raise DataError(f"{where}: more than {MAX_MEMBERS} members; CIFAR-10's archive has eight.")
        if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
            raise DataError(f"{where}: refused, a member points outside the archive: {name[:80]!r}.")
        if not (member.isfile() or member.isdir()) or member.issparse():
            raise DataError(f"{where}: refused, a member is a link or a device: {name[:80]!r}.")
        if member.size > MAX_BATCH:
            raise DataError(f"{where}: refused, {name[:80]!r} has {member.size} bytes; a batch has 31 MB.")
        if name not in wanted:
            continue  # the folder itself, readme.html: never read
        if wanted[name] in members:
            raise DataError(f"{where}: refused, {name} is in it twice.")
        file = tar.extractfile(member)
        if file is None:
            raise DataError(f"{where}: {name} is no file.")
        data = file.read()
        if len(data) != member.size:
            raise DataError(f"{where} is cut off in {name}. Download it again.")
        members[wanted[name]] = data
    return members


# --------------------------------------------------------------------------------------------------- the pickles


class _PickledArray:
    """What a pickle says about an array: never a NumPy array, only the tuple that would have become its state."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _PickledDtype(_PickledArray):
    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code


class _Unpickler(pickle.Unpickler):
    """Knows no class and no function but inert stand-ins for those in an array's pickle."""

    def __init__(self, data: bytes, where: str) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        self._where = where

        # Made anew for each pickle: a pickle can change attributes of a class it has got hold of.
        class Array(_PickledArray):
            pass

        class Dtype(_PickledDtype):
            pass

        self.array = Array
        self.dtype = Dtype
        self._encoded = 0

    def _reconstruct(self, *_: Any) -> _PickledArray:
        return self.array()

    def _encode(self, text: Any, encoding: Any = b"latin1") -> bytes:
        """Python 3 writes bytes in protocol 2 as text in Latin-1."""
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise DataError(f"{self._where}: refused, text encoded as {encoding!r:.40}.")
        self._encoded += len(text)
        if self._encoded > MAX_BATCH:
            raise DataError(f"{self._where}: refused, it unpacks to more than {MAX_BATCH // MIB} MiB.")
        return text.encode("latin1")

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            # A plain function: BUILD on a bound method could reach this unpickler's attributes.
            return lambda *arguments: self._reconstruct(*arguments)
        if (module, name) == ("numpy", "ndarray"):
            return self.array
        if (module, name) == ("numpy", "dtype"):
            return self.dtype
        if (module, name) == ("_codecs", "encode"):
            return lambda *arguments: self._encode(*arguments)
        raise DataError(
            f"{self._where}: refused, the pickle calls {module[:60]}.{name[:60]}, which no CIFAR-10 batch does."
        )

    def persistent_load(self, pid: Any) -> Any:
        raise DataError(f"{self._where}: refused, the pickle refers to something outside itself.")


def _load(data: bytes, where: str) -> dict[str, Any]:
    """The dictionary in a pickle. Keys and short texts come back as text, arrays as (N, ...) uint8."""
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > MAX_OPCODES:
                raise DataError(f"{where}: refused, the pickle has more than {MAX_OPCODES} parts.")
            if opcode.name not in ALLOWED_OPCODES:
                raise DataError(f"{where}: refused, the pickle uses {opcode.name}, which no CIFAR-10 batch does.")
            if opcode.name in ("PUT", "LONG_BINPUT") and int(argument) > MAX_OPCODES:
                raise DataError(f"{where}: refused, the pickle claims a memo of {argument} entries.")
        value = _Unpickler(data, where).load()
    except DataError:
        raise
    except Exception as error:  # a pickle can be wrong in any way
        raise DataError(f"{where} is damaged: {type(error).__name__}: {str(error)[:80]}") from error
    if not isinstance(value, dict):
        raise DataError(f"{where} holds a {type(value).__name__}, not a dictionary.")
    return {_text(key): _plain(item, where) for key, item in value.items() if isinstance(key, str | bytes)}


def _text(value: str | bytes) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, _PickledArray):
        return _array(value, where)
    if isinstance(value, list):
        return [_text(item) if isinstance(item, str | bytes) else item for item in value]
    return _text(value) if isinstance(value, str | bytes) else value


def _array(value: _PickledArray, where: str) -> np.ndarray:
    """An array of bytes from NumPy's pickled state: (version, shape, dtype, Fortran order, bytes)."""
    state = value.state
    if not isinstance(state, tuple) or len(state) != 5:
        raise DataError(f"{where} is damaged: an array without its values.")
    _, shape, dtype, fortran, data = state
    code = dtype.code if isinstance(dtype, _PickledDtype) else None
    if code not in ("u1", b"u1", "|u1", b"|u1"):
        named = _text(code)[:20] if isinstance(code, str | bytes) else "unknown kind"
        raise DataError(f"{where}: an array of dtype {named}; uint8 is needed.")
    plain = isinstance(shape, tuple) and len(shape) <= 4 and all(type(n) is int and 0 <= n < 2**31 for n in shape)
    if not plain or not isinstance(data, bytes):
        raise DataError(f"{where} is damaged: an array whose shape or values cannot be read.")
    if len(data) != math.prod(shape):
        raise DataError(f"{where}: an array of shape {shape} with {len(data)} bytes.")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


def _batch(data: bytes, where: str) -> LabelledImages:
    """The images of a batch: rows of 3072 bytes, red, then green, then blue, each 32 x 32."""
    batch = _load(data, where)
    rows, labels = batch.get("data"), batch.get("labels")
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != 3 * SIDE * SIDE:
        shape = rows.shape if isinstance(rows, np.ndarray) else type(rows).__name__
        raise DataError(f"{where}: data is {shape}; uint8 of shape (N, {3 * SIDE * SIDE}) is needed.")
    if isinstance(labels, list):
        if not all(type(label) is int and 0 <= label < N_CLASSES for label in labels):
            raise DataError(f"{where}: the labels are not all whole numbers from 0 to {N_CLASSES - 1}.")
        labels = np.array(labels, np.int64)
    if not isinstance(labels, np.ndarray):
        raise DataError(f"{where}: no list of labels.")
    return check_images(rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), labels, where)
