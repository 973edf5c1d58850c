"""What Linux enforces: a seccomp filter of system calls, and a Landlock list of allowed files.

The filter's BPF instructions are written by hand. They check only arguments that are numbers: the
program could still change the memory behind a pointer after the check.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NoReturn

from msgspec import Struct

from gpuemu_flow.workers.limits import c_library

# System calls, by number, for which Python has no function.

LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
PROCESSOR = platform.machine() if sys.platform == "linux" else ""
NO_NEW_PRIVS, DROP_FROM_BOUNDS = 38, 24  # prctl

_SECCOMP = {"x86_64": 317, "aarch64": 277}
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446


@cache
def library() -> Any:
    """Load the C library; raise OSError or AttributeError if it lacks a needed function."""
    libc = c_library()
    libc.syscall.restype = ctypes.c_long
    return libc


def syscall(libc: Any, number: int, *arguments: Any) -> int:
    """Make a system call. Raises OSError."""
    wide = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    result = int(libc.syscall(ctypes.c_long(number), *wide))
    if result < 0:
        fail()
    return result


def fail() -> NoReturn:
    """Raise OSError for the error number that the last call to the C library left in ``errno``."""
    number_of_error = ctypes.get_errno()
    raise OSError(number_of_error, os.strerror(number_of_error))


@cache
def adds_rules(libc: Any) -> Callable[[int, int, int, bytes, int], int]:
    """Return a function that makes the system call `LANDLOCK_ADD`, as fast as ctypes allows."""
    number, integer = ctypes.c_long, ctypes.c_int
    types = (number, number, integer, integer, ctypes.c_char_p, ctypes.c_uint32)
    made: Callable[[int, int, int, bytes, int], int] = ctypes.CFUNCTYPE(*types, use_errno=True)(
        ("syscall", libc)
    )
    return made


def prctl(libc: Any, option: int, value: int) -> None:
    """Set a property of this process. Raises OSError."""
    if libc.prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def seccomp_number() -> int:
    """Return the number of ``seccomp``; 0 on a processor that the filter is not written for."""
    return _SECCOMP.get(PROCESSOR, 0)


# linux/seccomp.h, linux/audit.h, linux/filter.h, linux/sched.h, asm-generic/ioctls.h
_SET_MODE_FILTER, _IS_KNOWN = 1, 2
ALL_THREADS = 1
ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
LOAD, EQUAL, _AT_LEAST, ANY_BIT, _AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _PROCESSOR, _ARGUMENTS = 0, 4, 16
_OTHER_ABI = 0x40000000  # x32
_NEW_NAMESPACES = 0x7E020080
_SIBLING = 0x8000  # the child is the fork server's, not the op's
_UNIX, _STREAM, _PACKETS, _KIND = 1, 1, 5, 0xF
_PUSH_INPUT, _LINUX_CONSOLE = 0x5412, 0x541C
_INSTRUCTION = struct.Struct("<HBBI")

# By number on x86-64 and on aarch64; None where there is no such call.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # the memory and the descriptors of other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "perf_event_open": (298, 241),
    # programs in the kernel, and the kernel itself
    "bpf": (321, 280), "userfaultfd": (323, 282), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "syslog": (103, 116),
    "iopl": (172, None), "ioperm": (173, None),
    # mounts, and files that are opened by number instead of by name
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "move_mount": (429, 429), "open_tree": (428, 428), "open_tree_attr": (467, 467),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60), "acct": (163, 89),
    # other namespaces
    "unshare": (272, 97), "setns": (308, 268),
    # keys of other programs
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # memory, messages and locks by number or name, which processes outside can use, too
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190),
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186),
    "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # a queue for operations that this filter would not see
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
}  # fmt: skip


class _Machine(Struct, frozen=True):
    """Numbers in the filter that depend on the processor's architecture."""

    column: int
    audit: int
    socket: int
    pair: int
    clone: int
    clone3: int
    ioctl: int
    prlimit: int


MACHINES = {
    "x86_64": _Machine(0, 0xC000003E, 41, 53, 56, 435, 16, 302),
    "aarch64": _Machine(1, 0xC00000B7, 198, 199, 220, 435, 29, 261),
}

Code = list[tuple[int, int, int, int]]


class _Program(ctypes.Structure):
    """The C structure sock_fprog."""

    _fields_ = (("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _refuse(error: int) -> tuple[int, int, int, int]:
    return (RETURN, 0, 0, _ERRNO | error)


def _on_argument(number: int, position: int, code: Code) -> Code:
    """Return filter code that runs `code` on one argument of a single system call. The low half of
    the argument is loaded before `code`. All other system calls skip `code`. Each path through
    `code` must end in a return instruction."""
    body = [(LOAD, 0, 0, _ARGUMENTS + 8 * position), *code]
    return [(EQUAL, 0, len(body), number), *body]


@cache
def program(processor: str) -> bytes:
    """Return the filter program for a processor. All sockets except connected pairs are refused: a
    service that listens on a named Unix socket may start programs on request, outside of the
    sandbox. Pairs for datagrams are refused, too, since their sockets can send datagrams to any
    name."""
    machine = MACHINES[processor]
    allow = (RETURN, 0, 0, ALLOW)
    code: Code = [
        (LOAD, 0, 0, _PROCESSOR),
        (EQUAL, 1, 0, machine.audit),
        _refuse(errno.EPERM),  # the calls of another processor have other numbers
        (LOAD, 0, 0, _NUMBER),
    ]
    if processor == "x86_64":
        code += [(_AT_LEAST, 0, 1, _OTHER_ABI), _refuse(errno.ENOSYS)]
    for columns in _REFUSED.values():
        number = columns[machine.column]
        if number is not None:
            code += [(EQUAL, 0, 1, number), _refuse(errno.EPERM)]
    code += [(EQUAL, 0, 1, machine.socket), _refuse(errno.EACCES)]
    # The filter cannot read the flags, which are behind a pointer. Without it, the C library uses
    # `clone`.
    code += [(EQUAL, 0, 1, machine.clone3), _refuse(errno.ENOSYS)]
    code += _on_argument(
        machine.clone,
        0,
        [(ANY_BIT, 0, 1, _NEW_NAMESPACES | _SIBLING), _refuse(errno.EPERM), allow],
    )
    kind = [
        (EQUAL, 1, 0, _UNIX),
        _refuse(errno.EACCES),
        (LOAD, 0, 0, _ARGUMENTS + 8),
        (_AND, 0, 0, _KIND),
        (EQUAL, 2, 0, _STREAM),
        (EQUAL, 1, 0, _PACKETS),
        _refuse(errno.EACCES),
        allow,
    ]
    code += _on_argument(machine.pair, 0, kind)
    typed_in = [(EQUAL, 1, 0, _PUSH_INPUT), (EQUAL, 0, 1, _LINUX_CONSOLE)]
    code += _on_argument(machine.ioctl, 1, [*typed_in, _refuse(errno.EPERM), allow])
    # Refuse the limits of other processes; 0 means the caller's own.
    code += _on_argument(machine.prlimit, 0, [(EQUAL, 1, 0, 0), _refuse(errno.EPERM), allow])
    code.append(allow)
    return assembled(code)


def assembled(code: Code) -> bytes:
    """Return a filter program in the form that the kernel takes."""
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in code)


def available() -> bool:
    """Tell whether the system accepts a seccomp filter."""
    number = seccomp_number()
    if not number:
        return False
    action = ctypes.c_uint32(_ERRNO)
    try:
        syscall(library(), number, _IS_KNOWN, 0, ctypes.byref(action))
    except (OSError, AttributeError):
        return False
    return True


def enforce(libc: Any) -> None:
    """Enforce the filter on this process and all that it starts, which cannot be undone. Raises
    OSError: The system refuses the filter."""
    install(libc, program(PROCESSOR), ALL_THREADS)


def install(libc: Any, code: bytes, flags: int) -> int:
    """Filter the calls of this process and all that it starts; return what the system returns.
    Raises OSError: The system refuses the filter."""
    made = _Program(len(code) // _INSTRUCTION.size, code)
    return syscall(libc, seccomp_number(), _SET_MODE_FILTER, flags, ctypes.byref(made))


# Landlock: a list of allowed files, which the kernel enforces on a process and its children.


# linux/landlock.h
_EXECUTE, _WRITE_FILE, _READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_CHAR, _MAKE_DIR = 1 << 4, 1 << 5, 1 << 6, 1 << 7
_MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK = 1 << 8, 1 << 9, 1 << 10, 1 << 11
_MAKE_SYM, _REFER, _TRUNCATE, _IOCTL_DEV = 1 << 12, 1 << 13, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_SINCE = {1: _MAKE_SYM | (_MAKE_SYM - 1), 2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
_TCP = 0b11  # bind and connect
_SCOPES = 0b11  # abstract Unix sockets, signals
_QUIETLY = 1  # denials are not written to the system's log
_RULE = struct.Struct("<Qi")
_PATH = 1

READ = _READ_FILE | _EXECUTE
"""Rights to read files; listing folders is `READ_DIR`."""
WRITE = (
    READ | READ_DIR | _WRITE_FILE | _TRUNCATE | _REFER | _REMOVE_DIR | _REMOVE_FILE
    | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM
)  # fmt: skip
"""All rights except that of making devices."""
DEVICE = _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV


def version() -> int:
    """Return the version of Landlock that the system has; 0 if it has none."""
    if not seccomp_number():  # call numbers are known only for the filter's processors
        return 0
    try:
        found = syscall(library(), LANDLOCK_CREATE, None, 0, 1)
    except (OSError, AttributeError):
        return 0
    return max(0, found)


class Ruleset:
    """A list of allowed files under construction; everything else is denied."""

    def __init__(self, libc: Any, known: int) -> None:
        self._libc = libc
        self._known = known
        self._handled = 0
        for since, rights in _SINCE.items():
            self._handled |= rights if since <= known else 0
        words = [self._handled]
        words += [_TCP] if known >= 4 else []
        words += [_SCOPES] if known >= 6 else []
        attributes = struct.pack(f"<{len(words)}Q", *words)
        self._fd = syscall(libc, LANDLOCK_CREATE, ctypes.c_char_p(attributes), len(attributes), 0)
        self._add = adds_rules(libc)

    def allow(
        self, paths: Iterable[str], rights: int, opened: Mapping[str, int] | None = None
    ) -> None:
        """Allow everything at or below each path; skip paths that do not exist or are links. There
        may be thousands of paths: to hide one file, all other files of its folder are allowed."""
        of_files = rights & self._handled & _OF_FILES
        wide = rights & self._handled
        kept = {} if opened is None else opened
        for path in paths:
            fd = kept.get(path, -1)
            if fd < 0:
                try:
                    fd = os.open(path, LOOK)
                except OSError:
                    continue
            here = of_files
            if wide != of_files and stat.S_ISDIR(os.fstat(fd).st_mode):
                here = wide
            # A rule for a link would allow only the link itself and not its target.
            if here and self._add(LANDLOCK_ADD, self._fd, _PATH, _RULE.pack(here, fd), 0):
                fail()
            if path not in kept:
                os.close(fd)

    def enforce(self) -> None:
        """Enforce the list on this thread and its children; ``NO_NEW_PRIVS`` must be set before.
        Raises OSError."""
        flags = _QUIETLY if self._known >= 7 else 0
        syscall(self._libc, LANDLOCK_RESTRICT, self._fd, flags)
        self.close()

    def close(self) -> None:
        """Close the list; processes on which it was enforced stay restricted."""
        os.close(self._fd)
