"""A filter of system calls (seccomp) that refuses calls by which a program could leave the sandbox.

The filter's BPF instructions are written by hand. They check only arguments that are numbers: the
program could still change the memory behind a pointer after the check.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from functools import cache
from typing import Any

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.runners.sandbox import syscalls

# linux/seccomp.h, linux/audit.h, linux/filter.h, linux/sched.h, asm-generic/ioctls.h
_SET_MODE_FILTER, _IS_KNOWN = 1, 2
_ALL_THREADS = 1
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
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


@dataclass(frozen=True)
class _Machine:
    """Numbers in the filter that depend on the processor's architecture."""

    column: int
    audit: int
    socket: int
    pair: int
    clone: int
    clone3: int
    ioctl: int
    prlimit: int


_MACHINES = {
    "x86_64": _Machine(0, 0xC000003E, 41, 53, 56, 435, 16, 302),
    "aarch64": _Machine(1, 0xC00000B7, 198, 199, 220, 435, 29, 261),
}

_Code = list[tuple[int, int, int, int]]


class _Program(ctypes.Structure):
    """The C structure sock_fprog."""

    _fields_ = (("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _refuse(error: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ERRNO | error)


def _on_argument(number: int, position: int, code: _Code) -> _Code:
    """Return filter code that runs `code` on one argument of a single system call.

    The low half of the argument is loaded before `code`. All other system calls skip `code`. Each
    path through `code` must end in a return instruction.
    """
    body = [(_LOAD, 0, 0, _ARGUMENTS + 8 * position), *code]
    return [(_EQUAL, 0, len(body), number), *body]


@cache
def program(processor: str) -> bytes:
    """Return the filter program for a processor.

    All sockets except connected pairs are refused: a service that listens on a named Unix socket
    may start programs on request, outside of the sandbox. Pairs for datagrams are refused, too,
    since their sockets can send datagrams to any name.
    """
    machine = _MACHINES[processor]
    allow = (_RETURN, 0, 0, _ALLOW)
    code: _Code = [
        (_LOAD, 0, 0, _PROCESSOR),
        (_EQUAL, 1, 0, machine.audit),
        _refuse(errno.EPERM),  # the calls of another processor have other numbers
        (_LOAD, 0, 0, _NUMBER),
    ]
    if processor == "x86_64":
        code += [(_AT_LEAST, 0, 1, _OTHER_ABI), _refuse(errno.ENOSYS)]
    for columns in _REFUSED.values():
        number = columns[machine.column]
        if number is not None:
            code += [(_EQUAL, 0, 1, number), _refuse(errno.EPERM)]
    code += [(_EQUAL, 0, 1, machine.socket), _refuse(errno.EACCES)]
    # The filter cannot read the flags, which are behind a pointer. Without it, the C library uses
    # `clone`.
    code += [(_EQUAL, 0, 1, machine.clone3), _refuse(errno.ENOSYS)]
    code += _on_argument(
        machine.clone,
        0,
        [(_ANY_BIT, 0, 1, _NEW_NAMESPACES | _SIBLING), _refuse(errno.EPERM), allow],
    )
    kind = [
        (_EQUAL, 1, 0, _UNIX),
        _refuse(errno.EACCES),
        (_LOAD, 0, 0, _ARGUMENTS + 8),
        (_AND, 0, 0, _KIND),
        (_EQUAL, 2, 0, _STREAM),
        (_EQUAL, 1, 0, _PACKETS),
        _refuse(errno.EACCES),
        allow,
    ]
    code += _on_argument(machine.pair, 0, kind)
    typed_in = [(_EQUAL, 1, 0, _PUSH_INPUT), (_EQUAL, 0, 1, _LINUX_CONSOLE)]
    code += _on_argument(machine.ioctl, 1, [*typed_in, _refuse(errno.EPERM), allow])
    # Refuse the limits of other processes; 0 means the caller's own.
    code += _on_argument(machine.prlimit, 0, [(_EQUAL, 1, 0, 0), _refuse(errno.EPERM), allow])
    code.append(allow)
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in code)


def available() -> bool:
    """Tell whether the system accepts a seccomp filter."""
    number = syscalls.seccomp_number()
    if not number:
        return False
    action = ctypes.c_uint32(_ERRNO)
    try:
        syscalls.syscall(syscalls.library(), number, _IS_KNOWN, 0, ctypes.byref(action))
    except (OSError, AttributeError):
        return False
    return True


def enforce(libc: Any) -> None:
    """Enforce the filter on this process and all that it starts, which cannot be undone.

    Raises OSError: The system refuses the filter.
    """
    code = program(syscalls.PROCESSOR)
    made = _Program(len(code) // _INSTRUCTION.size, code)
    arguments = (_SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(made))
    syscalls.syscall(libc, syscalls.seccomp_number(), *arguments)
