"""The filter of system calls, run by a small machine of our own for each processor."""

from __future__ import annotations

import errno
import struct

import pytest

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


def run(processor: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """Return the filter's answer to a call: an error number, or 0 when it is let through."""
    code = filters.program(processor)
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
            assert operand == ALLOW or operand >> 16 == 5
            return 0 if operand == ALLOW else operand & 0xFFFF
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
