"""Looking for races interval by interval finds what looking at every access finds."""

from __future__ import annotations

import re
from itertools import islice

import numpy as np
import pytest
from emulated_kernels import FOLDER, Case, all_cases, as_argument, out
from for_each import for_each
from whole import sample

from gpuemu_flow.emulator import bytes as batch_memory
from gpuemu_flow.emulator import launch as launching
from gpuemu_flow.emulator.global_races import GlobalRaces
from gpuemu_flow.emulator.launch import LaunchResult, load_kernel
from gpuemu_flow.emulator.races import LoggedRaces, SharedRaces
from gpuemu_flow.emulator.state import State
from gpuemu_flow.emulator.types import Array
from gpuemu_flow.model.errors import FlowError

CASES = {c.entry: c for c in all_cases(4, 150)}
_ENTRY = re.compile(r"\.visible \.entry .*?^\}", re.DOTALL | re.MULTILINE)
_BARRIER = re.compile(r"bar\.sync|barrier\.sync\.aligned|bar\.warp\.sync|bar\.red")


class AlwaysExact(LoggedRaces):
    """Looks at every access as it is made."""

    def __init__(self, state: State, size: int, describe) -> None:  # type: ignore[no-untyped-def]
        super().__init__(state, size, describe)
        self._exact = True

    def barrier(self, chosen: Array | None, arrived: Array | None = None) -> None:
        SharedRaces.barrier(self, chosen, arrived)


def bodies() -> dict[str, tuple[str, str]]:
    """Each kernel's text, and what stands before the first of its file."""
    found = {}
    for path in sorted(FOLDER.glob("*s.ptx")):
        text = path.read_text()
        first = _ENTRY.search(text)
        assert first is not None
        for match in _ENTRY.finditer(text):
            name = re.search(r"\.entry (\w+)", match.group())
            assert name is not None
            found[name.group(1)] = (text[: first.start()], match.group())
    return found


def damaged() -> list[tuple[str, str, str]]:
    """Kernels with one barrier less, and kernels whose blocks all do the work of one."""
    made = []
    for entry, (head, body) in bodies().items():
        if entry not in CASES:
            continue
        for number, match in enumerate(_BARRIER.finditer(body)):
            if "bar.red" in match.group():
                continue
            text = f"{head}{body[: match.start()]}// {body[match.start() :]}"
            made.append((entry, f"barrier {number}", text))
        if "%ctaid.x" in body:
            made.append((entry, "one block's work", head + body.replace("%ctaid.x", "%ctaid.z")))
    return made


def run(case: Case, text: str) -> list[tuple[str, int]] | str:
    try:
        result: LaunchResult = load_kernel(text.encode(), "k.ptx", case.entry).launch(
            case.grid, case.block, [as_argument(a) for a in case.arguments], shared=case.shared,
            checks=("race",), budget=10**9,
        )  # fmt: skip
    except FlowError as error:
        return error.slug
    return [(str(f), f.count) for f in result.findings]


FOUND: set[str] = set()


@pytest.mark.ci
@pytest.mark.parametrize(
    ("entry", "text"),
    [pytest.param(e, t, id=f"{e}-{w}") for e, w, t in sample([*damaged()], 6, lambda d: d[0])],
)
def test_the_same_races_are_found(entry: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = run(CASES[entry], text)
    monkeypatch.setattr(batch_memory, "LoggedRaces", AlwaysExact)
    monkeypatch.setattr(launching, "QuickGlobalRaces", GlobalRaces)
    assert quick == run(CASES[entry], text)


@pytest.mark.ci
def test_damaged_kernels_do_race() -> None:
    without_one = ((e, t) for e, w, t in damaged() if "barrier" in w)
    racing = list(islice((e for e, t in without_one if run(CASES[e], t)), 15))
    assert len(racing) == 15, racing


HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 x)\n{\n"
HEAD += ".reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<4>;\n"
HEAD += "ld.param.u64 %d0, [x]; mov.u32 %r0, %ctaid.x; mul.wide.u32 %d1, %r0, 4;\n"
HEAD += "add.s64 %d1, %d0, %d1;\n"


@for_each(
    ("body", "rule"),
    [
        ("ld.global.u32 %r1, [%d0]; st.global.u32 [%d1], %r0;", "write-after-read"),
        ("st.global.u32 [%d1], %r0; ld.global.u32 %r1, [%d0];", "read-after-write"),
        ("st.global.u32 [%d0], %r0;", "write-after-write"),
        ("st.global.u32 [%d1], %r0; st.global.u32 [%d0], %r0;", "write-after-write"),
    ],
)
@for_each("blocks", [3, 3000])
def test_blocks_race_within_a_batch_and_between_batches(body: str, rule: str, blocks: int) -> None:
    kernel = load_kernel((HEAD + body + "\nret;\n}\n").encode(), "k.ptx")
    result = kernel.launch([blocks], [1], [as_argument(np.ones(blocks, "u4"))])
    assert f"between-blocks-{rule}" in {f.rule for f in result.findings}


@pytest.mark.parametrize(
    "body",
    [
        "ld.global.u32 %r1, [%d1]; add.u32 %r1, %r1, 1; st.global.u32 [%d1], %r1;",
        "mov.u32 %r1, 7; st.global.u32 [%d0], %r1;",
        "red.global.add.u32 [%d0], %r0;",
    ],
)
def test_blocks_that_keep_apart_do_not_race(body: str) -> None:
    kernel = load_kernel((HEAD + body + "\nret;\n}\n").encode(), "k.ptx")
    result = kernel.launch([3000], [1], [as_argument(np.full(3000, 7, "u4"))])
    assert result.findings == ()
    assert kernel.launch([1], [1], [out(1, "u4")], checks=("race",)).findings == ()
