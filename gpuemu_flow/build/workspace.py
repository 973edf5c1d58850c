"""The present state of a workspace: its graph, compiled if needed, and its stale tasks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.build import snapshot, stamps
from gpuemu_flow.build.discovery import Discovery, ObservedSets
from gpuemu_flow.build.files import (
    ABSENT,
    FileTable,
    Stamp,
    fingerprint,
    glob_files,
    link_target,
    own_code_digest,
)
from gpuemu_flow.build.graph import Graph
from gpuemu_flow.build.snapshot import Basis, Settings, Snapshot
from gpuemu_flow.build.sources import SourceIndex
from gpuemu_flow.build.stamps import Row
from gpuemu_flow.build.states import TaskStates
from gpuemu_flow.config.model import Overrides, samplings
from gpuemu_flow.config.paths import find_config
from gpuemu_flow.model.errors import FlowError, Problem, UsageError
from gpuemu_flow.model.types import Json
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.keys import TRIGGERS, digest_bytes
from gpuemu_flow.workers.sandbox.fence import level_for

if TYPE_CHECKING:
    from gpuemu_flow.config.model import Config
    from gpuemu_flow.store.remote_cache import CacheAccess
    from gpuemu_flow.tasks.base import StageContext


class Workspace:
    """A workspace with its graph. Raises UsageError: ``config-not-found``. Raises ConfigError:
    Lists all errors of the configuration."""

    def __init__(
        self,
        start: Path | None = None,
        *,
        overrides: Overrides | None = None,
        environ: Mapping[str, str] = os.environ,
        copied: bool = False,
    ) -> None:
        self._copied = copied
        self._environ = dict(environ)  # looked through often; ``os.environ`` decodes each time
        self._overrides = overrides or Overrides()
        self.config_path = find_config(start or Path.cwd(), environ)
        self.root = self.config_path.parent.resolve()
        self._home = self.cache = WorkspaceCache(self.root / stamps.CACHE_NAME)
        self.identity = stamps.identity(self._environ, str(self._home.folder))
        self._config: Config | None = None
        self._own_folders: tuple[Path, ...] = ()
        self.environment = fingerprint()
        self.watched: dict[str, Stamp | None] = {}
        self.trusted = False  # its code may be run: see `build.session`
        known = snapshot.load(self._home, self.root)
        try:
            if known is not None and not self._names_own_cache(known):
                known = None
            if known is not None and known.settings.cache_dir:
                problems = self.cache.problems
                self.cache = WorkspaceCache(Path(known.settings.cache_dir))
                self.cache.problems += problems
            if known is None or not self._still_holds(known):
                known = self._compile(known)
        except (KeyError, TypeError, ValueError):  # an intact snapshot of another version
            known = self._compile(None)
        self.snapshot = known

    def _names_own_cache(self, known: Snapshot) -> bool:
        """Tell whether a snapshot's cache folder is in the workspace or is the configured folder. A
        snapshot that somebody else wrote could name any folder, which cleaning would then empty."""
        folder = Path(known.settings.cache_dir)
        if not known.settings.cache_dir or Path(os.path.normpath(folder)).is_relative_to(self.root):
            return True
        return folder == self.config.cache.dir

    @property
    def overrides(self) -> Overrides:
        """Return the changes that the command line makes to the configuration."""
        return self._overrides

    @property
    def settled_overrides(self) -> Overrides:
        """Return `overrides` plus any seed drawn at random, for use in a copy of the workspace."""
        drawn = self.settings.drawn_seed
        if drawn is None:
            return self.overrides
        return replace(self.overrides, draw_seed=False, seed=drawn)

    def in_copy(self, folder: Path) -> Workspace:
        """Open a copy of the workspace in another folder, with the same options. Raises
        ConfigError: Lists all errors of the copy's configuration."""
        environ = {**self._environ, "GPUEMU_CONFIG": str(folder / self.config_path.name)}
        return Workspace(folder, overrides=self.settled_overrides, environ=environ, copied=True)

    @property
    def graph(self) -> Graph:
        return self.snapshot.graph

    @property
    def settings(self) -> Settings:
        return self.snapshot.settings

    @property
    def config(self) -> Config:
        if self._config is None:
            from gpuemu_flow.config.load import load_config  # noqa: PLC0415
            from gpuemu_flow.config.read import ConfigChanges  # noqa: PLC0415

            own = self._overrides
            changes = ConfigChanges(own.profile, own.settings)
            self._config = load_config(
                self.config_path, environ=self._environ, changes=changes, copied=self._copied
            )
        return self._config

    def states(self, triggers: Iterable[str] = TRIGGERS) -> TaskStates:
        """Return the states of the tasks, where only changes of the kinds in `triggers` count."""
        return TaskStates(self.cache, self.snapshot.files, self.environment, triggers, self.inputs)

    @cached_property
    def inputs(self) -> Discovery:
        return self._discovery(self.snapshot.files)

    def keep_out_of_inputs(self, folder: Path) -> None:
        """Exclude one of our own folders, outside of the cache, from observed inputs. Call this
        before `inputs` is used."""
        self._own_folders = (folder,)

    def _discovery(self, files: FileTable) -> Discovery:
        return Discovery(
            files,
            self._environ,
            ignored=(self.cache.folder, self._home.folder, *self._own_folders),
            staging=self.cache.folder / "staging",
        )

    def stale(self, names: set[str], triggers: Iterable[str] = TRIGGERS) -> set[str]:
        """Return the tasks in `names` that may have to run: changed, or downstream of a change.
        `triggers` are the kinds of changes that count, some of `keys.TRIGGERS`."""
        search = StaleSearch(self.snapshot, self.states(triggers), names, set(triggers))
        return search.stale(self.inputs)

    def watch(self, stamps: Mapping[str, Stamp | None]) -> None:
        """Register files that a report read, so that `run` notices if one of them changes. Only
        files that no task reads need this. `stamps` are the files' stamps, taken before the report
        read the files."""
        self.watched.update(stamps)

    def save(self, current: set[str]) -> None:
        """Store the snapshot, with `current` as the tasks that are now known to be current. Tasks
        without a record are left out: it may have been found damaged meanwhile."""
        self.snapshot.current = self.states().finished(current)
        # With [cache] dir there are two folders, and each needs a .gitignore for itself.
        self._home.create()
        snapshot.save(self._home.state, self.snapshot)

    def save_clean(self, rows: Iterable[Row], summary: str) -> None:
        """Store that this run checked everything, that all passed, and what that rests on."""
        snapshot.save_clean(self._home.state, self.snapshot, rows, summary, self.identity)

    def forget_clean(self) -> None:
        """Make the next plain ``run`` check everything itself."""
        if self._home.folder.is_dir():
            snapshot.forget_clean(self._home.state)

    def close(self) -> None:
        self.cache.close()
        self._home.close()

    @property
    def has_plain_cases(self) -> bool:
        """Tell whether the cases are those of a ``run`` without options, and no seed was drawn."""
        own = replace(self._overrides, ci="")
        sampled = self._overrides.ci in self.settings.samplings
        return own == Overrides() and self.settings.drawn_seed is None and not sampled

    @property
    def is_as_judged(self) -> bool:
        """Tell whether configuration, globs and observed inputs are as when the tasks were judged.
        The contents of input files are not compared: the stored stamps are those that the files had
        when the tasks were judged. A glob may match new files if they make no task stale."""
        if self.environment != fingerprint():
            return False
        if not self._still_holds(self.snapshot):
            try:
                now = self._compiled_anew(self.snapshot)
            except FlowError:
                return False
            differ = now.graph.differing(self.graph)
            if differ is None or self.settings != now.settings:
                return False
            states = self.states()
            if any(states.reasons(spec, states.parts(spec)) for spec in differ):
                return False
        return not self.snapshot.observed.changed(self.inputs, but=("file",))

    def renew(self) -> None:
        """Compile again if the configuration, or a file that it names, has changed. A new
        configuration that names another cache folder is ignored until the next command, since this
        command holds the lock of the old folder. Raises ConfigError: Lists all errors of the
        configuration."""
        if self._still_holds(self.snapshot):
            return
        compiled = self._compiled_anew(self.snapshot)
        if compiled.settings.cache_dir == self.settings.cache_dir:
            self.snapshot = compiled
            self.__dict__.pop("inputs", None)  # it uses the old snapshot's table of files

    def _compiled_anew(self, old: Snapshot | None) -> Snapshot:
        """Compile the present configuration like `_compile`, but leave `self.cache` unchanged."""
        cache, self._config = self.cache, None
        try:
            return self._compile(old)
        finally:
            self.cache = cache

    def _still_holds(self, known: Snapshot) -> bool:
        """Tell whether compiling now would give `known`'s graph."""
        basis = known.basis
        return bool(
            known.settings.drawn_seed is None
            and basis.variables == self.identity
            and all(_content_digest(Path(path)) == digest for path, digest in basis.config)
            and basis.overrides == self._changes(known.settings.samplings)
            and basis.own_code == own_code_digest(known.files)
            and all(link_target(path) == target for path, target in basis.links)
            and basis.environment == self.environment
            and basis.sandbox == level_for(known.settings.sandbox)
            and all(glob_files(self.root, pattern) == found for pattern, found in basis.globs)
            and all(stamps.look_of(path) == look for path, look in basis.looks)
            and _same_imports(self.root, known)
            and self._same_kernels(known)
        )

    def _changes(self, sampled: Mapping[str, Json]) -> dict[str, Json]:
        """Return the changes that this command makes to the configuration, as plain JSON. The
        command's options make changes, and so may ``[ci]``. `sampled` maps each mode of
        ``[ci]``, ``quick`` or ``thorough``, to the cases, shapes and seed that it sets."""
        return {
            "seed": "random" if self._overrides.draw_seed else self._overrides.seed,
            "sampling": sampled.get(self._overrides.ci),
            "cases": self._overrides.cases,
            "profile": self._overrides.profile,
            "settings": list(self._overrides.settings),
        }

    def _same_kernels(self, known: Snapshot) -> bool:
        if known.basis.kernels is None:
            return True
        from gpuemu_flow.build.compile_kernels import still_holds  # noqa: PLC0415

        return still_holds(self.root, known.basis.kernels)

    def _compile(self, old: Snapshot | None) -> Snapshot:
        """Read the configuration and build the graph; reuse the valid parts of `old`."""
        # Most commands find the graph that the last one compiled.
        from gpuemu_flow.build import compile as compiling  # noqa: PLC0415

        config = self.config
        if config.cache.dir is not None:
            self.cache = WorkspaceCache(config.cache.dir)
        files = FileTable(self.root) if old is None else old.files.copy()
        version = own_code_digest(files)
        compiler = compiling.Compiler(config, self.cache, self._overrides, version)
        graph = compiler.graph()
        sources = {path for spec in graph.tasks.values() for path in spec.sources}
        patterns = {pattern for op in config.ops for pattern in (*op.depends, *op.shared)}
        patterns.update(pattern for rule in config.rules for pattern in rule.inputs)
        patterns.update(p for kernel in config.kernels for p in kernel.build.inputs or ())
        looked = [*map(str, config.looked_at), *filter(None, (compiler.listed,))]
        globs = sorted(patterns.union(config.include))
        sampled = {
            mode: {"cases": s.cases, "shapes": [list(shape) for shape in s.shapes], "seed": s.seed}
            for mode, s in samplings(config).items()
        }
        basis = Basis(
            overrides=self._changes(sampled),
            own_code=version,
            links=[(path, target) for path, target in compiling.links_on_the_way(config)],
            environment=self.environment,
            variables=self.identity,
            sandbox=compiler.fence.level,
            config=[[str(f.path), f.digest] for f in (*config.files, *config.looked_into)],
            globs=[(pattern, glob_files(self.root, pattern)) for pattern in globs],
            looks=[(path, stamps.look_of(path)) for path in looked],
            kernels=compiler.kernel_basis,
            imports={p: _scanned(compiler.sources, self.root / p) for p in sorted(sources)},
            absent=compiler.sources.absent,
        )
        dependent = compiling.dependent_references(config, graph.tasks.values())
        dropped = compiling.dropped_flags(config, self._environ)
        settings = _settings_of(config, (*dependent, *dropped), sampled, compiler.drawn_seed)
        # All tasks of a new graph are looked at; those that are unchanged prove to be current.
        observed = ObservedSets() if old is None else old.observed.of(graph.tasks)
        return Snapshot(graph, settings, basis, files, observed=observed)


def _settings_of(
    config: Config,
    found: Iterable[Problem],
    sampled: Mapping[str, Json],
    drawn_seed: int | None,
) -> Settings:
    """Return the part of a configuration that a run needs besides the graph. The settings contain
    the warnings about the configuration, about references that import the files of their ops, and
    about flags that are not used. `sampled` holds the number of cases, the shapes and the seed of
    each mode of ``[ci]``."""
    return Settings(
        jobs=config.execution.parallel,
        cache_dir=str(config.cache.dir) if config.cache.dir is not None else "",
        size_limit=config.cache.size_limit,
        remote=config.cache.remote,
        remote_mode=config.cache.remote_mode,
        fail_on_regression=config.policies.fail_on_regression,
        fuzz_iterations={op.name: op.fuzz_iterations for op in config.ops},
        cause_budget=config.validation.cause_budget,
        samplings=sampled,
        warn_threshold=config.policies.warn_threshold,
        drawn_seed=drawn_seed,
        sandbox=config.sandbox.mode,
        warnings=(*config.warnings, *found),
    )


def _same_imports(root: Path, known: Snapshot) -> bool:
    """Tell whether all imports of scripts still resolve to the same files as at compile time. If a
    script has changed but its imports have not, its new digest is stored in `known`."""
    if any((root / path).exists() for path in known.basis.absent):
        return False
    found, files = known.basis.imports, known.files
    moved = set(files.moved(found))
    index, apart = SourceIndex(root), FileTable(root)
    for path, (content, imports) in found.items():
        now = apart.digest(path) if path in moved else files.known_digest(path)
        if now == content:
            continue
        if now == ABSENT or index.imports_digest(root / path) != imports:
            return False
        found[path] = [now, imports]
    return True


def _content_digest(path: Path) -> str:
    try:
        return digest_bytes(path.read_bytes())
    except OSError:
        return ""


def _scanned(index: SourceIndex, path: Path) -> list[str]:
    """Return two digests: of a script's content, and of the list of its imports."""
    return [index.content_digest(path), index.imports_digest(path)]


# Find the tasks that may have to run.


class StaleSearch(Struct, frozen=True):
    """A search for the tasks that may have to run: changed, or downstream of a change."""

    snapshot: Snapshot
    states: TaskStates
    names: Set[str]
    triggers: Set[str]

    def stale(self, lookup: Discovery) -> set[str]:
        """Return the tasks that may have to run. A task is checked only if it reads a changed file,
        was not current before, or always has to be checked; see `TaskSpec.wavers`."""
        files = self.snapshot.files
        self.snapshot.current = self.states.finished(self.snapshot.current)
        changed = files.refresh()
        with files.as_refreshed():
            moved_sets = self.snapshot.observed.changed(lookup)
            return self._have_to_run(self._touched(changed, moved_sets))

    def _touched(self, changed: set[str], moved_sets: set[str]) -> set[str]:
        """Return the tasks to check: those with a changed file or a changed set of observed inputs.
        Tasks that were not current before, or that are always checked, are included."""
        current = self.snapshot.current
        return {
            name
            for name, spec in self.snapshot.graph.tasks.items()
            if name not in current
            or spec.wavers
            or name in moved_sets
            or not changed.isdisjoint(spec.sources)
        }

    def _have_to_run(self, touched: set[str]) -> set[str]:
        """Return the touched tasks that are not current, and all tasks downstream of them."""
        snapshot, graph, states = self.snapshot, self.snapshot.graph, self.states
        suspects = {n for t in touched for n in (t, *graph.readers(t))}
        snapshot.current -= suspects
        specs = map(graph.tasks.__getitem__, suspects & self.names)
        moved = {spec.name for spec in specs if states.reasons(spec, states.parts(spec))}
        self._observe((suspects & self.names) - moved)
        if self.triggers == set(TRIGGERS):
            snapshot.current |= (suspects & self.names) - graph.downstream(moved)
        return graph.downstream(moved) & self.names

    def _observe(self, names: Iterable[str]) -> None:
        """Copy the observed inputs of these tasks from their records to the snapshot. A new
        snapshot lacks the inputs. An old one may have outdated inputs, for example after a run was
        killed."""
        for name in names:
            made = self.states.made_from(name)
            if made is not None and made.inputs:
                self.snapshot.observed.record(name, made.discovered, made.observed)


# The cache that machines share.


@contextmanager
def shared(workspace: Workspace, context: StageContext) -> Iterator[None]:
    """Let the context use the shared cache that the configuration or the environment names."""
    settings = workspace.settings
    if not settings.remote and not os.environ.get("GPUEMU_CACHE_REMOTE"):
        yield
        return
    from gpuemu_flow.store.remote_cache import open_shared  # noqa: PLC0415 - few have one

    context.shared = open_shared(
        settings.remote, settings.remote_mode, os.environ, workspace.cache, context.cancel
    )
    try:
        yield
    finally:
        if context.shared is not None:
            context.shared.finish()
            context.shared = None


def place_for(workspace: Workspace, *, writing: bool = False) -> CacheAccess:
    """Return the shared cache that a workspace or its environment configures. Raises UsageError:
    ``cache-remote-none`` if no shared cache is configured, or if `writing` and it is read-only;
    ``cache-remote-value`` if its URL is invalid."""
    from gpuemu_flow.store.remote_cache import WRITE, place_of  # noqa: PLC0415 - few have one

    settings = workspace.settings
    place = place_of(settings.remote, settings.remote_mode, os.environ)
    if place is None:
        text = "no shared cache is named"
        hint = "set [cache] remote, or GPUEMU_CACHE_REMOTE in the environment"
        raise UsageError(Problem("cache-remote-none", text, hint))
    if writing and place.mode != WRITE:
        named = " and GPUEMU_CACHE_REMOTE" if place.problems else ""
        hint = f"set GPUEMU_CACHE_MODE=write{named}"
        raise UsageError(Problem("cache-remote-none", f"{place.url} is set to be read only", hint))
    return place
