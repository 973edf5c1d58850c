"""The filter of system calls, run by a small machine of our own for each processor."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gpuemu_flow.workers import notices
from gpuemu_flow.workers.notices import PathCall
from gpuemu_flow.workers.sandbox import filters

ALLOW = 0x7FFF0000
PROCESSORS = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
OPEN_AT = {"x86_64": 257, "aarch64": 56}
PTRACE = {"x86_64": 101, "aarch64": 117}
CLONE = {"x86_64": 56, "aarch64": 220}
IOCTL = {"x86_64": 16, "aarch64": 29}
LIMITS = {"x86_64": 302, "aarch64": 261}
SOCKET = {"x86_64": 41, "aarch64": 198}
SOCKETPAIR = {"x86_64": 53, "aarch64": 199}


NOTIFY = 0x7FC00000


def run(
    processor: str, number: int, *arguments: int, audit: int | None = None, code: bytes = b""
) -> int:
    """Return the filter's answer to a call: an error number, or 0 when it is let through."""
    code = code or filters.program(processor)
    given = [*arguments, *[0] * (6 - len(arguments))]
    call = struct.pack(
        "<IIQ6Q", number, PROCESSORS[processor] if audit is None else audit, 0, *given
    )
    place, held = 0, 0
    for _ in range(len(code)):
        operation, yes, no, operand = struct.unpack_from("<HBBI", code, 8 * place)
        place += 1
        if operation == 0x20:
            (held,) = struct.unpack_from("<I", call, operand)
        elif operation == 0x54:
            held &= operand
        elif operation == 0x06:
            assert operand in (ALLOW, NOTIFY) or operand >> 16 == 5
            return 0 if operand == ALLOW else operand if operand == NOTIFY else operand & 0xFFFF
        else:
            test = {0x15: held == operand, 0x35: held >= operand, 0x45: bool(held & operand)}
            place += yes if test[operation] else no
    raise AssertionError("it never ends")


@pytest.mark.parametrize("processor", PROCESSORS)
def test_calls_of_every_program_are_let_through(processor: str) -> None:
    assert run(processor, OPEN_AT[processor]) == 0
    assert run(processor, SOCKETPAIR[processor], 1, 1) == 0
    assert run(processor, SOCKETPAIR[processor], 1, 5 | 0x80800) == 0, "packets, with flags"
    assert run(processor, CLONE[processor], 0x11) == 0
    assert run(processor, CLONE[processor], 0x3D0F00) == 0, "a thread"
    assert run(processor, IOCTL[processor], 0, 0x5401) == 0
    assert run(processor, LIMITS[processor], 0, 7) == 0


@pytest.mark.parametrize("processor", PROCESSORS)
def test_refused_calls(processor: str) -> None:
    column = list(PROCESSORS).index(processor)
    for numbers in filters._REFUSED.values():
        number = numbers[column]
        if number is not None:
            assert run(processor, number) == errno.EPERM
    assert run(processor, PTRACE[processor]) == errno.EPERM
    assert run(processor, SOCKET[processor], 1) == errno.EACCES
    assert run(processor, 435) == errno.ENOSYS, "clone3"


@pytest.mark.parametrize("processor", PROCESSORS)
def test_what_arguments_decide(processor: str) -> None:
    for flag in (0x10000000, 0x00020000, 0x40000000, 0x20000000, 0x02000000):
        assert run(processor, CLONE[processor], 0x11 | flag) == errno.EPERM
    assert run(processor, CLONE[processor], 0x11 | 0x8000) == errno.EPERM, "a sibling"
    for family, kind in ((1, 2), (1, 3), (2, 1), (16, 3), (1, 2 | 0x80000)):
        assert run(processor, SOCKETPAIR[processor], family, kind) == errno.EACCES
    assert run(processor, IOCTL[processor], 0, 0x5412) == errno.EPERM
    assert run(processor, IOCTL[processor], 0, 0x5412 | 1 << 32) == errno.EPERM, "the high half"
    assert run(processor, LIMITS[processor], 1, 7) == errno.EPERM


@pytest.mark.parametrize("processor", PROCESSORS)
def test_calls_of_another_processor_are_refused(processor: str) -> None:
    assert run(processor, OPEN_AT[processor], audit=0x40000003) == errno.EPERM


def test_the_other_calls_of_x86_are_refused() -> None:
    assert run("x86_64", 0x40000000 | 257) == errno.ENOSYS


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
FIRST, AT = (-1, 0), (0, 1)
FILES = {
    ("open", *FIRST, 1): "open", ("open", *AT, 2): "openat", ("openat2", *AT, 2): "openat2",
    ("create", *FIRST): "creat", ("start", *FIRST): "execve", ("start", *AT): "execveat",
    ("folder", *FIRST): "mkdir", ("folder", *AT): "mkdirat",
    ("move", -1, 0, -1, -1, 1): "rename", ("move", 0, 1, -1, 2, 3): "renameat renameat2",
    ("link", -1, 0, -1, -1, 1): "link", ("link", 0, 1, -1, 2, 3): "linkat",
    ("symlink", -1, 0, -1, -1, 1): "symlink", ("symlink", -1, 0, -1, 1, 2): "symlinkat",
    ("list", 0, -1): "getdents getdents64", ("remove", *FIRST): "unlink rmdir",
    ("remove", *AT): "unlinkat", ("cut", *FIRST): "truncate",
    ("node", *FIRST): "mknod", ("node", *AT): "mknodat",
    ("touch", *FIRST): "setxattr lsetxattr chmod chown lchown utime utimes",
    ("touch", *AT): "fchownat futimesat fchmodat fchmodat2 utimensat",
    ("look", *FIRST): "stat lstat access readlink chdir statfs getxattr lgetxattr "
    "listxattr llistxattr",
    ("look", *AT): "faccessat readlinkat name_to_handle_at open_tree",
    ("look", *AT, 2): "statx", ("look", *AT, 3): "newfstatat fstatat faccessat2",
    ("look", -1, 1): "inotify_add_watch",
    ("root", -1, -1): "chroot pivot_root mount move_mount open_by_handle_at",
    ("ring", -1, -1): "io_uring_setup",
}  # fmt: skip
"""What a call does, with the positions of its arguments as its manual page has them, by name."""


@pytest.mark.parametrize("processor", PROCESSORS)
def test_calls_have_the_numbers_of_the_system_s_headers(processor: str) -> None:
    if not HEADERS[processor].exists():
        pytest.skip("no headers of the kernel")
    text = HEADERS[processor].read_text()
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)$", text, re.MULTILINE)
    numbers = {name: int(number) for name, number in found if int(number) < 1000}
    known = max(numbers.values())
    calls = {name: PathCall(*call) for call, names in FILES.items() for name in names.split()}
    wanted = {numbers[name]: call for name, call in calls.items() if name in numbers}
    own = notices._OF_PROCESSOR[processor]
    assert {number: call for number, call in own.items() if number <= known} == wanted
    column = list(PROCESSORS).index(processor)
    for name, columns in filters._REFUSED.items():
        assert columns[column] == numbers.get(name, columns[column]), name
        assert name in numbers or columns[column] is None or columns[column] > known, name
    machine = filters.MACHINES[processor]
    assert [numbers[n] for n in ("socketpair", "prlimit64")] == [machine.pair, machine.prlimit]
    assert numbers["seccomp"] == filters._SECCOMP[processor]


def test_rights_have_the_numbers_of_the_system_s_headers() -> None:
    header = Path("/usr/include/linux/landlock.h")
    if not header.exists():
        pytest.skip("no headers of the kernel")
    found = re.findall(r"#define LANDLOCK_ACCESS_FS_(\w+)\s+\(1ULL << (\d+)\)", header.read_text())
    assert len(found) >= 13
    for name, bit in found:
        own = name if name == "READ_DIR" else f"_{name}"
        assert getattr(filters, own, 1 << int(bit)) == 1 << int(bit), name
    assert filters._SINCE[1] == (1 << 13) - 1


ALLOWED = """
import os, sys
from gpuemu_flow.workers.sandbox import filters
folder = sys.argv[1]
libc = filters.library()
rules = filters.Ruleset(libc, filters.version())
writable = [f"{folder}/{name}" for name in ("open", "file", "none", "link")]
rules.allow(writable, filters.WRITE, {})
rules.allow(["/"], filters.READ_DIR)
rules.allow([folder], filters.READ)
filters.prctl(libc, filters.NO_NEW_PRIVS, 1)
rules.enforce()
sys.stdout.write(open(f"{folder}/read").read())
for name in ("open/new", "file", "read", "shut/new", "link"):
    try:
        open(f"{folder}/{name}", "w").write("own")
    except PermissionError:
        sys.stdout.write(f" {name}")
"""


@pytest.mark.skipif(not filters.version(), reason="this system has no Landlock")
def test_what_is_allowed_is_what_can_be_done(tmp_path: Path) -> None:
    """A rule may name a file, too; one for a link allows nothing."""
    for name in ("file", "read", "target"):
        (tmp_path / name).write_text("theirs")
    for name in ("open", "shut"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("target")
    program = [sys.executable, "-c", ALLOWED, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("theirs read shut/new link", "")
    assert [(tmp_path / n).read_text() for n in ("open/new", "file")] == ["own", "own"]
    assert [(tmp_path / n).read_text() for n in ("read", "target")] == ["theirs", "theirs"]


@pytest.mark.skipif(not notices.CALLS, reason="this system gives no notices")
def test_paths_are_read_where_they_lie_in_memory() -> None:
    """However long they are, and where a page ends."""
    page, pid, memory = 4096, os.getpid(), notices.ProcessMemory()
    place = mmap.mmap(-1, 4 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(place))
    assert start % page == 0
    for length in (0, 1, 254, 255, 256, 257, 300, 4095, 4096):
        for offset in (0, 1, page - length - 1, page - 1, page - 255, page - 256, page - 257):
            if offset < 0 or (length == 4096 and offset == page - 1):
                continue
            path = bytes(97 + n % 26 for n in range(length))
            place[:] = b"x" * len(place)
            place[offset : offset + length + 1] = path + b"\0"
            assert memory.text(pid, start + offset) == path, (length, offset)
    place[:] = b"x" * len(place)
    assert memory.text(pid, start) is None, "nothing ends it"
    assert memory.text(pid, 0) is None
    assert not memory.refused()
    place[8:16] = bytes(range(1, 9))
    assert memory.word(pid, start + 8) == int.from_bytes(bytes(range(1, 9)), "little")
    assert memory.word(pid, 0) == 0


@pytest.mark.skipif(not notices.CALLS, reason="this system gives no notices")
def test_the_calls_that_name_files_are_reported() -> None:
    """All but looks at a descriptor, which name none."""
    code = notices._program()
    for number in range(600):
        call = notices.CALLS.get(number)
        for empty in (False, True):
            arguments = [0] * 6
            if call is not None and call.flags >= 0:
                arguments[call.flags] = 0x1100 * empty
            skipped = call is None or (call.name == "look" and call.flags >= 0 and empty)
            answer = run(filters.PROCESSOR, number, *arguments, code=code)
            assert answer == (0 if skipped else NOTIFY), number
    other = next(iter(notices.CALLS))
    assert run(filters.PROCESSOR, other, audit=0x40000003, code=code) == 0
