"""Control flow and data flow of a body: blocks, edges, loops, definitions and uses."""

from __future__ import annotations

import pytest
from for_each import for_each
from ptx_text import entry, module, only_body

from gpuemu_flow.lint.ptx.flow import analyse_dataflow, build_cfg
from gpuemu_flow.lint.ptx.model import (
    first_operand,
    parse_address,
    parse_integer,
    split_operands,
)


def defs_and_uses(statements: str) -> list[tuple[set[str], set[str]]]:
    body = only_body(module(entry(statements)))
    flow = analyse_dataflow(body)
    return [
        ({flow.names[r] for r in written}, {flow.names[r] for r in read})
        for written, read in zip(flow.defs, flow.uses, strict=True)
    ]


def edges(statements: str) -> list[list[int]]:
    return build_cfg(only_body(module(entry(statements)))).successors


@for_each(
    ("statement", "written", "read"),
    [
        ("add.s32 %r1, %r2, %r3;", "%r1", "%r2 %r3"),
        ("@!%p1 mov.u32 %r1, %tid.x;", "%r1", "%p1"),
        ("st.global.f32 [%rd1+4], %f1;", "", "%rd1 %f1"),
        ("ld.global.v4.f32 {%f1,_,%f3,%f4}, [%rd1];", "%f1 %f3 %f4", "%rd1"),
        ("mov.b64 {%r1, %r2}, %rd1;", "%r1 %r2", "%rd1"),
        ("mov.b64 %rd1, {%r1, %r2};", "%rd1", "%r1 %r2"),
        ("setp.lt.and.s32 %p1|%p2, %r1, %r2, !%p3;", "%p1 %p2", "%r1 %r2 %p3"),
        ("shfl.sync.down.b32 %r1|%p1, %r2, 16, 31, -1;", "%r1 %p1", "%r2"),
        ("atom.global.add.u32 %r1, [%rd1], %r2;", "%r1", "%rd1 %r2"),
        ("atom.global.add.u32 _, [%rd1], %r2;", "", "%rd1 %r2"),
        ("red.global.add.f32 [%rd1], %f1;", "", "%rd1 %f1"),
        ("bar.sync %r1, 128;", "", "%r1"),
        ("bar.red.popc.u32 %r1, 0, %p1;", "%r1", "%p1"),
        ("cp.async.ca.shared.global [%r1], [%rd1], 16;", "", "%r1 %rd1"),
        ("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r1], {%r2, %r3};", "", "%r1 %r2 %r3"),
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r2, %r3}, [%r1];", "%r2 %r3", "%r1"),
        (
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
            "{%f1,%f2}, {%r1}, {%r2}, {%f3,%f4};",
            "%f1 %f2",
            "%r1 %r2 %f3 %f4",
        ),
        (
            "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%f1,%f2}, %rd1, %rd2, 1, 1, 1;",
            "%f1 %f2",
            "%f1 %f2 %rd1 %rd2",
        ),
        ("wgmma.fence.sync.aligned;", "", ""),
        (
            "wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd1], {%f1}, %r1;",
            "",
            "%rd1 %f1 %r1",
        ),
        ("mbarrier.init.shared.b64 [%r1], %r2;", "", "%r1 %r2"),
        ("mbarrier.try_wait.parity.shared.b64 %p1, [%r1], %r2;", "%p1", "%r1 %r2"),
        ("mbarrier.arrive.shared.b64 _, [%r1];", "", "%r1"),
        ("tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1, %r2}, [%r3];", "%r1 %r2", "%r3"),
        ("tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3], {%r1};", "", "%r1 %r3"),
        (
            "tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1;",
            "",
            "%r1 %rd1 %rd2 %r2 %p1",
        ),
        ("multimem.ld_reduce.global.add.f32 %f1, [%rd1];", "%f1", "%rd1"),
        ("multimem.red.global.add.f32 [%rd1], %f1;", "", "%rd1 %f1"),
        ("setmaxnreg.dec.sync.aligned.u32 40;", "", ""),
        ("prefetch.global.L2 [%rd1];", "", "%rd1"),
        ("fence.proxy.async;", "", ""),
        ("sust.b.1d.b32.trap [surf, {%r1}], {%r2};", "", "%r1 %r2"),
        ("tex.1d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [tex, {%r1}];", "%f1 %f2 %f3 %f4", "%r1"),
        ("call (%r1), f, (%r2, %r3);", "%r1", "%r2 %r3"),
        ("call f, (%r2);", "", "%r2"),
        ("call %rd1, (%r2), proto;", "", "%rd1 %r2"),
    ],
)
def test_destination_is_the_first_operand_except_where_it_is_not(
    statement: str, written: str, read: str
) -> None:
    assert defs_and_uses(statement) == [(set(written.split()), set(read.split()))]


def test_inner_scopes_shadow_and_fall_back_to_outer_ones() -> None:
    body = only_body(
        module(
            ".entry k(){ .reg .b32 %r<3>, t; mov.b32 t, 0; { .reg .b32 t; mov.b32 t, 1;\n"
            "{ .reg .f64 t; mov.f64 t, %r2; } mov.b32 %r1, t; } add.s32 %r1, t, 1; }"
        )
    )
    flow = analyse_dataflow(body)
    outer, inner, innermost = flow.defs[0][0], flow.defs[1][0], flow.defs[2][0]
    assert len({outer, inner, innermost}) == 3
    assert flow.uses[3] == (inner,)
    assert flow.uses[4] == (outer,)
    assert [flow.types[r] for r in (outer, inner, innermost)] == ["b32", "b32", "f64"]


def test_labels_are_local_to_their_scope() -> None:
    body = only_body(
        module(".entry k(){ { W: bra W; } { W: bra W; } mov.b32 a, 1; D: ret; { bra D; } }")
    )
    graph = build_cfg(body)
    assert graph.unresolved == []
    assert graph.successors[:2] == [[0], [1]]
    assert graph.successors[-1] == [graph.block_of(3)]


def test_names_without_percent_sign_and_lanes_of_vectors() -> None:
    body = only_body(
        module(".entry k(){ .reg .v4 .f32 v; .reg .f32 x; add.f32 x, v.x, v.y; ret; }")
    )
    flow = analyse_dataflow(body)
    assert [flow.names[r] for r in flow.defs[0]] == ["x"]
    assert {flow.names[r] for r in flow.uses[0]} == {"v"}
    assert flow.widths[flow.uses[0][0]] == 4


def test_special_registers_and_numbers_are_no_registers() -> None:
    assert defs_and_uses("mov.u32 %r1, %tid.x; mov.f32 %f1, 0fBF800000; mov.u64 %rd1, table;") == [
        ({"%r1"}, set()),
        ({"%f1"}, set()),
        ({"%rd1"}, set()),
    ]


def test_ranges_do_not_hold_registers_beyond_their_end() -> None:
    body = only_body(
        module(".entry k(){ .reg .b32 %r<3>; .reg .b32 %r1<9>; add.s32 %r2, %r3, %r18; }")
    )
    flow = analyse_dataflow(body)
    assert [flow.names[r] for r in flow.defs[0]] == ["%r2"]
    assert [flow.names[r] for r in flow.uses[0]] == ["%r18"]


def test_a_declaration_of_a_billion_registers_costs_nothing() -> None:
    body = only_body(
        module(".entry k(){ .reg .b32 %r<999999999>; add.s32 %r7, %r8, %r999999998; }")
    )
    flow = analyse_dataflow(body)
    assert {flow.names[r] for r in flow.uses[0]} == {"%r8", "%r999999998"}
    assert len(flow.names) < 10


def test_symbols_are_mentioned_only_when_an_instruction_names_them() -> None:
    body = only_body(module(entry(".shared .b32 used[4], unused[4]; mov.u32 %r1, used;")))
    flow = analyse_dataflow(body)
    assert (flow.mentions("used"), flow.mentions("unused")) == (True, False)
    assert flow.mentioned_among({"used": 1, "unused": 2, "use": 3}) == {"used"}


def test_blocks_and_edges_of_a_diamond() -> None:
    assert edges("@%p1 bra A; mov.b32 %r1, 1; bra.uni B; A: mov.b32 %r1, 2; B: ret;") == [
        [2, 1],
        [3],
        [3],
        [],
    ]


def test_guarded_exit_falls_through_and_leaves() -> None:
    graph = build_cfg(only_body(module(entry("@%p1 ret; mov.b32 %r1, 1; exit;"))))
    assert graph.successors == [[1], []]
    assert graph.leaves == [True, True]


def test_body_without_return_leaves_at_its_end() -> None:
    graph = build_cfg(only_body(module(entry("mov.b32 %r1, 1;"))))
    assert (graph.successors, graph.leaves) == ([[]], [True])


def test_indexed_branch_has_all_targets_of_its_table() -> None:
    statements = "ts: .branchtargets A, B, A; brx.idx %r1, ts; A: ret; B: ret;"
    assert edges(statements) == [[1, 2], [], []]


def test_unknown_label_is_recorded_and_leaves() -> None:
    graph = build_cfg(only_body(module(entry("bra.uni nowhere; ret;"))))
    assert graph.unresolved == [0]
    assert graph.leaves[0]


def test_only_cycles_are_loops() -> None:
    graph = build_cfg(
        only_body(
            module(
                entry(
                    "bra.uni M; L: add.s32 %r1, %r1, 1; M: @%p1 bra L; "
                    "@%p2 bra E; S: bra S; E: ret;"
                )
            )
        )
    )
    labels = {"L": 1, "M": 2, "S": 4, "E": 5}
    looping = {
        name for name, index in labels.items() if graph.blocks_in_loops()[graph.block_of(index)]
    }
    assert looping == {"L", "M", "S"}


def test_a_long_chain_of_blocks_needs_no_recursion() -> None:
    count = 20_000
    chain = "\n".join(f"@%p1 bra L{i}; L{i}: add.s32 %r1, %r1, 1;" for i in range(count))
    graph = build_cfg(only_body(module(entry(f"{chain} @%p1 bra L0; ret;"))))
    assert sum(graph.blocks_in_loops()) == count
    assert len(graph) == count + 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a, b", ("a", "b")),
        (" {a, b}|p , [c, {d, e}], (f, g) ", ("{a, b}|p", "[c, {d, e}]", "(f, g)")),
        ("", ()),
        ("a, ", ("a", "")),
    ],
)
def test_operands_are_split_at_top_level(text: str, expected: tuple[str, ...]) -> None:
    assert split_operands(text) == expected


def test_first_operand_of_all_forms() -> None:
    texts = ["a, b", "{a, b}, c", "{a, b}|p, c", "(a), f, (b)", "[a+4], b", "p|q, a", ""]
    assert [first_operand(t) for t in texts] == [
        "a",
        "{a, b}",
        "{a, b}|p",
        "(a)",
        "[a+4]",
        "p|q",
        "",
    ]


@for_each(
    ("text", "expected"),
    [
        ("%f1, [%rd1]", ("%rd1", 0)),
        ("[%rd1+16], %f1", ("%rd1", 16)),
        ("[ %rd1 + -4 ]", ("%rd1", -4)),
        ("[sym+0x10]", ("sym", 16)),
        ("[%rd1+%r1]", None),
        ("[tex, {%r1}]", None),
        ("%f1", None),
        ("[a+" + "9" * 5000 + "]", None),
    ],
)
def test_addresses(text: str, expected: tuple[str, int] | None) -> None:
    assert parse_address(text) == expected


def test_scopes_nested_beyond_reason_end_where_they_began() -> None:
    deep = "{ " * 300 + "mov.b32 a, 1; " + "} " * 100 + "mov.b32 a, 2; " + "} " * 200
    body = only_body(module(".entry k(){ .reg .b32 a; " + deep + "L: { bra L; } ret; }"))
    assert [i.scope for i in body.instructions] == [200, 200, 201, 0]
    assert build_cfg(body).unresolved == []


def test_integers_of_all_bases() -> None:
    texts = ["12", "-12", "0x1F", "017", "0b101", "7U", "", "x", "0x", "1.5", "1" * 100, "-0xZ"]
    expected = [12, -12, 31, 15, 5, 7, None, None, None, None, None, None]
    assert [parse_integer(text) for text in texts] == expected
