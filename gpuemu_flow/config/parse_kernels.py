"""Convert the checked keys of ``[[kernels]]`` to `KernelConfig` objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from gpuemu_flow.config.model_kernels import (
    Allow,
    ArtifactChecks,
    Build,
    KernelConfig,
    TritonKernel,
)
from gpuemu_flow.config.parse_ops import unique_names
from gpuemu_flow.config.parse_sections import partial_tolerances
from gpuemu_flow.config.paths import WorkspacePaths
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.presence import ExpectedFiles
from gpuemu_flow.config.programs import Programs
from gpuemu_flow.config.report import Reporter, dotted, shown
from gpuemu_flow.config.tables_kernels import ARTIFACT_CHECKS, BUILD, KERNEL
from gpuemu_flow.config.values import INVALID
from gpuemu_flow.numerics.contract import resolve
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import INVARIANTS, Json

SOURCES = (".cu", ".ptx", ".cubin")

Table = Mapping[str, Json]


@dataclass
class KernelParser:
    """Parses the kernels that one file defines.

    Attributes
    ----------
    workspace : WorkspacePaths
    out : Reporter
    shared_table : mapping
        The table ``[validation]``, which contains default tolerances.
    names : dict of str to str
        The location of each kernel in the files parsed so far, by the kernel's name.
    """

    workspace: WorkspacePaths
    out: Reporter
    shared_table: Table
    names: dict[str, str] = field(default_factory=dict)
    _globs: list[tuple[str, KeyPath]] = field(default_factory=list)

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
        values = KERNEL.values(table)
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
        return KernelConfig(
            name=table["name"],
            file=self.out.file,
            line=self.out.line(where),
            source=source,
            ptx=ptx,
            cubin=cubin,
            reference=values["reference"],
            tolerances={dtype: resolve(dtype, None, below, kernel_tolerances=own) for dtype in own},
            invariants=tuple(name for name in INVARIANTS if name in requested),
            checks=_checks(table.get("artifact_checks", {})),
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
        values = BUILD.values(table.get("build", {}))
        arches: list[str] = []
        for given in (values["arch"], table.get("arch", [])):
            arches += [given] if isinstance(given, str) else given
        if values["command"] and not ("ptx" in table or "cubin" in table):
            text = "build.command needs ptx or cubin: the file that it makes"
            self.out.add("config-missing-key", (*where, "build", "command"), text)
        here = (*where, "build", "inputs")
        if values["inputs"] is not None and not values["command"]:
            text = f"{dotted(here)} has no effect"
            hint = "it says what build.command reads: compilers' inputs are found without it"
            self.out.add("config-unread-key", here, text, hint)
        globs = self.workspace.globs(values["inputs"] or (), here, self.out)
        self._globs += globs.items()
        return Build(
            arch=tuple(dict.fromkeys(_architecture(name) for name in arches)),
            flags=tuple(values["flags"]),
            command=tuple(values["command"]),
            inputs=None if values["inputs"] is None else tuple(globs),
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


def no_checks() -> ArtifactChecks:
    """Return the default limits of a kernel."""
    return _checks({})


def _checks(table: Table) -> ArtifactChecks:
    values = ARTIFACT_CHECKS.values(table)
    for name in ("forbidden_instructions", "required_patterns"):
        values[name] = tuple(values[name])
    return ArtifactChecks(**values, given=frozenset(table))
