"""The cubin reader: right figures from real cubins, and a diagnosis for everything else."""

from __future__ import annotations

import struct

import pytest
from ptx_text import ARCHITECTURES, KERNELS

from gpuemu_flow.lint.cubin import Cubin, CubinKernel, read_cubin
from gpuemu_flow.model.errors import Problem

SHT_CUDA_INFO = 0x70000000


def committed(name: str, arch: str = "sm_80") -> bytes:
    return (KERNELS / arch / f"{name}.cubin").read_bytes()


def kernels(data: bytes) -> dict[str, CubinKernel]:
    cubin = read_cubin(data, "x.cubin")
    assert isinstance(cubin, Cubin)
    return cubin.kernels


def section_table(data: bytes) -> tuple[int, int]:
    """Offset and number of the section headers."""
    return struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_architecture_and_compiler_of_a_cubin(arch: str) -> None:
    cubin = read_cubin(committed("softmax", arch))
    assert isinstance(cubin, Cubin)
    assert cubin.arch == arch
    assert cubin.tool_version == "13.0.88"


def test_spills_are_counted_in_instructions_and_bytes() -> None:
    found = kernels(committed("forced_spills"))
    forced, relaxed = found["forced_spills_kernel"], found["relaxed_spills_kernel"]
    assert (forced.registers, forced.max_threads) == (32, 1024)
    assert (forced.spill_instructions, forced.spill_bytes) == (262, 1168)
    assert forced.stack_bytes == 384
    assert (relaxed.spill_instructions, relaxed.spill_bytes, relaxed.stack_bytes) == (0, 0, 0)


def test_a_local_array_is_stack_and_no_spill() -> None:
    found = kernels(committed("dynamic_index"))["dynamic_index_kernel"]
    assert (found.stack_bytes, found.spill_instructions) == (256, 0)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_static_shared_memory_is_the_kernels_own(arch: str) -> None:
    assert kernels(committed("matmul_tiled", arch))["matmul_tiled_kernel"].shared_bytes == 8320
    assert kernels(committed("dynamic_shared", arch))["dynamic_shared_kernel"].shared_bytes == 128
    assert kernels(committed("accidental_f64", arch))["real_f64_kernel"].shared_bytes == 0


def test_barriers() -> None:
    found = kernels(committed("softmax"))["softmax_kernel"]
    assert found.barriers == 1


def test_device_functions_are_no_entries_of_their_own() -> None:
    assert sorted(kernels(committed("several_kernels"))) == [
        "scale_kernel",
        "smooth_step_kernel",
        "transpose_index_kernel",
    ]


def test_a_compiler_without_spill_records_leaves_spills_unknown() -> None:
    data = bytearray(committed("dynamic_index"))
    toolkit = struct.pack("<BBHI", 4, 0x37, 4, 130)
    assert toolkit in data
    old = data.replace(toolkit, struct.pack("<BBHI", 4, 0x37, 4, 124))
    found = kernels(bytes(old))
    assert found["dynamic_index_kernel"].spill_instructions is None
    assert found["dynamic_index_kernel"].spill_bytes is None
    assert found["constant_index_kernel"].spill_instructions == 0  # no stack, so no spill


def test_flags_of_cuda_12_cubins() -> None:
    data = bytearray(committed("softmax", "sm_90"))
    data[8] = 7
    struct.pack_into("<I", data, 48, 0x4B0D5A)
    cubin = read_cubin(bytes(data).replace(b"-arch sm_90", b"-arch sm_??"))
    assert isinstance(cubin, Cubin)
    assert cubin.arch == "sm_90a"


@pytest.mark.parametrize(
    ("data", "slug"),
    [
        (b"", "cubin-not-elf"),
        (b".version 8.0\n", "cubin-not-elf"),
        (b"\x7fELF", "cubin-corrupt"),
        (b"\x7fELF\x01\x01" + bytes(100), "cubin-corrupt"),
        (b"\x7fELF\x02\x02" + bytes(100), "cubin-corrupt"),
        (b"\x7fELF\x02\x01" + bytes(100), "cubin-corrupt"),
    ],
)
def test_what_is_no_cubin_is_refused(data: bytes, slug: str) -> None:
    problem = read_cubin(data, "x.cubin")
    assert isinstance(problem, Problem)
    assert (problem.slug, problem.file) == (slug, "x.cubin")


def test_an_elf_for_another_machine_is_refused_by_name() -> None:
    data = bytearray(committed("softmax"))
    struct.pack_into("<H", data, 18, 62)
    problem = read_cubin(bytes(data), "a.out")
    assert isinstance(problem, Problem)
    assert problem.slug == "cubin-other-machine"
    assert "62" in problem.message


@pytest.mark.parametrize("kept", [64, 200, 1000, 3000, 5000])
def test_a_truncated_cubin_is_corrupt(kept: int) -> None:
    problem = read_cubin(committed("softmax")[:kept])
    assert isinstance(problem, Problem)
    assert problem.slug == "cubin-corrupt"


@pytest.mark.parametrize("field", [24, 32])  # sh_offset, sh_size
@pytest.mark.parametrize("value", [2**63, 2**64 - 1, 10**7])
def test_every_section_may_lie_outside_of_the_file(field: int, value: int) -> None:
    original = committed("forced_spills")
    table, count = section_table(original)
    for index in range(count):
        data = bytearray(original)
        struct.pack_into("<Q", data, table + index * 64 + field, value)
        outcome = read_cubin(bytes(data))
        assert isinstance(outcome, Cubin) or outcome.slug == "cubin-corrupt"


def test_wrong_counts_and_links_are_corrupt() -> None:
    original = committed("softmax")
    for offset, form, value in (
        (60, "<H", 0xFFFF),
        (62, "<H", 0x7000),
        (58, "<H", 63),
        (40, "<Q", 0),
    ):
        data = bytearray(original)
        struct.pack_into(form, data, offset, value)
        problem = read_cubin(bytes(data))
        assert isinstance(problem, Problem)
        assert problem.slug == "cubin-corrupt"


def test_a_million_sections_over_the_same_bytes_are_refused_by_their_work() -> None:
    original = bytearray(committed("forced_spills"))
    table, count = section_table(bytes(original))
    headers = [bytes(original[table + i * 64 : table + (i + 1) * 64]) for i in range(count)]
    info = [h for h in headers if struct.unpack_from("<I", h, 4)[0] == SHT_CUDA_INFO]
    biggest = max(info, key=lambda header: struct.unpack_from("<Q", header, 32)[0])
    repeated = headers + [biggest] * 60_000
    struct.pack_into("<Q", original, 40, len(original))
    struct.pack_into("<H", original, 60, len(repeated))
    problem = read_cubin(bytes(original) + b"".join(repeated))
    assert isinstance(problem, Problem)
    assert "overlap" in problem.message


def test_records_that_pass_their_sections_end_are_corrupt() -> None:
    data = committed("softmax")
    record = struct.pack("<BBH", 4, 0x37, 4)
    assert record in data
    problem = read_cubin(data.replace(record, struct.pack("<BBH", 4, 0x37, 60_000)))
    assert isinstance(problem, Problem)
    assert problem.slug == "cubin-corrupt"


def test_records_of_symbols_that_do_not_exist_are_corrupt() -> None:
    data = committed("softmax")
    at = data.index(struct.pack("<BBH", 4, 0x2F, 8)) + 4
    problem = read_cubin(data[:at] + struct.pack("<I", 9999) + data[at + 4 :])
    assert isinstance(problem, Problem)
    assert "9999" in problem.message


def test_names_without_end_are_corrupt() -> None:
    data = bytearray(committed("softmax"))
    table, _ = section_table(bytes(data))
    names = table + struct.unpack_from("<H", data, 62)[0] * 64
    offset, size = struct.unpack_from("<QQ", data, names + 24)
    data[offset : offset + size] = b"A" * size
    problem = read_cubin(bytes(data))
    assert isinstance(problem, Problem)
    assert "not terminated" in problem.message


def test_functions_without_the_entry_flag_are_no_kernels() -> None:
    data = bytearray(committed("several_kernels"))
    flagged = [i for i in range(len(data) - 24) if data[i : i + 2] == b"\x12\x10"]
    assert len(flagged) == 3
    data[flagged[0] + 1] = 0
    assert sorted(k.is_entry for k in kernels(bytes(data)).values()) == [False, True, True]
