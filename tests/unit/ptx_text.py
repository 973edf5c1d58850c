"""Small PTX modules for tests, and the committed kernels of scripts/kernels."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from gpuemu_flow.lint.analysis import KernelAnalysis
from gpuemu_flow.lint.kernel import KernelPolicy, KernelRecord, KernelView
from gpuemu_flow.lint.measure import Artifact, Linter, measure
from gpuemu_flow.lint.ptx.model import Body, Function, PtxFile
from gpuemu_flow.lint.ptx.parser import read_body, read_ptx

REPOSITORY = Path(__file__).resolve().parent.parent.parent
KERNELS = REPOSITORY / "scripts" / "kernels"
ARCHITECTURES = ("sm_80", "sm_90")
HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"
REGISTERS = """\
.reg .pred %p<16>; .reg .b16 %rs<32>; .reg .b32 %r<64>; .reg .f32 %f<64>;
.reg .f64 %fd<32>; .reg .b64 %rd<32>;
"""


def module(text: str, header: str = HEADER) -> bytes:
    """A module with the given functions."""
    return (header + text).encode()


def entry(body: str, name: str = "k", directives: str = "", parameters: str = "") -> str:
    """An entry with many registers declared."""
    return f".visible .entry {name}({parameters})\n{directives}\n{{\n{REGISTERS}{body}\n}}\n"


def read(text: str | bytes) -> PtxFile:
    """A file that must be without problems."""
    ptx = read_ptx(text if isinstance(text, bytes) else text.encode(), "t.ptx")
    assert ptx.problems == []
    return ptx


def only_function(text: str | bytes) -> Function:
    """The one function of a sound file."""
    (function,) = read(text).functions()
    return function


def only_body(text: str | bytes) -> Body:
    """The body of the one function of a sound file, itself sound."""
    body = read_body(only_function(text))
    assert body.problems == []
    return body


def analysed(body: str, **options: str) -> KernelAnalysis:
    """Analysis of a kernel with this body."""
    return KernelAnalysis(only_function(module(entry(body, **options))))


def view_of(body: str, header: str = HEADER, **options: str) -> KernelView:
    """View of a kernel with this body."""
    (view,) = measure(Artifact("t.ptx", module(entry(body, **options), header))).kernels
    return view


def with_sass(view: KernelView, opcodes: dict[str, int]) -> KernelView:
    """The same view with a listing of its machine instructions."""
    return replace(view, metrics=replace(view.metrics, sass_opcodes=opcodes))


def kernel_views(name: str, arch: str = "sm_80") -> dict[str, KernelView]:
    """Views of the kernels of one committed source, by kernel name."""
    folder = KERNELS / arch
    artifact = Artifact(
        f"{arch}/{name}.ptx",
        (folder / f"{name}.ptx").read_bytes(),
        (folder / f"{name}.cubin").read_bytes(),
    )
    measured = measure(artifact)
    assert measured.problems == []
    return {view.name: view for view in measured.kernels}


def lint(view: KernelView, policy: KernelPolicy | None = None) -> KernelRecord:
    """Lint one view."""
    return Linter(policy or KernelPolicy()).lint(view)


def broken_rules(view: KernelView, policy: KernelPolicy | None = None) -> set[str]:
    """Ids of the rules that a view breaks."""
    return {violation.rule for violation in lint(view, policy).violations}
