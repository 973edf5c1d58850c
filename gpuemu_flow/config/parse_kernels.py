"""Convert the checked keys of ``[[kernels]]``, and connect kernels with the ops that use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.config.check import INVALID, decoded, values_of
from gpuemu_flow.config.model import Allow, KernelConfig, TritonKernel
from gpuemu_flow.config.model_ops import OpConfig, ProgramRef
from gpuemu_flow.config.parse_ops import unique_names
from gpuemu_flow.config.parse_sections import partial_tolerances
from gpuemu_flow.config.paths import WorkspacePaths
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.presence import ExpectedFiles
from gpuemu_flow.config.programs import Programs
from gpuemu_flow.config.report import Reporter, dotted, shown
from gpuemu_flow.config.tables_ops import ArtifactChecks, Build, KernelTable
from gpuemu_flow.model.types import INVARIANTS, Json
from gpuemu_flow.numerics.contract import resolve

SOURCES = (".cu", ".ptx", ".cubin")

Table = Mapping[str, Json]


class KernelParser(Struct):
    """Parses the kernels that one file defines."""

    workspace: WorkspacePaths
    out: Reporter
    # The table ``[validation]``, which contains default tolerances.
    shared_table: Table
    # The location of each kernel in the files parsed so far, by the kernel's name.
    names: dict[str, str] = {}
    _globs: list[tuple[str, KeyPath]] = []

    def parse_all(self, items: list[Json]) -> list[KernelConfig]:
        """Return all kernels that have a name; report every problem found in them."""
        unique_names(items, "kernels", self.out, self.names)
        return [
            self.parse(table, ("kernels", place))
            for place, table in enumerate(items)
            if table is not INVALID and "name" in table
        ]

    def warn_of_unmatched(self, presence: ExpectedFiles) -> None:
        """Warn of globs of ``build.inputs`` that match no file. Call it after `parse_all`."""
        for pattern, place in self._globs:
            presence.warn_of_none(pattern, place, self.out)

    def parse(self, table: Table, where: KeyPath) -> KernelConfig:
        values = values_of(KernelTable, table)
        build = self.build(table, where)
        source = self.source(table, where)
        made = bool(source or build.command)
        ptx, cubin = (self.artifact(table, kind, where, made=made) for kind in ("ptx", "cubin"))
        triton = self.triton(table, where)
        requested = values["invariants"]
        if isinstance(requested, dict):
            requested = [name for name, wanted in requested.items() if wanted]
        named = any(key in table for key in ("source", "ptx", "cubin", "triton"))
        own = partial_tolerances(table.get("tolerances", {}))
        below = partial_tolerances(self.shared_table.get("tolerances", {}))
        limits = table.get("artifact_checks", {})
        return KernelConfig(
            name=table["name"],
            file=self.out.file,
            line=self.out.line(where),
            source=source,
            ptx=ptx,
            cubin=cubin,
            reference=values["reference"] or "",
            tolerances={dtype: resolve(dtype, None, below, kernel_tolerances=own) for dtype in own},
            invariants=tuple(name for name in INVARIANTS if name in requested),
            checks=decoded(ArtifactChecks, limits, given=frozenset(limits)),
            build=build,
            triton=triton,
            threads_per_block=values["threads_per_block"],
            dynamic_shared_memory=values["dynamic_shared_memory"],
            allow=self.allow(values["allow"], where),
            skip_reason="" if named else "the kernel names no source, ptx, cubin or triton kernel",
        )

    def source(self, table: Table, where: KeyPath) -> Path | None:
        if "source" not in table:
            return None
        here = (*where, "source")
        path = self.workspace.existing_file(table["source"], here, self.out)
        # The user's own build command may compile any type of file.
        free = "command" in table.get("build", {}) or "triton" in table
        if path is not None and path.suffix not in SOURCES and not free:
            text = f"{dotted(here)} = {shown(table['source'])} is no .cu, .ptx or .cubin file"
            self.out.add("config-value", here, text, "or give build.command")
        return path

    def artifact(self, table: Table, kind: str, where: KeyPath, *, made: bool) -> Path | None:
        """Return the path of a PTX or cubin file, which must exist unless a build makes it."""
        if kind not in table:
            return None
        find = self.workspace.resolve if made else self.workspace.existing_file
        return find(table[kind], (*where, kind), self.out)

    def build(self, table: Table, where: KeyPath) -> Build:
        found = decoded(Build, table.get("build", {}))
        if found.command and not ("ptx" in table or "cubin" in table):
            text = "build.command needs ptx or cubin: the file that it makes"
            self.out.add("config-missing-key", (*where, "build", "command"), text)
        here = (*where, "build", "inputs")
        if found.inputs is not None and not found.command:
            text = f"{dotted(here)} has no effect"
            hint = "it says what build.command reads: compilers' inputs are found without it"
            self.out.add("config-unread-key", here, text, hint)
        globs = self.workspace.globs(found.inputs or (), here, self.out)
        self._globs += globs.items()
        arches = map(_architecture, (*found.arch, *table.get("arch", ())))
        return replace(
            found,
            arch=tuple(dict.fromkeys(arches)),
            inputs=None if found.inputs is None else tuple(globs),
        )

    def triton(self, table: Table, where: KeyPath) -> TritonKernel | None:
        if "triton" not in table:
            for name in ("signature", "constants", "num_warps", "num_stages"):
                if table.get(name):
                    place = (*where, name)
                    text = f"{dotted(place)} has no effect"
                    hint = "it applies to Triton kernels only: add `triton`, or remove it"
                    self.out.add("config-unread-key", place, text, hint)
            return None
        here = (*where, "triton")
        name, colon, kernel = table["triton"].rpartition(":")
        if not colon:
            text = f"{dotted(here)} = {shown(table['triton'])} names no kernel"
            self.out.add("config-value", here, text, "write path.py:kernel")
            return None
        programs = Programs(self.workspace, self.out)
        found = programs.function_of_file(name, kernel, here, table["triton"])
        if found is None or found.path is None:
            return None
        return TritonKernel(
            path=found.path,
            kernel=kernel,
            signature=table.get("signature", {}),
            constants=table.get("constants", {}),
            num_warps=table.get("num_warps"),
            num_stages=table.get("num_stages"),
        )

    def allow(self, given: Json, where: KeyPath) -> tuple[Allow, ...]:
        """Parse ``allow``, written as ``rule = "reason"`` or as a list of ``{ rule, reason }``."""
        if isinstance(given, dict):
            lines = (self.out.line((*where, "allow", rule)) for rule in given)
            return tuple(
                Allow(*pair, line) for pair, line in zip(given.items(), lines, strict=True)
            )
        return tuple(
            Allow(entry["rule"], entry["reason"], self.out.line((*where, "allow", place)))
            for place, entry in enumerate(given)
            if "rule" in entry and "reason" in entry
        )


def _architecture(name: str) -> str:
    """Convert an architecture written as ``80``, ``compute_80`` or ``sm_80`` to ``sm_80``."""
    return "sm_" + name.rpartition("_")[2]


# Connect ops of kind ``cuda`` with the kernels whose builds make their PTX.


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
