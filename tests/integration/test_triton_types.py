"""Triton's compiler as witness: values in the interpreter have the types that it gives them."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest
from whole import sample

pytestmark = pytest.mark.ci

torch = pytest.importorskip("torch", reason="no torch")
pytest.importorskip("triton", reason="no triton")

from triton._C.libtriton import ir  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler.compiler import ASTSource, make_backend  # noqa: E402

from gpuemu_flow.frameworks import triton as triton_cpu  # noqa: E402

ARGUMENTS: dict[str, tuple[str, Any]] = {
    "scale": ("fp32", 0.9999),
    "n": ("i32", 7),
    "big": ("i64", 1 << 40),
    "huge": ("u64", (1 << 63) + 5),
    "one": ("constexpr", 1),
    "flag": ("u1", True),
    "none": ("constexpr", None),
}
"""Scalar arguments: the type that specialisation gives, and a value."""
DTYPES = {
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "i8": "int8",
    "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u32": "uint32",
}  # fmt: skip
POINTERS = tuple(DTYPES)
EXPRESSIONS = """
scale; n; big; huge; one; flag; scale * 2; n + 1; n * 0.5; flag + n; big + n; n / 2; n // 2
n % 3; fp16 * scale; fp16 * 0.001; fp16 * 2; bf16 * scale; bf16 * 0.5; fp32 * scale
fp64 * scale; (fp16 * scale) * 0.001; fp16 * (1.0 - scale); fp16 + n; fp16 + one; fp16 / 3
bf16 / bf16; fp32 / n; i8 + 1; i8 + one; i8 + n; i8 * i8; i16 + i8; i32 + i64; u8 + i8; u8 + u8
u32 + i32; i8 + 0.5; i32 / i32; i32 // n; i32 % 3; i64 // 2; i8 / 2; u32 % 5; -i8; ~i32; i8 << 1
i32 >> 1; i32 & 1; fp16 + fp32; fp16 + bf16; bf16 + i32; fp16 > 0; i32 == n; fp32 < scale
flag & (n > 3); tl.where(fp16 > 0, fp16, 0.0); tl.where(fp16 > 0, fp16, scale)
tl.where(i32 > 0, i8, 0); tl.where(flag, fp16, bf16); tl.maximum(fp16, 0.0)
tl.maximum(fp16, scale); tl.minimum(i8, n); tl.maximum(bf16, 0.0); tl.sum(fp16, 0)
tl.sum(bf16, 0); tl.sum(i8, 0); tl.sum(u8, 0); tl.sum(i32, 0); tl.sum(i32 > 0, 0)
tl.max(fp16, 0); tl.max(bf16, 0); tl.max(i8, 0); tl.argmax(fp32, 0); tl.cumsum(fp16, 0)
tl.cumsum(i8, 0); tl.exp(fp32); tl.exp(fp64); tl.abs(fp16); tl.sqrt(fp32); tl.cdiv(n, 4)
tl.cdiv(big, 4); min(n, 3); max(n, big); n if flag else 3; scale if flag else 0.0; not flag
n > 3 and flag; (fp16 > 0) and (fp32 > 0); flag or n > 3; i; i + 1; i * 2.0; j + i8; j * big
total; count; pair[0]; fp16.to(tl.float32); fp32.to(tl.int8); scale.to(tl.float64)
tl.fma(fp32, fp32, 1.0); tl.full((4,), 1, tl.int8) + n; tl.zeros((4,), tl.float16) + 1.5
tl.arange(0, 4) * 2; tl.program_id(0); fp32 * tl.math.rsqrt(fp32); tl.dot(tile, tile)
tl.dot(tile, tile, out_dtype=tl.float16); tl.sigmoid(fp32); tl.clamp(fp32, -1.0, 1.0)
tl.softmax(fp32); tl.load(p_i8, mask=flag, other=0); fp16.sum(0); i8.max(0)
"""
LINES = [e.strip() for line in EXPRESSIONS.strip().splitlines() for e in line.split(";")]


def kernel(shown: str, lines: list[str] = LINES) -> str:
    """A kernel with every kind of value in it, which hands each expression to `shown`."""
    arguments = ", ".join([*(f"p_{name}" for name in POINTERS), *ARGUMENTS])
    loads = "\n".join(f"    {n} = tl.load(p_{n} + tl.arange(0, 4))" for n in POINTERS)
    shows = "\n".join(
        f"        {shown.format(index=index, expression=line)}" for index, line in enumerate(lines)
    )
    return f"""
import torch
import triton
import triton.language as tl


@triton.jit
def every({arguments}):
{loads}
    tile = tl.zeros((16, 16), tl.float16)
    total = 0.0
    count = 1
    pair = (1, 2.0)
    for i in range(0, n):
        j = i
{shows}
"""


def first_form(folder: Path, source_text: str) -> None:
    """Make the first form of a kernel's code, as for a GPU; raises what the compiler says of it."""
    path = folder / "compiled.py"
    path.write_text(source_text)
    spec = importlib.util.spec_from_file_location("compiled_types", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    signature = {
        **{f"p_{n}": f"*{n}" for n in POINTERS},
        **{n: t for n, (t, _) in ARGUMENTS.items()},
    }
    constants = {(n,): v for n, (t, v) in ARGUMENTS.items() if t == "constexpr"}
    constants = {(list(signature).index(n),): v for (n,), v in constants.items()}
    source = ASTSource(module.every, signature, constants, {})
    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    source.make_ir(target, options, functions, backend.get_module_map(), context)


def arguments() -> list[Any]:
    """Arguments of the kernel: four elements at each pointer."""
    made = [torch.ones(4, dtype=getattr(torch, DTYPES[name])) for name in POINTERS]
    return [*made, *(value for _, value in ARGUMENTS.values())]


def interpreted(folder: Path, source_text: str) -> list[tuple[int, str, str]]:
    """List the calls of `seen` in the kernel: index, type, dtype of the array that holds the
    value."""
    names = ", ".join(f"a{index}" for index in range(len(arguments())))
    host = f"""

found = []


def seen(index, value):
    value = tl.to_tensor(value)
    found.append((index, str(value.dtype), str(value.handle.data.dtype)))


def run({names}):
    found.clear()
    every[(1,)]({names})
    return list(found)
"""
    path = folder / "interpreted.py"
    path.write_text(source_text + host)
    found: list[tuple[int, str, str]] = triton_cpu.load(f"{path}:run").run(*arguments())[0]
    return found


HELD = {"int1": "bool", "bf16": "uint16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}


def test_every_expression_has_the_type_that_the_compiler_gives(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first_form(
            tmp_path, kernel('tl.static_print("TYPE", {index}, tl.to_tensor({expression}).dtype)')
        )
    expected = printed(capfd.readouterr().out)
    assert sorted(expected) == list(range(len(LINES)))
    found = interpreted(tmp_path, kernel("seen({index}, {expression})"))
    differing = {LINES[i]: (kind, expected[i]) for i, kind, _ in found if kind != expected[i]}
    assert differing == {}
    wrong = {LINES[i]: (kind, held) for i, kind, held in found if held != HELD.get(kind, kind)}
    assert wrong == {}
    assert {index for index, _, _ in found} == set(expected)


REFUSED = [
    "tl.exp(fp16)", "tl.sqrt(bf16)", "tl.sin(i32)", "i32 // u32", "i32 % u32", "fp32 & 1",
    "u8 + (-1)", "i8 + 1000", "p_fp32 + 0.5", "p_fp32 * 2", "tl.arange(0, 3)", "fp32 // 2",
    "tl.dot(tl.zeros((16, 8), tl.float16), tl.zeros((8, 16), tl.float16))",
    "tl.dot(tile, tl.zeros((16, 16), tl.float32))", "fp32 @ fp32", "tl.load(fp32)",
    "tl.zeros((3,), tl.float32)", "tl.full((4,), 1.0, tl.float32) + tl.zeros((8,), tl.float32)",
    "fp16 + undefined_name", "tl.libdevice_of_no_name(fp32)",
]  # fmt: skip


@pytest.mark.parametrize("expression", sample(REFUSED, 2))
def test_what_the_compiler_refuses_is_an_error_here(expression: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r".") as compiled:
        first_form(tmp_path, kernel("held = {expression}", [expression]))
    assert type(compiled.value).__module__ == "triton.compiler.errors"
    with pytest.raises(Exception, match=r"."):
        interpreted(tmp_path, kernel("held = {expression}", [expression]))


def printed(text: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "TYPE":
            index, _, kind = rest.partition(" ")
            found.setdefault(int(index), kind)
    return found
