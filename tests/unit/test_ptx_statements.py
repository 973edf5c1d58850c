"""PTX statements: every form that compilers and people write is read as what it is."""

from __future__ import annotations

import pytest
from for_each import for_each
from ptx_text import HEADER, REPOSITORY, entry, module, only_body, only_function, read

from gpuemu_flow.lint.ptx.model import Opcode, RegisterDeclaration, SourceLocation
from gpuemu_flow.lint.ptx.parser import read_body


def opcodes(text: str | bytes) -> list[str]:
    return [instruction.opcode.text for instruction in only_body(text).instructions]


def test_an_instruction_has_opcode_guard_operands_and_place() -> None:
    body = only_body(module(".entry k(){\n .reg .pred p;\n @!p add.s32 a, b, -4;\n ret;\n}"))
    add = body.instructions[0]
    assert add.opcode.segments == ("add", "s32")
    assert add.predicate == ("p", True)
    assert add.operands == ("a", "b", "-4")
    function = only_function(
        module(".entry k(){\n .reg .pred p;\n @!p add.s32 a, b, -4;\n ret;\n}")
    )
    assert function.module.source.line_of(add.offset) == 6


def test_whole_file_on_one_line() -> None:
    text = (
        ".version 8.0 .target sm_80 .address_size 64 .visible .entry f(.param .u64 p)"
        "{.reg .b32 %r<2>; mov.u32 %r1, %tid.x; ret;}"
    )
    function = only_function(text)
    assert (function.name, function.module.target, function.module.version) == (
        "f",
        "sm_80",
        (8, 0),
    )
    assert opcodes(text) == ["mov.u32", "ret"]


def test_code_without_indentation_and_with_crlf() -> None:
    text = (
        HEADER + ".visible .entry f()\n{\n.reg .b32 %r<4>;\nmov.u32 %r1, 1;\nret;\n}\n"
    ).replace("\n", "\r\n")
    assert opcodes(text) == ["mov.u32", "ret"]
    function = only_function(text)
    assert function.line == 4
    assert function.module.source.line_of(read_body(function).instructions[1].offset) == 8


@pytest.mark.parametrize("label", ["$L__BB0_3", "loop", "L1", "_x", "%lab"])
def test_label_and_instruction_on_one_line(label: str) -> None:
    body = only_body(module(f".entry k(){{ ret; {label}: bra.uni {label}; {label}2 : ret; }}"))
    assert [i.opcode.text for i in body.instructions] == ["ret", "bra.uni", "ret"]
    assert body.labels == {(0, label): 1, (0, f"{label}2"): 2}


def test_label_right_before_the_closing_brace() -> None:
    body = only_body(module(".entry k(){ bra.uni L; L: }"))
    assert body.labels == {(0, "L"): 1}


def test_pragma_between_header_and_body() -> None:
    text = module('.entry k()\n.maxntid 128\n.pragma "noduplicate";\n.pragma "x {", "y";\n{ ret; }')
    function = only_function(text)
    assert (function.name, function.bounds.max_threads) == ("k", 128)
    assert opcodes(text) == ["ret"]


def test_register_declarations_of_all_forms() -> None:
    body = only_body(
        module(
            ".entry k(){ .reg .b32 a, b, %r<3>; .reg .v4 .f32 v; .reg .b128 q;\n"
            ".reg.pred\t%p< 7 >; ret; }"
        )
    )
    assert body.scopes[0].registers == [
        RegisterDeclaration("a", None, "b32"),
        RegisterDeclaration("b", None, "b32"),
        RegisterDeclaration("%r", 3, "b32"),
        RegisterDeclaration("v", None, "f32", 4),
        RegisterDeclaration("q", None, "b128"),
        RegisterDeclaration("%p", 7, "pred"),
    ]
    assert body.declared_registers == 2 + 3 + 1 + 1 + 7


def test_brace_at_statement_start_is_a_scope_and_elsewhere_a_vector() -> None:
    body = only_body(
        module(
            ".entry k(){ ld.global.v2.f32 {%f1,%f2}, [%rd1]; { .reg .b32 t; mov.b32 t, 1; }\n"
            "mov.b64 {%r1, %r2}, %rd1; }"
        )
    )
    assert [i.scope for i in body.instructions] == [0, 1, 0]
    assert [s.parent for s in body.scopes] == [-1, 0]
    assert body.instructions[0].operands == ("{%f1,%f2}", "[%rd1]")
    assert body.instructions[2].operands == ("{%r1, %r2}", "%rd1")


def test_predicate_pairs_and_float_literals_are_operands() -> None:
    body = only_body(module(".entry k(){ setp.lt.and.s32 p|q, 1, 2, !q; mov.f32 a, 0fBF800000; }"))
    assert body.instructions[0].operands == ("p|q", "1", "2", "!q")
    assert body.instructions[1].operands == ("a", "0fBF800000")


def test_call_over_several_lines() -> None:
    body = only_body(
        module(
            ".entry k(){ { // callseq 0, 0\n.reg .b32 temp;\n.param .b64 param0;\n"
            "st.param.b64 [param0+0], %rd1;\n"
            "call.uni (retval0), \nvprintf, \n(\nparam0, \nparam1\n);\n"
            "ld.param.b32 %r1, [retval0+0];\n}\nret; }"
        )
    )
    call = body.instructions[1]
    assert call.opcode.text == "call.uni"
    assert call.operands[:2] == ("(retval0)", "vprintf")
    assert [i.opcode.base for i in body.instructions] == ["st", "call", "ld", "ret"]


def test_branch_targets_and_call_prototypes() -> None:
    body = only_body(
        module(
            ".entry k(){ ts: .branchtargets L1, $L_2; brx.idx %r1, ts; L1: ret; $L_2: ret;\n"
            "proto: .callprototype ()_ (.param .b32 _); "
            "{ .param .b32 p0; call %rd1, (p0), proto; } }"
        )
    )
    assert body.branch_targets == {(0, "ts"): ("L1", "$L_2")}
    assert [i.opcode.base for i in body.instructions] == ["brx", "ret", "ret", "call"]


def test_prototypes_noreturn_and_alias_are_no_functions() -> None:
    text = module(
        ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n"
        ".func __assertfail(.param .b64 a) .noreturn;\n.func real(){ ret; }\n"
        ".visible .alias other, real;\n"
    )
    function = only_function(text)
    assert function.name == "real"
    assert function.module.aliases == {"other": "real"}


def test_sections_may_hold_semicolons_and_braces_in_comments() -> None:
    ptx = read(
        module(
            ".entry k(){ ret; }\n.section .debug_str\n{\n$L0:\n.b8 1 // ; }\n}\n.entry m(){ ret; }"
        )
    )
    assert [f.name for f in ptx.functions()] == ["k", "m"]


def test_source_locations_with_and_without_inlining() -> None:
    body = only_body(
        module(
            ".entry k(){\n\t.loc\t1 25 3, function_name $L__info_string0, inlined_at 2 20 5\n"
            "mov.b32 a, b;\n.loc 1 26 0 // s.py:26\nret;\n.loc 1 27 1 prologue_end\nret; }"
        )
    )
    locations = [body.location_of(i) for i in body.instructions]
    assert locations == [
        SourceLocation(1, 25, 3, (2, 20, 5)),
        SourceLocation(1, 26, 0),
        SourceLocation(1, 27, 1),
    ]


def test_equal_locations_share_a_number() -> None:
    body = only_body(module(".entry k(){\n.loc 1 2 3\nret;\n.loc 1 9 3\nret;\n.loc 1 2 3\nret; }"))
    assert [i.location for i in body.instructions] == [0, 1, 0]


def test_file_table_survives_odd_names() -> None:
    function = only_function(
        module('.file 1 "a{b};c.cu", 123, 456\n.entry k(){ ret; }\n.file 7 "größe.cu"\n')
    )
    assert function.module.files == {1: "a{b};c.cu", 7: "größe.cu"}


def test_braces_and_semicolons_in_comments_and_strings() -> None:
    text = module(
        '.entry k(){ // }\n /* } ; { */ .pragma "nounroll {;"; mov.b32 a, /* ; */ 5; // x;\n ret; }'
    )
    assert opcodes(text) == ["mov.b32", "ret"]


def test_comments_keep_line_numbers() -> None:
    function = only_function("/* one\ntwo\nthree */\n// four\n" + HEADER + ".entry k(){ ret; }")
    assert function.line == 8


def test_long_array_initialisers() -> None:
    values = ", ".join(str(i % 256) for i in range(40_000))
    ptx = read(module(f".global .align 4 .b8 t[40000] = {{{values}}};\n.entry k(){{ ret; }}"))
    (variable,) = ptx.modules[0].variables
    assert (variable.name, variable.size_bytes, variable.align) == ("t", 40_000, 4)
    assert [f.name for f in ptx.functions()] == ["k"]


@pytest.mark.parametrize(
    ("directives", "expected"),
    [
        (".maxntid 128", (128, False, 0, 0, 0)),
        (".maxntid 16, 8", (128, False, 0, 0, 0)),
        (".maxntid 8, 8, 4\n.minnctapersm 2\n.maxnreg 64", (256, False, 2, 64, 0)),
        (".reqntid 32, 1, 1", (32, True, 0, 0, 0)),
        (".explicitcluster\n.reqnctapercluster 2, 1, 1", (0, False, 0, 0, 2)),
        ("", (0, False, 0, 0, 0)),
    ],
)
def test_launch_bounds(directives: str, expected: tuple[int, bool, int, int, int]) -> None:
    bounds = only_function(
        module(f".visible .entry k(.param .u64 a)\n{directives}\n{{ ret; }}")
    ).bounds
    found = (
        bounds.max_threads,
        bounds.required,
        bounds.min_blocks,
        bounds.max_registers,
        bounds.cluster,
    )
    assert found == expected


def test_entries_of_any_linkage() -> None:
    ptx = read(
        module(".weak .entry a(){ret;} .visible .entry b(){ret;} .entry c(){ret;} .func d(){}")
    )
    assert [(f.name, f.is_entry) for f in ptx.functions()] == [
        ("a", True),
        ("b", True),
        ("c", True),
        ("d", False),
    ]


def test_empty_body_has_no_instructions() -> None:
    assert only_body(module(".entry k(){}")).instructions == []


def test_two_modules_in_one_file() -> None:
    ptx = read(
        module(".entry f(){ret;}\n") + module(".entry g(){ret;}", HEADER.replace("80", "90"))
    )
    assert [(m.target, [f.name for f in m.functions]) for m in ptx.modules] == [
        ("sm_80", ["f"]),
        ("sm_90", ["g"]),
    ]


def test_several_kernels_are_separate() -> None:
    ptx = read(module(entry("add.s32 %r1, %r2, 1; ret;", "a") + entry("ret;", "b")))
    assert [len(read_body(f).instructions) for f in ptx.entries()] == [2, 1]


@for_each(
    ("statement", "expected"),
    [
        (".shared .f32 a[256];", ("a", "shared", 1024, False)),
        (".shared .align 16 .b8 a[2][3][4];", ("a", "shared", 24, False)),
        (".extern .shared .align 16 .b8 a[];", ("a", "shared", None, True)),
        (".shared .v4 .f32 a;", ("a", "shared", 16, False)),
        (".global .u64 a = 5;", ("a", "global", 8, False)),
        (".const .b32 a[0x10] = {1, 2};", ("a", "const", 64, False)),
        (".visible .global .attribute(.managed) .f64 a;", ("a", "global", 8, False)),
    ],
)
def test_variables_and_their_sizes(
    statement: str, expected: tuple[str, str, int | None, bool]
) -> None:
    (variable,) = read(module(statement)).modules[0].variables
    assert (variable.name, variable.space, variable.size_bytes, variable.external) == expected


def test_variables_declared_together_and_inside() -> None:
    body = only_body(module(".entry k(){ .shared .b32 a, b[4]; .local .align 8 .b8 d[28]; ret; }"))
    assert [(v.name, v.size_bytes) for v in body.variables] == [("a", 4), ("b", 16), ("d", 28)]


def test_qualifiers_with_double_colons_are_one_segment() -> None:
    opcode = Opcode("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes")
    assert opcode.segments[3] == "shared::cluster"
    assert (opcode.base, opcode.space) == ("cp", "shared")
    text = ".entry k(){ mbarrier.try_wait.parity.shared::cta.b64 p, [a], 1; }"
    assert opcodes(module(text)) == ["mbarrier.try_wait.parity.shared::cta.b64"]


def test_predicated_instructions_count() -> None:
    body = only_body(module(entry("@%p1 bra L; @!%p2 ret; L: @%p3 st.global.f32 [%rd1], %f1;")))
    assert [i.guard for i in body.instructions] == ["%p1", "!%p2", "%p3"]


def test_opcode_facts() -> None:
    opcode = Opcode("ld.volatile.global.v4.f32")
    assert (opcode.space, opcode.vector, opcode.type, opcode.access_bytes) == (
        "global",
        4,
        "f32",
        16,
    )
    assert Opcode("cvt.rn.f32.f64").types == ("f32", "f64")
    assert Opcode("ld.u32").space == ""
    assert Opcode("cvt.rn.f32.f64").qualifiers == ("rn",)


def test_byte_order_mark_and_nul_bytes_are_stripped() -> None:
    text = b"\xef\xbb\xbf" + module(".entry k(){ ret; }") + b"\0\0\0"
    assert only_function(text).name == "k"


def test_dwarf_lines_of_old_compilers() -> None:
    text = module(".entry k(){ ret;\n@@DWARF .byte 1\n ret; }\n@@DWARF .section .debug_info\n")
    assert opcodes(text) == ["ret", "ret"]


def test_a_kernel_that_triton_compiled() -> None:
    data = (REPOSITORY / "tests" / "data" / "ptx" / "triton_softmax_sm_90.ptx").read_bytes()
    function = only_function(data)
    body = read_body(function)
    assert body.problems == []
    assert (function.name, function.module.target) == ("softmax_kernel", "sm_90a")
    assert (function.bounds.max_threads, function.bounds.required) == (128, True)
    assert len(body.instructions) == 157
    assert function.module.files[1] == "kernels/softmax.py"
    inlined = [location for location in body.locations if location.inlined_at]
    assert inlined[0].file == 2
    (dynamic,) = [v for v in function.module.variables if v.space == "shared"]
    assert (dynamic.name, dynamic.external, dynamic.size_bytes) == ("global_smem", True, None)
