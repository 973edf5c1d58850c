"""Occupancy against a table of answers of NVIDIA's own calculator, and its corner cases."""

from __future__ import annotations

import json

import pytest
from for_each import for_each
from ptx_text import REPOSITORY

from gpuemu_flow.lint.kernel import ARCHITECTURES, arch_number, limits_of, occupancy

TABLE = REPOSITORY / "tests" / "data" / "ptx" / "occupancy_known_answers.json"
"""Rows of sm, threads, registers, static and dynamic shared bytes, barriers and the number of
blocks that cuda_occupancy.h of CUDA 13.0 gives, for random inputs."""


def test_equal_to_the_table_of_known_answers() -> None:
    rows = json.loads(TABLE.read_text(encoding="utf-8"))
    assert len(rows) == 420
    assert {row[0] for row in rows} == set(ARCHITECTURES)
    wrong = [
        (row, found.blocks)
        for row in rows
        for sm, threads, registers, static, dynamic, barriers, blocks in [row]
        for found in [occupancy(ARCHITECTURES[sm], threads, registers, static + dynamic, barriers)]
        if found.blocks != blocks
    ]
    assert wrong == []


@for_each(
    ("sm", "threads", "registers", "shared", "blocks", "limited_by"),
    [
        (80, 256, 32, 0, 8, ("warps", "registers")),
        (80, 256, 33, 0, 6, ("registers",)),
        (80, 32, 16, 0, 32, ("blocks",)),
        (80, 256, 32, 48 * 1024, 3, ("shared",)),
        (90, 128, 168, 0, 3, ("registers",)),
        (86, 1024, 32, 0, 1, ("warps",)),
        (75, 1024, 64, 0, 1, ("warps", "registers")),
        (75, 64, 16, 9300, 6, ("shared",)),
        (80, 64, 16, 9300, 16, ("shared",)),
        (120, 64, 24, 0, 24, ("warps", "blocks")),
    ],
)
def test_known_cases_and_their_limits(
    sm: int, threads: int, registers: int, shared: int, blocks: int, limited_by: tuple[str, ...]
) -> None:
    found = occupancy(ARCHITECTURES[sm], threads, registers, shared)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "reason"),
    [
        (1025, 16, 0, ("launch",)),
        (0, 16, 0, ("launch",)),
        (32, 256, 0, ("launch",)),
        (1024, 65, 0, ("launch", "registers")),
        (32, 16, 164 * 1024, ("launch", "shared")),
        (288, 224, 0, ("launch", "registers")),
    ],
)
def test_a_block_that_cannot_be_launched(
    threads: int, registers: int, shared: int, reason: tuple[str, ...]
) -> None:
    found = occupancy(ARCHITECTURES[80], threads, registers, shared)
    assert (found.blocks, found.fraction, found.limited_by) == (0, 0.0, reason)


def test_barriers_limit_from_sm_90_on() -> None:
    assert occupancy(ARCHITECTURES[90], 32, 8, 0, 16).limited_by == ("barriers",)
    assert occupancy(ARCHITECTURES[80], 32, 8, 0, 16).limited_by == ("blocks",)


def test_fraction_counts_warps() -> None:
    found = occupancy(ARCHITECTURES[90], 48, 200)
    assert (found.blocks, found.warps) == (4, 8)
    assert found.fraction == pytest.approx(8 / 64)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("sm_90", 90),
        ("sm_90a", 90),
        ("compute_100f", 100),
        ("sm_x", None),
        ("", None),
        ("90", None),
    ],
)
def test_architecture_names(name: str, number: int | None) -> None:
    assert arch_number(name) == number


def test_an_unknown_architecture_has_no_limits() -> None:
    assert limits_of("sm_61") is None
