"""List the files that an op may not read: its reference, that one's own imports, this tool's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gpuemu_flow.config.model import ConfigFile, OpConfig, ProgramRef
from gpuemu_flow.inputs.globs import glob_files
from gpuemu_flow.inputs.sources import SourceIndex
from gpuemu_flow.runners.off_limits import OffLimits, off_limits
from gpuemu_flow.runners.sandbox.fence import Fence
from gpuemu_flow.runners.sandbox.spec import OFF
from gpuemu_flow.types import Json


class KeptFrom:
    """Lists the files of one workspace that its ops may not read or write.

    Parameters
    ----------
    root, cache : Path
        The workspace, and the tool's folder.
    config : iterable of ConfigFile
        The files of the configuration.
    sources : SourceIndex
    """

    def __init__(
        self, root: Path, cache: Path, config: Iterable[ConfigFile], sources: SourceIndex
    ) -> None:
        self._root = root
        self._cache = cache
        self._config = [file.path for file in config]
        self._sources = sources

    def off_limits(self, op: OpConfig, program: ProgramRef, *beside: ProgramRef) -> OffLimits:
        """List the files that the op's process must not touch.

        Parameters
        ----------
        op : OpConfig
        program : ProgramRef
            The op.
        *beside : ProgramRef
            Functions that run under the same restrictions.
        """
        judges, made_of = self._judges(op)
        return off_limits(
            program,
            replace(op.reference, files=judges),
            [*(self._root / path for path in made_of), *self._config],
            alone=[self._root / path for path in self._alone(op, program, *beside)],
            cache=self._cache,
            root=self._root,
        )

    def key(self, fence: Fence, op: OpConfig, program: ProgramRef) -> dict[str, Json]:
        """Return the part of the sandbox that belongs to the op's key.

        An op's cached result must not be used if the op read a file that only now belongs to the
        reference.
        """
        key = fence.key()
        alone = self._alone(op, program)
        return {**key, "hidden": list(alone)} if alone and key["level"] != OFF else key

    def _judges(self, op: OpConfig) -> tuple[tuple[Path, ...], set[str]]:
        """Return the files and modules of the reference and of other judging functions."""
        starts = tuple(start for ref in (op.reference, *op.compares) for start in ref.files)
        return starts, {f for start in starts for f in self._sources.closure(start).files}

    def _alone(self, op: OpConfig, *programs: ProgramRef) -> list[str]:
        """Return modules that the reference imports but neither the op nor ``shared`` names.

        Imports that the op reaches only through its reference do not count as the op's own. If the
        imports of one of the programs cannot be read, as of an executable, nothing is listed.
        """
        starts, made_of = self._judges(op)
        own = {start for program in programs for start in program.files}
        if not all(map(self._sources.can_follow, own)):
            return []
        judges = frozenset(starts) - own
        seen = {f for start in own for f in self._sources.closure(start, without=judges).files}
        for pattern in (*op.depends, *op.shared):
            seen.update(glob_files(self._root, pattern))
        named = {self._sources.relative(start) for start in starts}
        return sorted(path for path in made_of - seen - named if path.endswith(".py"))
