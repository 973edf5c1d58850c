"""Correct the line numbers in cached findings, which are wrong after comments were edited.

Such an edit moves lines of code, but no op is run again because of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.lint.ptx.model import plain_ptx
from gpuemu_flow.lint.ptx.parser import read_body, read_ptx
from gpuemu_flow.model.types import CheckResult, CodePlace, Failure
from gpuemu_flow.store.cache import artifact_path
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import CodeParams, TaskSpec, params_of

if TYPE_CHECKING:
    from gpuemu_flow.lint.ptx.model import PlainPtx


Lines = Mapping[int, tuple[str, int]]
"""File and line of the source, by the line of the PTX."""


class Relocator:
    """Updates the line numbers of findings in compiled kernels to those of the last build."""

    def __init__(self, workspace: Workspace) -> None:
        self._folder = workspace.cache.folder
        self._root = f"{workspace.root}/"
        self._tasks = workspace.graph.tasks

    def __call__(self, compare: TaskSpec, result: CheckResult) -> CheckResult:
        """Return a case's result, with the present line numbers in its findings."""
        if not any(failure.finding is not None for failure in result.failures):
            return result
        path = self._ptx_of(compare)
        if path is None:
            return result
        moved = tuple(self._moved(failure, path) for failure in result.failures)
        return replace(result, failures=moved)

    def _ptx_of(self, compare: TaskSpec) -> Path | None:
        for op in (s.task for s in compare.inputs if s.role == stages.OP):
            for code in (s.task for s in self._tasks[op].inputs if s.role == stages.CODE):
                spec = self._tasks[code]
                arch = params_of(CodeParams, spec.params).arch
                return artifact_path(self._folder, spec.subject, arch, "ptx")
        return None

    def _moved(self, failure: Failure, path: Path) -> Failure:
        if failure.finding is None:
            return failure
        try:
            plain, lines = _read(path, path.stat().st_mtime_ns)
        except OSError:
            return failure

        def now(place: CodePlace) -> CodePlace:
            file, line = lines.get(plain.line(place.code), (place.file, place.line))
            if file.startswith("/"):
                file = os.path.normpath(file)  # nvcc leaves .. in it
            return replace(place, file=file.removeprefix(self._root), line=line)

        return Failure.of_kernel(failure.kind, failure.finding.moved(now))


@lru_cache(maxsize=8)
def _read(path: Path, _changed: int) -> tuple[PlainPtx, Lines]:
    data = path.read_bytes()
    lines: dict[int, tuple[str, int]] = {}
    for function in read_ptx(data, str(path)).functions():
        module, body = function.module, read_body(function)
        for instruction in body.instructions:
            place = body.location_of(instruction)
            if place is not None:
                file = module.files.get(place.file, "")
                lines[module.source.line_of(instruction.offset)] = (file, place.line)
    return plain_ptx(data), lines
