"""What Linux offers to a process that gives up rights: namespaces, Landlock, seccomp, limits. Through ctypes; standard library only.

Every function here changes the calling process for good, and needs it to have one thread: what a thread gives up, the
others keep. Sources: setns(2), ioctl_ns(2), landlock(7), seccomp(2), prctl(2), capset(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import resource
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "MACHINES",
    "adopt_orphans",
    "allow_files_only",
    "die_with_parent",
    "drop_capabilities",
    "enter_namespaces",
    "forbid_calls",
    "landlock_version",
    "set_limits",
]

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _call(what: str, number: int, *arguments: object) -> int:
    plain = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *plain), what)


def _prctl(what: str, option: int, argument: int = 0) -> None:
    numbers = (ctypes.c_ulong(n) for n in (argument, 0, 0, 0))
    _checked(_libc.prctl(ctypes.c_int(option), *numbers), what)


def die_with_parent() -> None:
    """This process gets SIGKILL when the process that forked it ends."""
    _prctl("PR_SET_PDEATHSIG", 1, 9)


def adopt_orphans() -> None:
    """Descendants that lose their parent become children of this process: none of them gets lost."""
    _prctl("PR_SET_CHILD_SUBREAPER", 36, 1)


# ------------------------------------------------------------------------------------------------ namespaces
_NS_GET_USERNS = 0xB701
_NEWUSER = 0x10000000


def enter_namespaces(pid: int) -> None:
    """Walk into the namespaces of a process that was started by the same user. The next *fork* is inside them.

    A mount may only be joined with rights over the user namespace that owns it, which may be an outer one of the process's
    own: that one first, then the rest, then the process's own.
    """
    kinds = ("mnt", "pid", "net", "ipc", "uts", "user")
    files = {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds}
    owner = fcntl.ioctl(files["mnt"], _NS_GET_USERNS)
    own = files.pop("user")
    try:
        _checked(_libc.setns(owner, _NEWUSER), "setns user")
        for kind, file in files.items():
            _checked(_libc.setns(file, 0), f"setns {kind}")
        if not os.path.sameopenfile(own, owner):
            _checked(_libc.setns(own, _NEWUSER), "setns user")
    finally:
        for file in (own, owner, *files.values()):
            os.close(file)


# ------------------------------------------------------------------------------------------------ Landlock
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REMOVE_FILE, _MAKE_SOCK, _TRUNCATE, _IOCTL_DEV = 1 << 5, 1 << 9, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_RIGHTS = {0: 0, 1: 13, 2: 14, 3: 15, 4: 15}  # how many rights on files a version knows; 16 from version 5 on
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on every architecture


def landlock_version() -> int:
    """0 where the kernel has no Landlock; 4 closes TCP, 6 keeps signals inside."""
    return max(0, _libc.syscall(ctypes.c_long(_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint(1)))


def allow_files_only(readable: Iterable[str], writable: Iterable[str], sockets: Iterable[str] = ()) -> None:
    """From now on, for this process and all its children, only these files and folders and what lies below them.

    ``sockets`` are folders in which nothing but sockets can be made. With version 4 TCP is closed as well, with 6 signals and
    abstract sockets reach only processes under the same restriction. Needs ``no_new_privs`` (:func:`drop_capabilities`).
    """
    version = landlock_version()
    every = (1 << _RIGHTS.get(version, 16)) - 1
    fields = [every, *([3] if version >= 4 else []), *([3] if version >= 6 else [])]
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    rules = _call("landlock_create_ruleset", _CREATE, ctypes.c_char_p(attributes), len(attributes), 0)
    try:
        for paths, rights in (
            (readable, _READ),
            (writable, every),
            (sockets, _READ_FILE | _READ_DIR | _MAKE_SOCK | _REMOVE_FILE),
        ):
            for path in paths:
                _allow(rules, path, rights & every)
        _call("landlock_restrict_self", _RESTRICT, rules, 0)
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _ON_FILES
        rule = struct.pack("=Qi", rights, place)
        _call(f"landlock_add_rule {path}", _ADD, rules, 1, ctypes.c_char_p(rule), 0)
    finally:
        os.close(place)


# ------------------------------------------------------------------------------------------------ seccomp
# Memory that belongs to no process (it would escape the memory limit), other people's processes and keys, and ways into the
# kernel that no notebook needs. Numbers: x86_64, aarch64.
_FORBIDDEN = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "unshare": (272, 97),
    "setns": (308, 268),
    "io_uring_setup": (425, 425),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
}
_SOCKET, _CLONE, _CLONE3 = (41, 198), (56, 220), (435, 435)
_NEW_NAMESPACES = 0x7E020000  # the flags of clone(2) that would make one
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32 = 0x40000000  # x86_64: the same calls under other numbers begin here


def forbid_calls(network: bool) -> None:
    """Refuse system calls (EPERM); without ``network`` also every socket but those inside the machine's file system.

    Raises OSError where the machine is neither x86_64 nor aarch64. Needs ``no_new_privs`` (:func:`drop_capabilities`).
    """
    if platform.machine() not in MACHINES:
        raise OSError(errno.ENOSYS, f"no list of system calls for {platform.machine()}")
    column, architecture = MACHINES[platform.machine()]
    load, equal, at_least, any_bit, end = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, unknown = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
    program = [
        (load, 0, 0, 4),
        (equal, 1, 0, architecture),
        (end, 0, 0, refuse),  # a 32-bit program's calls have other numbers: none of them
        (load, 0, 0, 0),
        (at_least, 0, 1, _X32),
        (end, 0, 0, refuse),
    ]
    for numbers in _FORBIDDEN.values():
        program += [(equal, 0, 1, numbers[column]), (end, 0, 0, refuse)]
    # clone3 has its flags in memory, where no filter looks: without it the C library takes clone.
    program += [(equal, 0, 1, _CLONE3[column]), (end, 0, 0, unknown)]
    first_argument = 16
    program += [(equal, 0, 4, _CLONE[column]), (load, 0, 0, first_argument)]
    program += [(any_bit, 0, 1, _NEW_NAMESPACES), (end, 0, 0, refuse), (end, 0, 0, allow)]
    if not network:
        unix = 1
        program += [
            (equal, 0, 3, _SOCKET[column]),
            (load, 0, 0, first_argument),
            (equal, 1, 0, unix),
            (end, 0, 0, refuse),
        ]
    program.append((end, 0, 0, allow))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    header = struct.pack("@HP", len(program), ctypes.addressof(code))
    _checked(_libc.prctl(22, 2, ctypes.c_char_p(header), 0, 0), "seccomp")


# ------------------------------------------------------------------------------------------------ rights and limits
def drop_capabilities() -> None:
    """No capability now, and none after any ``exec``: a superuser keeps the name and loses the power."""
    _prctl("PR_SET_NO_NEW_PRIVS", 38, 1)
    header, nothing = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    _checked(_libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(nothing)), "capset")


def set_limits(memory: int, file_size: int, processes: int) -> None:
    """Limits of one process, in bytes; ``processes`` counts those of the user (0: no such limit).

    The memory limit is that of private data beyond what the process has now: the address space as a whole says
    nothing, since ``import torch`` alone maps gigabytes.
    """
    data = 0
    with contextlib.suppress(OSError):
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        data = int(lines["VmData"].split()[0]) << 10
    _lower(resource.RLIMIT_DATA, data + memory)
    _lower(resource.RLIMIT_FSIZE, file_size)
    _lower(resource.RLIMIT_CORE, 0)
    if processes:
        _lower(resource.RLIMIT_NPROC, processes)


def _lower(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))
