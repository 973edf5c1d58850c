"""List the files that an op may not read: its reference, the reference's imports, this tool's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuemu_flow.build.globs import glob_files
from gpuemu_flow.build.sources import SourceIndex
from gpuemu_flow.config.model import ConfigFile, OpConfig, ProgramRef
from gpuemu_flow.model.types import Json
from gpuemu_flow.workers.sandbox.fence import Fence, OffLimits, off_limits
from gpuemu_flow.workers.sandbox.spec import OFF


class ForbiddenFiles:
    """Lists the files of one workspace that its ops may not read or write."""

    def __init__(
        self, root: Path, cache: Path, config: Iterable[ConfigFile], sources: SourceIndex
    ) -> None:
        self._root = root
        self._cache = cache
        self._config = [file.path for file in config]
        self._sources = sources

    def off_limits(self, op: OpConfig, program: ProgramRef, *beside: ProgramRef) -> OffLimits:
        """List the files that the op's process must not touch."""
        judges, made_of = self._judges(op)
        alone = (self._root / path for path in self._alone(op, program, *beside))
        sources = (*(self._root / path for path in made_of), *self._config)
        return off_limits(
            program.files, (*judges, *alone), sources, cache=self._cache, root=self._root
        )

    def key(
        self, fence: Fence, op: OpConfig, program: ProgramRef, off_limits: OffLimits
    ) -> dict[str, Json]:
        """Return the sandbox's properties, as a part of the op's cache key.

        The key changes if a file that the op could read becomes part of the reference. Results of
        the op that were cached before are then not used.
        """
        key = fence.key()
        if key["level"] == OFF:
            return key
        starts, _ = self._judges(op)
        own = tuple(self.own(op, program))
        shared = fence.shared(own)
        imported = {
            f for start in self._starts(program) for f in self._sources.closure(start).files
        }
        references = {f for f in imported if str(self._root / f) in fence.references}
        others = references.difference(map(self._relative, shared))
        named = map(self._sources.relative, set(starts) - set(self._starts(program)))
        parts = {
            "hidden": sorted({*self._alone(op, program), *named, *others}),
            "own": [self._relative(path) for path in fence.own_apart(off_limits, own)],
            "shared": [self._relative(path) for path in shared],
        }
        return {**key, **{name: paths for name, paths in parts.items() if paths}}

    def _relative(self, path: str) -> str:
        return self._sources.relative(Path(path))

    def known(self, op: OpConfig, program: ProgramRef) -> tuple[str, ...]:
        """List the files of which it is known before a run whether the op may use them.

        These are the files of the op, the reference and the compare functions, the files that these
        import, the files that ``depends`` and ``shared`` name, and the files of the configuration.
        All paths are relative to the workspace, and sorted. The op's permission to use any other
        file depends on the files that the reference is seen to read when it runs.
        """
        _, found = self._judges(op)
        own = self._starts(program)
        starts = [*own, *op.reference.files, *(f for r in op.compares for f in r.files)]
        found.update(f for start in starts for f in self._sources.closure(start).files)
        found.update(map(self._sources.relative, (*self._config, *starts)))
        for pattern in (*op.depends, *op.shared):
            found.update(glob_files(self._root, pattern))
        return tuple(sorted(found))

    def own(self, op: OpConfig, *programs: ProgramRef) -> Iterator[str]:
        """Yield the absolute paths of the files that the configuration names as the op's.

        Files that the op imports are not among them, since an untrusted op could import any file.
        """
        for ref in programs:
            yield from map(str, ref.files)
        for pattern in (*op.depends, *op.shared):
            yield from (str(self._root / path) for path in glob_files(self._root, pattern))

    def _starts(self, program: ProgramRef) -> list[Path]:
        """Return a program's files and, for a module, the ``__init__`` files run on its import."""
        around = self._sources.packages_around(program.module) if program.module else []
        return [*program.files, *around]

    def _judges(self, op: OpConfig) -> tuple[tuple[Path, ...], set[str]]:
        """Return the files of the reference and of other judging functions, and their imports."""
        starts = tuple(start for ref in (op.reference, *op.compares) for start in ref.files)
        return starts, {f for start in starts for f in self._sources.closure(start).files}

    def _alone(self, op: OpConfig, *programs: ProgramRef) -> list[str]:
        """Return the Python files that only the judging functions of an op import, sorted.

        The judging functions are the reference and the functions in `OpConfig.compares`. Three
        kinds of files are left out:

        - the files of the judging functions themselves;
        - files that the settings ``depends`` or ``shared`` name;
        - files that one of the programs imports, unless the program reaches them only by importing
          a judging function.

        If a program is not Python source, its imports are unknown, and the result is empty.
        """
        starts, made_of = self._judges(op)
        own = {start for program in programs for start in self._starts(program)}
        if not all(map(self._sources.can_follow, own)):
            return []
        judges = frozenset(starts) - own
        seen = {f for start in own for f in self._sources.closure(start, without=judges).files}
        for pattern in (*op.depends, *op.shared):
            seen.update(glob_files(self._root, pattern))
        named = {self._sources.relative(start) for start in starts}
        return sorted(path for path in made_of - seen - named if path.endswith(".py"))
