"""Find, read and merge the configuration files, and report all their problems together."""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from gpuemu_flow.config import parse_sections
from gpuemu_flow.config.check import INVALID
from gpuemu_flow.config.fields import LOG_LEVELS
from gpuemu_flow.config.model import (
    Config,
    ConfigFile,
    Environment,
    KernelConfig,
    OpConfig,
    ProgramRef,
)
from gpuemu_flow.config.parse_ops import OpParser
from gpuemu_flow.config.parse_rules import ExpectedFiles, RuleParser
from gpuemu_flow.config.parse_sections import KernelParser, TargetParser, join_kernels, unique_names
from gpuemu_flow.config.paths import FILE_NAME, WorkspacePaths, exists, find_config
from gpuemu_flow.config.read import (
    NO_CHANGES,
    ConfigChanges,
    ConfigSource,
    IncludedFiles,
    definer,
    layers,
    merged,
    read_included,
    read_source,
)
from gpuemu_flow.config.report import KeyPath, Reporter, shown
from gpuemu_flow.model.errors import ConfigError, Problem, UsageError, did_you_mean
from gpuemu_flow.model.syntax import tree_of
from gpuemu_flow.model.types import IN_PROCESS, Json

MOST_UNKNOWN = 20

__all__ = ["FILE_NAME", "check_config", "environment", "find_config", "load_config"]


def environment(environ: Mapping[str, str]) -> Environment:
    """Return the settings in environment variables; ignore invalid log levels."""
    level = ""
    for name in ("GPUEMU_LOG_LEVEL", "RUST_LOG"):
        word = environ.get(name, "").strip().lower()
        word = {"warning": "warn"}.get(word, word)
        if not level and word in LOG_LEVELS:
            level = word
    return Environment(
        config=environ.get("GPUEMU_CONFIG", ""),
        socket=environ.get("GPUEMU_SOCKET", ""),
        log_level=level,
        allow_outside=environ.get("GPUEMU_ALLOW_OUTSIDE", "") == "1",
    )


def load_config(
    path: Path | None = None,
    *,
    start: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    strict: bool = False,
    changes: ConfigChanges = NO_CHANGES,
    copied: bool = False,
) -> Config:
    """Load the configuration. Raises UsageError: ``config-not-found``. Raises ConfigError: Holds
    all errors of all files, unknown keys included."""
    start = start or Path.cwd()
    config, problems = _load(path, start, environ, strict=strict, changes=changes, copied=copied)
    errors = [problem for problem in problems if not problem.warning]
    if errors or config is None:
        # A missing key may be there under a misspelt name.
        unknown = [p for p in problems if p.warning and p.slug == "config-unknown-key"]
        raise ConfigError(*errors, *unknown[:MOST_UNKNOWN])
    return config


def check_config(
    path: Path | None = None,
    *,
    start: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    strict: bool = False,
    edited: str | None = None,
) -> list[Problem]:
    """Return all errors and warnings of the configuration. `edited` is an editor's text of the file
    at `path`, which is then not read and need not exist."""
    config, problems = _load(path, start or Path.cwd(), environ, strict=strict, edited=edited)
    if config is not None:
        problems = sorted([*problems, *missing_functions(config)], key=lambda each: each.line)
    return problems


def _load(
    path: Path | None,
    start: Path,
    environ: Mapping[str, str],
    *,
    strict: bool,
    edited: str | None = None,
    changes: ConfigChanges = NO_CHANGES,
    copied: bool = False,
) -> tuple[Config | None, list[Problem]]:
    """Return the configuration, or None if an error makes it unusable, and all problems."""
    if path is not None and edited is None and not exists(path):
        raise UsageError(Problem("config-not-found", f"{path} does not exist"))
    project_file = (path or find_config(start, environ)).absolute()
    shown_as = str(path) if path is not None and not path.is_absolute() else project_file.name
    root = Path(os.path.realpath(project_file.parent))
    sources = [read_source(project_file, shown_as, edited, root=root)]
    home = Path(environ.get("HOME") or Path.home())
    for default in _default_files(home, environ):
        if default != project_file:
            shown = f"~/{default.relative_to(home)}" if default.is_relative_to(home) else default
            sources.append(read_source(default, str(shown), root=root))
    included = read_included(sources[0])
    defaults = [pattern for source in sources[1:] for pattern in source.listings]
    included.patterns = tuple(dict.fromkeys([*included.patterns, *defaults]))
    unreadable = any(not p.warning for p in sources[0].out.problems) and not sources[0].tree
    config = None
    if not unreadable:
        granted = environment(environ).allow_outside
        assembly = _Assembly(
            sources, included, home, granted=granted, changes=changes, copied=copied
        )
        config = assembly.config(environment(environ))
        sources = assembly.layers
    read = (*sources, *included.sources)
    problems = [p for source in read for p in source.out.collected(strict=strict)]
    if any(not p.warning for p in problems):
        return None, problems
    return config, problems


def _default_files(home: Path, environ: Mapping[str, str]) -> tuple[Path, Path]:
    """Return the paths of the user's and the daemon's configuration files, which hold defaults. The
    user's file is below ``XDG_CONFIG_HOME`` if `environ` sets it to an absolute path, else below
    ``.config`` in `home`."""
    given = environ.get("XDG_CONFIG_HOME", "")
    # By the XDG specification, a relative path is ignored.
    user = Path(given) if given.startswith("/") else home / ".config"
    return user / "gpuemu" / "config.toml", home / ".gpuemu" / "daemon.toml"


class _Part(Struct, frozen=True):
    """One file's array of tables, such as ``[[ops]]``."""

    tables: list[Json]
    workspace: WorkspacePaths
    out: Reporter


class _Assembly:
    """Builds the model from the sources, and reports each problem in the file that contains it."""

    def __init__(
        self,
        sources: list[ConfigSource],
        included: IncludedFiles,
        home: Path,
        *,
        granted: bool,
        changes: ConfigChanges,
        copied: bool,
    ) -> None:
        self.copied = copied
        self.sources = sources
        self.included = included.sources
        self.include = included.patterns
        self.made: frozenset[Path] = frozenset()
        self.granted = granted or any(_allows_outside(own.tree) for own in sources[1:])
        self.home = home
        self.layers = [*layers(sources, changes), *sources]
        self.tree = merged(self.layers)
        self.root = Path(os.path.realpath(sources[0].path.parent))
        self.probed: set[Path] = set()

    def section(self, name: str) -> dict[str, Json]:
        found = self.tree.get(name)
        return found if isinstance(found, dict) else {}

    def out_of(self, where: KeyPath) -> Reporter:
        return self.definer(where).out

    def definer(self, where: KeyPath) -> ConfigSource:
        """Return the source that defines a key; the project's file if no source does."""
        return definer(self.layers, where, self.sources[0])

    def workspace(self, where: KeyPath, source: ConfigSource | None = None) -> WorkspacePaths:
        """Return the resolver of the paths that a configuration file contains. `source` is the
        file. By default, it is the file that defines the key `where`. Paths in an included file are
        relative to the folder of the project's file, so that a table can be moved from one file to
        another unchanged."""
        base = (source or self.definer(where)).path.parent
        wanted = _allows_outside(self.tree)
        return WorkspacePaths(
            self.root,
            base,
            self.home,
            allow_outside=wanted and self.granted,
            not_granted=wanted and not self.granted,
            probed=self.probed,
            made=self.made,
        )

    def tables(self, name: str) -> list[Json]:
        found = self.tree.get(name)
        return found if isinstance(found, list) else []

    def config(self, env: Environment) -> Config:
        project_out = self.sources[0].out
        project = parse_sections.project(self.section("project"), project_out)
        shared = self.section("validation")
        validation = parse_sections.validation(shared, self.out_of(("validation",)))
        execution = parse_sections.execution(
            self.section("execution"),
            self.definer(("execution", "python_path")).path.parent,
            self.home,
        )
        rules = self.rules()
        self.made = rules.made
        kernels: list[KernelConfig] = []
        built: dict[str, str] = {}
        of_kernels: list[KernelParser] = []
        for part in self.parts("kernels"):
            of_kernels.append(KernelParser(part.workspace, part.out, shared, built))
            kernels += of_kernels[-1].parse_all(part.tables)
        made = self.made.union(
            path
            for kernel in kernels
            if kernel.build.command
            for path in (kernel.ptx, kernel.cubin)
            if path is not None
        )
        presence = ExpectedFiles(self.root, self.copied, self.include, made)
        for each in of_kernels:
            each.warn_of_unmatched(presence)
        ops: list[OpConfig] = []
        consulted: set[Path] = set()
        looked_into: dict[Path, str] = {}
        names: dict[str, str] = {}
        framework = self.section("project").get("framework", "")
        fenced = self.section("sandbox").get("mode") != "off"
        for part in self.parts("ops"):
            parser = OpParser(
                part.workspace,
                part.out,
                validation,
                execution,
                shared,
                rules,
                presence,
                names,
                framework,
                fenced,
            )
            ops += parser.parse_all(part.tables)
            consulted |= parser.modules.consulted
            looked_into |= parser.programs.looked_into
        ops, kernels = join_kernels(ops, kernels, self.reporters(), self.out_of(("ops",)))
        rules.refuse_names({kernel.name for kernel in kernels})
        named = frozenset(
            table["name"]
            for key in ("ops", "kernels", "rules")
            for part in self.parts(key)
            for table in part.tables
            if table is not INVALID and "name" in table
        )
        if self.section("ci").get("quick_shapes") and ops and all(op.has_schema for op in ops):
            where = ("ci", "quick_shapes")
            text = "quick_shapes has no effect: every op has a schema, whose dims give its shapes"
            self.out_of(where).add("config-no-effect", where, text, "drop it", warning=True)
        targets = TargetParser(ops, kernels, named, rules.rules, self.out_of).parse(
            self.section("targets")
        )
        cache = parse_sections.cache(
            self.section("cache"), self.workspace(("cache", "dir")), self.out_of(("cache",))
        )
        sources = (kernel.source for kernel in kernels if kernel.source is not None)
        programs = [f for op in ops for ref in (op.op, op.reference) if ref for f in ref.files]
        presence.programs.update(programs)
        self.refuse_full_cache(cache.dir, (self.sources[0].path, *programs, *sources))
        return Config(
            root=self.root,
            project=project,
            validation=validation,
            ops=tuple(ops),
            kernels=tuple(kernels),
            policies=parse_sections.policies(
                self.section("policies"), self.section("ci"), self.out_of(("policies",))
            ),
            ci=parse_sections.ci(self.section("ci"), self.out_of(("ci",))),
            targets=targets,
            cache=cache,
            execution=execution,
            daemon=parse_sections.daemon(
                self.section("daemon"),
                self.workspace(("daemon", "socket_path")),
                self.out_of(("daemon",)),
            ),
            storage=parse_sections.storage(
                self.section("storage"),
                self.workspace(("storage", "db_path")),
                self.out_of(("storage",)),
            ),
            sandbox=parse_sections.sandbox(
                self.section("sandbox"),
                self.workspace(("sandbox", "writable")),
                {key: self.out_of(("sandbox", key)) for key in ("writable", "hidden", "apart")},
                presence,
                project_out,
            ),
            environment=env,
            looked_at=tuple(sorted(presence.looked_at)),
            files=self.files(consulted),
            looked_into=tuple(ConfigFile(path, of) for path, of in sorted(looked_into.items())),
            warnings=tuple(
                p for s in (*self.sources, *self.included) for p in s.out.collected() if p.warning
            ),
            rules=rules.finish(),
            include=tuple(dict.fromkeys((*self.include, *sorted(presence.awaited)))),
        )

    def refuse_full_cache(self, folder: Path | None, files: Iterable[Path]) -> None:
        """Report a cache folder that contains files of the workspace. This is an error, since no op
        may read the cache, and ``clean`` empties it."""
        inside = (path for path in files if folder and path.resolve().is_relative_to(folder))
        found = next(inside, None)
        if found is not None:
            where = ("cache", "dir")
            text = f"{shown(self.section('cache')['dir'])} holds {shown(found.name)}, too"
            hint = 'the cache needs a folder of its own: ".gpuemu-cache"'
            self.out_of(where).add("config-value", where, f"cache.dir = {text}", hint)

    def parts(self, key: str) -> list[_Part]:
        where = (key,)
        found = [_Part(self.tables(key), self.workspace(where), self.out_of(where))]
        for source in self.included:
            tables = source.tree.get(key)
            if isinstance(tables, list):
                found.append(_Part(tables, self.workspace(where, self.sources[0]), source.out))
        return found

    def rules(self) -> RuleParser:
        """Return the parser of rules, after it has parsed all rules and the ``build`` of each op.
        Ops are parsed later, since they may name files that rules have yet to make."""
        names: dict[str, str] = {}
        parser = RuleParser(
            self.workspace(("rules",), self.sources[0]),
            {source.path for source in (*self.sources, *self.included)},
        )
        for part in self.parts("rules"):
            unique_names(part.tables, "rules", part.out, names)
            for place, table in enumerate(part.tables):
                if table is not INVALID and "name" in table:
                    parser.add(table["name"], table, ("rules", place), part.out)
        for part in self.parts("ops"):
            for place, table in enumerate(part.tables):
                if table is not INVALID and "name" in table and "build" in table:
                    where = ("ops", place, "build")
                    parser.add(table["name"], table["build"], where, part.out)
        return parser

    def reporters(self) -> dict[str, Reporter]:
        return {source.out.file: source.out for source in (*self.sources, *self.included)}

    def files(self, consulted: set[Path]) -> tuple[ConfigFile, ...]:
        """Return all files that change the configuration if they are edited, created or deleted."""
        read = (*self.sources, *self.included)
        files = [ConfigFile(source.path, source.digest) for source in read]
        files += [ConfigFile(path, _digest(path)) for path in sorted(consulted)]
        files += [ConfigFile(path, "") for path in sorted(self.probed)]
        return tuple(files)


def _allows_outside(tree: Mapping[str, Json]) -> bool:
    project = tree.get("project")
    return isinstance(project, dict) and project.get("allow_outside") is True


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


# Find functions that a configuration names but that their files do not define.


LARGEST = 4 << 20
"""Maximum size in bytes of a file to examine."""

_UNTOLD = frozenset(("exec", "eval", "globals", "locals", "vars", "setattr", "__getattr__"))
"""Names with which a module may define further names that its syntax does not show."""


class _Names(NamedTuple):
    """All names that occur in a file, and the names of its functions."""

    used: frozenset[str]
    functions: tuple[str, ...]


def missing_functions(config: Config) -> Iterator[Problem]:
    known: dict[Path, _Names | None] = {}
    told: set[tuple[int, str]] = set()
    for op in config.ops:
        for ref in _functions(op):
            if ref.path is None or not ref.function.isidentifier() or (ref.line, ref.text) in told:
                continue
            if ref.path not in known:
                known[ref.path] = _names_of(ref.path)
            names = known[ref.path]
            if names is not None and ref.function not in names.used:
                told.add((ref.line, ref.text))
                text = f"there is no function {shown(ref.function)} in {ref.relative}"
                hint = did_you_mean(ref.function, names.functions)
                yield Problem("config-no-function", text, hint, ref.file, ref.line)


def _functions(op: OpConfig) -> Iterator[ProgramRef]:
    for ref in (op.op, op.reference, *op.compares, *op.generators.values()):
        if ref is not None and ref.kind in IN_PROCESS:
            yield ref


def _names_of(path: Path) -> _Names | None:
    """Return the names that occur in a module. Return None if the file cannot be parsed, or if the
    module may define names that do not occur in its text."""
    try:
        with path.open("rb") as file:
            source = file.read(LARGEST + 1)
        if len(source) > LARGEST:
            return None
        tree = tree_of(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            if node.name == "*":
                return None
            names.add(node.asname or node.name.split(".", maxsplit=1)[0])
        elif isinstance(node, ast.Attribute) and node.attr in ("__dict__", "modules"):
            return None
    if names & _UNTOLD:
        return None
    functions = (node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    return _Names(frozenset(names), tuple(functions))
