"""Wrong kernels of kinds that once passed fail, and right ones beside them pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from many_ops import Op, Ran, run_once
from mini_workspace import Mini

from gpuemu_flow.lint.toolchain import Tool, find_tools

STEP = (
    'dims = { N = [1, 7, 64] }\ninputs = { w = ["N"], g = ["N"] }\n'
    'outputs = { w = { dims = ["N"], dtype = "same as w" } }'
)
STATE = (
    'dims = { N = [1, 7, 64] }\ninputs = { w = ["N"], g = ["N"] }\noutput = ["N"]\n'
    "scalars = { training = [true, false] }"
)
MUTATES = 'mutates = ["w"]'


def step(body: str, verdict: str = "failed") -> Op:
    """A step of an optimiser, which changes its weights in place."""
    body = f"r = w - np.float32(0.125) * g\n{body}"
    return Op("w, g", body, "return w - 0.125 * g", STEP, MUTATES, verdict=verdict)


def state(body: str, verdict: str = "failed") -> Op:
    """An op with a running state, which changes in training only."""
    body = f"y = np.float32(2) * (w + g if training else w)\n{body}\nreturn y"
    reference = "if training:\n    w += g\nreturn 2 * w"
    return Op("w, g, training", body, reference, STATE, MUTATES, verdict=verdict)


IN_PLACE = {
    "half_of_it_in_place": step("w[: len(w) // 2] = r[: len(w) // 2]\nreturn r"),
    "only_returned": step("return r"),
    "last_element_left": step("w[:-1] = r[:-1]\nreturn r"),
    "returned_wrong": step("w[...] = r\nreturn r * 2"),
    "returned_and_in_place": step("w[...] = r\nreturn r", "passed"),
    "in_place_only": step("w[...] = r", "passed"),
    "state_never_changed": state(""),
    "state_changed_back": state("if training:\n    w -= g"),
    "state_changed_always": state("w += g"),
    "state_right": state("if training:\n    w += g", "passed"),
    "scratch": Op(
        "w, g", "w[...] = g\nreturn w * 3", "return 3 * g", STATE.partition("\nscalars")[0], MUTATES
    ),
}

OFFSETS = (
    "dims = { N = { min = 2, max = 7 }, T = { min = 1, max = 400 }, D = [4] }\n"
    'inputs.x = { dims = ["T", "D"], nonfinite = false, range = [-9.0, 9.0] }\n'
    'inputs.start = { dims = ["N"], dtype = "int32", kind = "offsets", to = "T" }\n'
    'output = ["N-1", "D"]'
)
LENGTHS = (
    "dims = { B = { min = 1, max = 5 }, T = { min = 1, max = 300 } }\n"
    'inputs.x = { dims = ["B", "T"], nonfinite = false, range = [-9.0, 9.0] }\n'
    'inputs.lens = { dims = ["B"], dtype = "int32", kind = "lengths", to = "T" }\n'
    'output = ["B"]'
)


def ragged(loses: str, schema: str = OFFSETS) -> Op:
    """A sum over ragged rows that loses elements of rows of some lengths (n)."""
    if schema is OFFSETS:
        rows = "[x[a:b] for a, b in zip(start, start[1:])]"
        takes, axis, shape = "x, start", 0, "(len(start) - 1, x.shape[1])"
    else:
        rows, takes, axis, shape = "[r[:n] for r, n in zip(x, lens)]", "x, lens", 0, "len(x)"
    body = f"""out = np.zeros({shape}, x.dtype)
for at, row in enumerate({rows}):
    n = len(row)
    out[at] = (row[: n - 1] if {loses} else row).sum({axis}) if n else 0
return out"""
    right = body.replace(f"row[: n - 1] if {loses} else row", "row")
    return Op(takes, body, right, schema, verdict="failed")


def ragged_max(function: str, tile: int) -> Op:
    """A maximum or minimum over ragged rows that leaves out a last tile of one row."""
    op = ragged(f"n % {tile} == 1 and n > {tile}")
    op, right = (body.replace(".sum(0)", f".{function}(0)") for body in (op.op, op.reference))
    return Op("x, start", op, right, OFFSETS, verdict="failed")


RAGGED = {
    "last_tile_of_one_row_32": ragged("n % 32 == 1 and n > 32"),
    "last_tile_of_one_row_64": ragged("n % 64 == 1 and n > 64"),
    "last_tile_full_64": ragged("n % 64 == 0"),
    "last_tile_lacks_one_32": ragged("n % 32 == 31"),
    "max_of_a_last_tile_of_one_row": ragged_max("max", 64),
    "min_of_a_last_tile_of_one_row": ragged_max("min", 32),
    "row_that_begins_with_a_tile_32": ragged("start[at] % 32 == 0 < start[at] and n"),
    "row_that_begins_with_a_tile_64": ragged("start[at] % 64 == 0 < start[at] and n"),
    "length_one_above_tile": ragged("n % 32 == 1 and n > 32", LENGTHS),
    "length_of_whole_tiles": ragged("n % 64 == 0", LENGTHS),
    "length_one_below_tile": ragged("n % 32 == 31", LENGTHS),
}

LISTED = 'dims = { M = [1, 4, 9], N = [5, 33, 257] }\ninputs.x = ["M", "N"]\noutput = '
VECTOR = 'dims = { N = { min = 1, max = 5000 } }\ninputs.x = ["N"]\noutput = '
TALL = 'dims = { M = [1, 33, 65, 257], N = [4] }\ninputs.x = ["M", "N"]\noutput = '


def tiled(function: str, tile: int, schema: str) -> Op:
    """A reduction that leaves out the last tile of a row or column, unless it is whole."""
    kind = ', dtype = "int64"' if "arg" in function else ""
    dims = {LISTED: '["M"]', VECTOR: "[]", TALL: '["N"]'}[schema]
    turned = "x = x.T\n" if schema is TALL else ""
    body = f"n = x.shape[-1]\nreturn np.{function}(x[..., : n // {tile} * {tile} or n], -1)"
    body, right = turned + body, f"{turned}return np.{function}(x, -1)"
    return Op(
        "x", body, right, f"{schema}{{ dims = {dims}{kind} }}", "cases = 24", verdict="failed"
    )


LAST_TILE = {
    f"{function}_of_{name}": tiled(function, tile, schema)
    for function in ("max", "min", "argmax", "argmin")
    for name, tile, schema in (
        ("rows", 64, LISTED),
        ("a_vector", 128, VECTOR),
        ("columns", 64, TALL),
    )
}

LONG = 'dims = { N = [16384] }\ninputs.x = ["N"]\noutput = ["N"]'
ROWS = 'dims = { M = [16384], N = [4] }\ninputs = { x = ["M", "N"] }\noutput = ["M", "N"]'
TABLE = (
    "dims = { V = [16384], D = [4], N = [100] }\ninputs.t = ['V', 'D']\n"
    'inputs.i = { dims = ["N"], dtype = "int64", kind = "indices", of = "t" }\n'
    'output = ["N", "D"]'
)
SOFTMAX = "e = np.exp(x - x.max(-1, keepdims=True))\n"


def scaled(factor: float, takes: str, expression: str, schema: str, before: str = "") -> Op:
    """An op whose result has a constant relative error, at a dim that it does not reduce."""
    right = f"{before}return {expression}"
    wrong = f"{before}return ({expression} * np.float32({factor})).astype(np.float32)"
    keys = 'strategies = ["normal"]\ncases = 2'
    return Op(takes, wrong, right, schema, keys, verdict="failed" if factor != 1 else "passed")


GROWTH = {
    f"{name}_{factor}": scaled(factor, *what)
    for name, what in {
        "quotient": ("x", "x / np.float32(3)", LONG),
        "softplus": ("x", "np.logaddexp(x, 0)", LONG),
        "many_rows": ("x", "e / e.sum(-1, keepdims=True)", ROWS, SOFTMAX),
        "long_table": ("t, i", "t[i] * np.float32(2.3)", TABLE),
    }.items()
    for factor in (1, 1.00001)
}

NARROW = """
def up(x):
    return x.astype(np.float32)

def cut(x, dtype):  # a cast that truncates, as some kernels make one
    y = x.astype(dtype)
    with np.errstate(all="ignore"):
        bits = y.view(np.int16) - (np.abs(up(y)) > np.abs(x))
    return bits.astype(np.int16).view(y.dtype)
"""
BLOCK = 'dims = { M = [4, 9], N = [5, 33] }\ninputs = { x = ["M", "N"] }\noutput = ["M", "N"]'
TWO = (
    'dims = { M = [4, 9], K = [16, 33], N = [5] }\ninputs = { x = ["M", "K"], y = ["K", "N"] }\n'
    'output = ["M", "N"]'
)
ROWS = 'dims = { M = [4, 9], N = [5, 33] }\ninputs = { x = ["M", "N"] }\noutput = ["M"]'


def narrow(dtype: str, factor: float, what: str, schema: str = BLOCK, after: str = "") -> Op:
    """An op in a narrow type whose results have a constant factor."""
    takes = "x, y" if schema is TWO else "x"
    wide = what.replace("x", "up(x)").replace("y", "up(y)")
    body = after or f"return (({wide}) * np.float32({factor})).astype(x.dtype)"
    verdict = "passed" if factor == 1 else "failed"
    keys = f'dtypes = ["{dtype}"]\ncases = 24'
    return Op(takes, body, f"return {what}", schema, keys, NARROW, verdict=verdict)


LEANING = {
    f"{dtype}_{kind}_{number}": narrow(dtype, number, *what)
    for dtype, factor in {
        "float8_e5m2": 1.2, "float8_e4m3fn": 0.93, "bfloat16": 1.004, "float16": 1.0005,
    }.items()
    for kind, what in {"third": ("x / 3",), "matmul": ("x @ y", TWO)}.items()
    for number in (factor, 1)
}  # fmt: skip
LEANING["bfloat16_cut"] = narrow("bfloat16", 1, "x / 3", after="return cut(up(x) / 3, x.dtype)")
LEANING["float16_cut"] = narrow("float16", 1, "x / 3", after="return cut(up(x) / 3, x.dtype)")
# Of values that need no rounding, truncation loses nothing
LEANING |= {
    f"{dtype}_copy_{number}": narrow(dtype, number, "x * 1")
    for dtype, factor in {"bfloat16": 0.996, "float16": 0.9995, "float8_e4m3fn": 0.94}.items()
    for number in (factor, 1)
}
LEANING["bfloat16_cut_quarters"] = narrow(
    "bfloat16", 1, "x.sum(1) / 4", ROWS, after="return cut(up(x).sum(1) / 4, x.dtype)"
)

STEP_AT = 'dims = { M = [1, 4, 9], N = [5, 33] }\ninputs = { x = ["M", "N"] }\noutput = ["M", "N"]'


def stepping(wrong: str, right: str, verdict: str = "failed") -> Op:
    """An op whose branch is at another number than the reference's, or on its other side."""
    return Op("x", f"return {wrong}", f"return {right}", STEP_AT, "cases = 24", verdict=verdict)


BRANCHES = {
    "ge_for_gt_at_20": stepping("np.where(x >= 20, x * 0, x)", "np.where(x > 20, 0 * x, x)"),
    "le_for_lt_at_half": stepping("np.where(x <= -0.5, -x, x)", "np.where(x < -0.5, -x, x)"),
    "window_of_the_op": stepping("np.where((x > 20) & (x < 21), 0, x)", "x * 1"),
    "clip_one_off": stepping("np.minimum(x, np.float32(88))", "np.minimum(x, 88.5)"),
    "named_limit": stepping("np.where(x >= 37.25, 1, x)", "np.where(x > 37.25, 1, x)"),
    "right_at_20": stepping("np.where(x > 20, x * 0, x)", "np.where(x > 20, 0 * x, x)", "passed"),
    "right_at_a_rounded_tenth": stepping(
        "np.where(x > np.float32(0.1), 0, x)", "np.where(x > 0.1, 0, x)", "passed"
    ),
    "right_and_scaled": stepping(
        "np.where(x > 20, 0, x * np.float32(0.3))", "np.where(x > 20, 0, x * 0.3)", "passed"
    ),
    "right_softplus": stepping(
        "np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, np.float32(20)))))",
        "np.logaddexp(x, 0)", "passed",
    ),
}  # fmt: skip

THRESHOLD = f"{STEP_AT}\nscalars = {{ at = [12.5, 30.0] }}"
SLOPES = "np.where({} > 20, {} * f(0.1), {} * f(0.3))".format(*"yyy")


def rounding(
    op: str, right: str, verdict: str = "failed", dtype: str = "float32", schema: str = STEP_AT
) -> Op:
    """An op whose results are rounded, with a branch as of `stepping`; y is the wide input."""
    takes = "x, at" if schema is THRESHOLD else "x"
    body = f"f, y = np.float32, x.astype(np.float32)\nreturn ({op}).astype(x.dtype)"
    reference = f"f, y = float, x\nreturn {right}"
    keys = f'cases = 24\ndtypes = ["{dtype}"]'
    return Op(takes, body, reference, schema, keys, verdict=verdict)


for _dtype in ("float32", "float16", "bfloat16"):
    BRANCHES |= {
        f"slopes_{_dtype}": rounding(SLOPES.replace(">", ">="), SLOPES, dtype=_dtype),
        f"exp_below_{_dtype}": rounding(
            "np.where(y <= -30.5, f(1) / 3, np.exp(np.minimum(y, f(5))))",
            "np.where(y < -30.5, 1 / 3, np.exp(np.minimum(y, 5)))", dtype=_dtype,
        ),
        f"summed_{_dtype}": rounding(
            f"{SLOPES.replace('>', '>=')}.sum(1)", f"{SLOPES}.sum(1)", dtype=_dtype,
            schema=STEP_AT.replace('output = ["M", "N"]', 'output = ["M"]'),
        ),
        f"right_slopes_{_dtype}": rounding(SLOPES, SLOPES, "passed", dtype=_dtype),
        f"right_exp2_{_dtype}": rounding(
            "np.where(y > 20, y, np.exp2(np.minimum(y, f(20)) * f(1.442695041)))",
            "np.where(y > 20, y, np.exp(np.minimum(y, 20)))", "passed", dtype=_dtype,
        ),
    }  # fmt: skip
BRANCHES |= {
    "slopes_at_one": rounding("np.where(y >= 1, y / f(3), y / f(7))", "np.where(y > 1, y/3, y/7)"),
    "slopes_at_a_scalar": rounding(
        SLOPES.replace("> 20", ">= at"), SLOPES.replace("20", "at"), schema=THRESHOLD
    ),
    "right_at_a_scalar": rounding(
        SLOPES.replace("20", "at"), SLOPES.replace("20", "at"), "passed", schema=THRESHOLD
    ),
    "right_rounded_constant": rounding(
        SLOPES.replace("> 20", "> f(20.1)"), SLOPES.replace("20", "20.1"), "passed"
    ),
    "right_exp_of_clip": rounding(
        "np.exp2(np.minimum(y, f(20)) * f(1.442695041))", "np.exp(np.minimum(y, 20))", "passed"
    ),
}

CACHE = (
    "dims = { B = [1, 4], T = { min = 1, max = 65 }, D = [8] }\n"
    'inputs.x = { dims = ["B", "T", "D"], unused = "T >= lens", nonfinite = false }\n'
    'inputs.lens = { dims = ["B"], dtype = "int32", kind = "lengths", to = "T" }\n'
    'output = ["B", "D"]'
)
BEYOND = "m = (np.arange(x.shape[1]) < lens[:, None])[..., None]\n"


def cached(body: str, right: str, verdict: str = "failed") -> Op:
    """An op over the used part of a cache."""
    return Op("x, lens", BEYOND + body, BEYOND + right, CACHE, "cases = 24", verdict=verdict)


SUMMED = "return np.where(m, x, 0).sum(1)"
UNUSED = {
    "weights_of_zero": cached("return (x * m).sum(1)", SUMMED),
    "whole_tiles_of_four": cached(
        "p = (np.arange(x.shape[1]) < (lens[:, None] + 3) // 4 * 4)[..., None]\n"
        "return np.where(p, x, 0).sum(1) * 1",
        SUMMED,
    ),
    "largest_of_the_padded": cached(
        "return np.where(m, x, x * 0 - np.float32(1e30)).max(1)",
        "return np.where(m, x, -1e30).max(1)",
    ),
    "first_beyond": cached(
        "p = (np.arange(x.shape[1]) <= lens[:, None])[..., None]\n"
        "return np.where(m, x, np.where(p, x * 0, 0)).sum(1)",
        SUMMED,
    ),
    "never_touched": cached("return np.where(m, x, 0).sum(1)", SUMMED, "passed"),
}

POOL = """
dims = { B = [1, 3], P = [13], M = [4], PAGE = [8], D = [4] }
inputs.x = { dims = ["P", "PAGE", "D"], unused = "PAGE >= lens in tab", nonfinite = false }
inputs.tab = { dims = ["B", "M"], dtype = "int32", kind = "indices", of = "x" }
inputs.lens = { dims = ["B"], dtype = "int32", kind = "lengths", to = "M*PAGE" }
output = ["B", "D"]
"""
PAGES = """
out = np.zeros((len(lens), 4), x.dtype)
for b, n in enumerate(lens):
    r = x[tab[b, : -(-n // 8)]].reshape(-1, 4)
    out[b] = """


def paged(expression: str, verdict: str = "failed", schema: str = POOL, before: str = "") -> Op:
    """A sum over the rows of a paged cache; r holds whole pages, of which n rows are in use."""
    op, right = (f"{before}{PAGES}{e}\nreturn out" for e in (expression, "r[:n].sum(0)"))
    return Op("x, tab, lens", op, right, schema, "cases = 24", verdict=verdict)


UNUSED |= {
    "paged_weights_of_zero": paged("(r * (np.arange(len(r)) < n)[:, None]).sum(0)"),
    "paged_one_beyond": paged("r[:n].sum(0) + (0 * r[n : n + 1]).sum(0)"),
    "paged_pages_of_no_use": paged("r[:n].sum(0) + 0 * x[tab[b, -1]].sum(0)"),
    "paged_page_that_none_names": paged("r[:n].sum(0) + 0 * x.sum((0, 1))"),
    "paged_rows_last": paged(
        "(r * (np.arange(len(r)) < n)[:, None]).sum(0)",
        schema=POOL.replace('"P", "PAGE", "D"', '"P", "D", "PAGE"'),
        before="x = x.transpose(0, 2, 1)",
    ),
    "paged_right": paged("r[:n].sum(0)", "passed"),
    "paged_right_by_two": paged("r[:n:2].sum(0) + r[1:n:2].sum(0)", "passed"),
}
OPS = {**IN_PLACE, **RAGGED, **LAST_TILE, **GROWTH, **LEANING, **BRANCHES, **UNUSED}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_once(tmp_path_factory, "wrong-kernels", OPS, "cases = 24")


@pytest.mark.parametrize("name", OPS)
def test_wrong_kernels_fail_and_right_ones_pass(name: str, ran: Ran) -> None:
    ran.check(name, OPS[name])
    if name in UNUSED:
        said = [note for failure in ran.failures.get(name, []) for note in failure["notes"]]
        assert not any("ignore" in note for note in said), "no hint that would hide it"
        assert not said or any("`unused` says no op uses" in note for note in said), said
    if name in LEANING and OPS[name].verdict == "failed":
        (result,) = ran.results[name]
        assert result["failed"] or "ulp on average" in result["reason"], result


@pytest.mark.ci
@pytest.mark.parametrize("name", ["quotient_1.00001", "long_table_1.00001", "state_changed_always"])
def test_no_tolerance_is_suggested_for_an_op_that_is_wrong_in_every_case(
    name: str, ran: Ran
) -> None:
    code = 0 if name == "state_changed_always" else 3  # which is right wherever it trains
    said = ran.mini.command("calibrate", name, "-n", "20", code=code)
    assert ("is wrong in all" in said.stderr) == bool(code), said


KERNEL = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 o, .param .u32 n) {{
  .reg .pred %p<4>; .reg .b32 %r<6>; .reg .b64 %d<6>; .reg .f32 %f<6>;
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.s32 %r3, %r1, 64, %r2;
  ld.param.u32 %r4, [n]; setp.ge.s32 %p1, %r3, %r4; @%p1 ret;
  ld.param.u64 %d1, [x]; ld.param.u64 %d2, [o];
  cvta.to.global.u64 %d1, %d1; cvta.to.global.u64 %d2, %d2;
  mul.wide.s32 %d3, %r3, 4; add.s64 %d1, %d1, %d3; add.s64 %d2, %d2, %d3;
  ld.global.f32 %f1, [%d1]; div.rn.f32 %f2, %f1, 0f40400000;
  {body}
  st.global.f32 [%d2], %f2; ret;
}}
"""
SOURCE = """
extern "C" __global__ void k(const float *x, float *o, int n) {{
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n) o[i] = {body};
}}
"""
IN_KERNELS = {
    # 0f41A00000 is 20, 0f41A80000 is 21; no other file has these numbers.
    "compared.ptx": "setp.gt.f32 %p2, %f1, 0f41A00000; setp.lt.and.f32 %p3, %f1, 0f41A80000, %p2;"
    " selp.f32 %f2, 0f00000000, %f2, %p3;",
    "moved.ptx": "mov.f32 %f3, 0f41A00000; setp.eq.f32 %p2, %f1, %f3;"
    " selp.f32 %f2, 0f00000000, %f2, %p2;",
    "limited.ptx": "min.f32 %f3, %f1, 0f41A80000; setp.gt.f32 %p2, %f1, 0f42200000;"
    " selp.f32 %f3, %f1, %f3, %p2; div.rn.f32 %f2, %f3, 0f40400000;",
    "right.ptx": "setp.gt.f32 %p2, %f1, 0f41A00000; selp.f32 %f2, %f2, %f2, %p2;",
    "window.cu": "x[i] > 20.5f && x[i] < 21.5f ? 0.0f : x[i] / 3.0f",
    "point.cu": "x[i] == 20.5f ? 0.0f : x[i] / 3.0f",
    "limited.cu": "x[i] > 40.0f ? x[i] / 3.0f : fminf(x[i], 39.5f) / 3.0f",
    "right.cu": "x[i] > 20.5f ? x[i] / 3.0f : x[i] / 3.0f",
}


@pytest.mark.ci
def test_constants_of_kernels_are_values_too(tmp_path: Path) -> None:
    mini, tables = Mini(tmp_path), []
    built = isinstance(find_tools().first("nvcc"), Tool)
    kept = [name for name in IN_KERNELS if built or name.endswith("ptx")]
    for name in kept:
        ending = name.rpartition(".")[2]
        mini.write(name, (KERNEL if ending == "ptx" else SOURCE).format(body=IN_KERNELS[name]))
        tables.append(
            f'[[ops]]\nname = "{name.replace(".", "_")}"\nreference = "ref.py:third"\n'
            f'op = {{ kind = "{ending.replace("cu", "cuda")}", file = "{name}", entry = "k",'
            ' grid = ["cdiv(M*N,64)"], block = [64], args = ["x", "out", { i32 = "M*N" }],'
            ' outputs = { out = ["M", "N"] } }\n'
            f"[ops.schema]\n{STEP_AT}\n"
        )
    mini.write("ref.py", "def third(x):\n    return x / 3\n")
    head = '[project]\nname = "kernels"\n[validation]\ncause_budget = 0\ncases = 24\n'
    mini.write("gpuemu.toml", head + "\n".join(tables))
    report = mini.run(code=None)
    verdicts = {r["op"].replace("_", "."): r["verdict"] for r in report["results"]}
    assert verdicts == {n: "passed" if "right" in n else "failed" for n in kept}
