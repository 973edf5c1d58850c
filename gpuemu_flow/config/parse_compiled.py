"""Connect ops of kind ``cuda`` with the kernels whose builds make their PTX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from gpuemu_flow.config.model_kernels import KernelConfig
from gpuemu_flow.config.model_ops import OpConfig, ProgramRef
from gpuemu_flow.config.report import Reporter, shown
from gpuemu_flow.config.tables_ops import ArtifactChecks, Build

CUDA = "cuda"


def join_kernels(
    ops: Sequence[OpConfig],
    kernels: Sequence[KernelConfig],
    reporters: Mapping[str, Reporter],
    out: Reporter,
) -> tuple[list[OpConfig], list[KernelConfig]]:
    """Assign to each op of kind ``cuda`` the kernel whose build makes its PTX.

    If an op names its ``.cu`` file itself, a kernel with the op's name is added. It is built and
    linted like the kernels of ``[[kernels]]``.

    Parameters
    ----------
    ops, kernels : sequences
    reporters : mapping of str to Reporter
        The reporter of each file with ops; it gets the problems of ops whose kernel does not exist.
    out : Reporter
        The reporter for all other problems.

    Returns
    -------
    tuple
        The ops and all kernels.
    """
    joiner = _Joiner({kernel.name: kernel for kernel in kernels})
    joined = []
    for op in ops:
        teller = reporters.get(op.file, out)
        program = None if op.op is None else joiner.join(op.op, op.name, teller)
        reference = joiner.join(op.reference, f"{op.name}.reference", teller)
        joined.append(replace(op, op=program, reference=reference))
    return joined, list(joiner.kernels.values())


class _Joiner:
    def __init__(self, kernels: dict[str, KernelConfig]) -> None:
        self.kernels = kernels

    def join(self, program: ProgramRef, name: str, out: Reporter) -> ProgramRef:
        if program.kind != CUDA:
            return program
        if program.kernel:
            self._named(program, out)
            kernel = self.kernels.get(program.kernel)
            path = None if kernel is None else kernel.source
            return replace(program, path=path, files=() if path is None else (path,))
        known = self.kernels.get(name)
        if known is None:
            self.kernels[name] = _own_kernel(program, name)
        elif not _alike(known, program):
            text = f"the op {shown(name)} and a kernel of that name are compiled differently"
            hint = f'write kernel = "{name}" in place of file, or rename one'
            out.problem_at("config-conflict", program.line, text, hint)
        return replace(program, kernel=name)

    def _named(self, program: ProgramRef, out: Reporter) -> None:
        kernel = self.kernels.get(program.kernel)
        if kernel is None:
            text = f"there is no kernel {shown(program.kernel)}"
            hint = out.nearest(program.kernel, tuple(self.kernels), or_all=True)
            out.problem_at("unknown-kernel", program.line, text, hint)
        elif kernel.skip_reason:
            text = f"the kernel {shown(program.kernel)} cannot be built: {kernel.skip_reason}"
            out.problem_at("config-conflict", program.line, text)
        elif program.arch and kernel.build.arch and program.arch not in kernel.build.arch:
            text = f"the kernel {shown(program.kernel)} is not built for {program.arch}"
            out.problem_at(
                "config-conflict", program.line, text, f"of {', '.join(kernel.build.arch)}"
            )


def _alike(kernel: KernelConfig, program: ProgramRef) -> bool:
    """Tell whether a kernel's build makes the PTX that the op describes."""
    return (
        kernel.source == program.path
        and kernel.build.flags == program.flags
        and not kernel.build.command
        and (not program.arch or not kernel.build.arch or program.arch in kernel.build.arch)
    )


def _own_kernel(program: ProgramRef, name: str) -> KernelConfig:
    return KernelConfig(
        name=name,
        file=program.file,
        line=program.line,
        source=program.path,
        ptx=None,
        cubin=None,
        reference="",
        tolerances={},
        invariants=(),
        checks=ArtifactChecks(),
        build=Build((program.arch,) if program.arch else (), program.flags, ()),
        triton=None,
        threads_per_block=None,
        dynamic_shared_memory=None,
        allow=(),
        skip_reason="",
    )
