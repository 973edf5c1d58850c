"""Compile kernels to tasks: build, lint and diff for each kernel and architecture."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from msgspec import Struct, field, json, structs, to_builtins
from msgspec.structs import replace

from gpuemu_flow.build.files import glob_files, package_version, stamp_of
from gpuemu_flow.build.graph import Skip
from gpuemu_flow.build.snapshot import KernelBasis
from gpuemu_flow.build.sources import SourceIndex
from gpuemu_flow.config.model import Config, KernelConfig, OpConfig, RuleConfig
from gpuemu_flow.config.paths import matches
from gpuemu_flow.config.tables import Policies
from gpuemu_flow.lint.kernel import VIEW_VERSION, KernelPolicy
from gpuemu_flow.lint.measure import LINT_VERSION
from gpuemu_flow.lint.toolchain import (
    HOST_COMPILERS,
    Toolchain,
    find_tools,
    host_compilers,
    tool_missing,
    tool_places,
)
from gpuemu_flow.model.types import Json
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import (
    BuildParams,
    CodeParams,
    KernelDiffParams,
    LintParams,
    RuleParams,
    TaskInput,
    TaskSpec,
    params_of,
    plain,
)
from gpuemu_flow.workers.sandbox.fence import Fence, off_limits
from gpuemu_flow.workers.sandbox.spec import Sandbox, is_below

# Compile rules to tasks: one task for each command that makes files.


class RuleTasks(Struct):
    """The part of the graph that the rules add."""

    tasks: dict[str, TaskSpec] = field(default_factory=dict)

    def made(self, pattern: str) -> list[str]:
        """Return the names of the rules' outputs that a glob matches; they need not exist yet."""
        outputs = (name for spec in self.tasks.values() for name in spec.outputs)
        return [name for name in outputs if matches(pattern, name)]

    def needed(self, op: OpConfig, stage: str, files: Collection[str]) -> tuple[TaskInput, ...]:
        """Return the rules that a stage of an op needs, as inputs of its task. For the stage
        ``op``, their results are part of the task's key. Programs of other stages, such as
        references, rarely depend on the rules' outputs. Therefore, the tasks of these stages only
        wait for the rules. They run again only if the files of their programs, or files that the
        programs used, have changed."""
        used = {*files, *(name for pattern in op.depends for name in self.made(pattern))}
        makers = [n for n, spec in self.tasks.items() if not used.isdisjoint(spec.outputs)]
        beginning = stages.BUILT if stage == stages.OP else stages.AFTER
        return tuple(self.inputs(dict.fromkeys((*op.needs, *makers)), beginning))

    def of_files(self, files: Iterable[str]) -> tuple[TaskInput, ...]:
        used = set(files)
        return tuple(
            self.inputs(n for n, spec in self.tasks.items() if not used.isdisjoint(spec.outputs))
        )

    def inputs(self, rules: Iterable[str], beginning: str = stages.BUILT) -> list[TaskInput]:
        """Return these rules as inputs of a task. The role of an input is `beginning`, followed by
        the rule's name."""
        specs = [self.tasks[rule] for rule in rules if rule in self.tasks]
        return [TaskInput(f"{beginning}{s.subject}", s.name) for s in specs]


def outputs_apart(config: Config) -> tuple[str, ...]:
    """Return the absolute paths of the rules' outputs that match the key ``sandbox.apart``. The key
    is a list of globs. An output is returned if a glob matches the output or one of its parent
    folders. Outputs need not exist yet, since they are taken from the configuration."""
    return tuple(
        str(config.root / output)
        for rule in config.rules
        for output in rule.outputs
        if any(
            matches(pattern, str(part))
            for pattern in config.sandbox.apart
            for part in (PurePosixPath(output), *PurePosixPath(output).parents)
        )
    )


def rule_tasks(
    config: Config, cache: WorkspaceCache, sources: SourceIndex, version: str, fence: Fence
) -> RuleTasks:
    found = RuleTasks()
    declared = sorted(output for rule in config.rules for output in rule.outputs)
    programs = _programs(config)
    for rule in config.rules:
        files, packages = _files(rule, config.root, sources, declared)
        outputs = [config.root / name for name in rule.outputs]
        needs = [found.tasks[need] for need in rule.needs]
        before = [name for need in needs for name in need.outputs]
        waited_for = sorted({*before, *(n for need in needs for n in need.settings["waited_for"])})
        own = [*outputs, *(config.root / name for name in files)]
        wall = fence.around(
            off_limits(cache=cache.folder, root=config.root),
            "",
            emulated=False,
            own=map(str, own),
        )
        if wall is not None:
            wall = with_outputs(wall, outputs, programs, config.root)
            if rule.only_inputs:
                wall = _closed(wall, [*files, *before], rule.outputs)
        found.tasks[rule.name] = TaskSpec(
            name=f"{stages.BUILD}:{rule.name}",
            stage=stages.RULE,
            version=version,
            subject=rule.name,
            dtype="",
            sources=tuple(files),
            inputs=tuple(found.inputs(rule.needs)),
            params=plain(
                RuleParams(
                    command=list(rule.command),
                    shell=rule.shell,
                    outputs=list(rule.outputs),
                    env_names=sorted(config.execution.env),
                    sandbox={**fence.key(), **({"closed": True} if rule.only_inputs else {})},
                )
            ),
            settings={
                "file": rule.file,
                "line": rule.line,
                "declared": declared,
                "before": before,
                "waited_for": waited_for,
                "timeout": rule.timeout,
                "scratch": [
                    path.relative_to(config.root).as_posix()
                    for path in config.sandbox.writable
                    if path.is_relative_to(config.root)
                ],
                "sandbox": None if wall is None else msgspec.to_builtins(wall),
            },
            packages=packages,
            outputs=rule.outputs,
        )
    return found


def with_outputs(
    wall: Sandbox, outputs: Collection[Path], others: Iterable[Path], root: Path
) -> Sandbox:
    """Return a sandbox, extended so that a command can write its declared outputs. The command can
    also write other files in the folders of these outputs, except in the workspace's top folder. In
    a hidden folder, it can read and write only its declared outputs."""
    programs = set(others) - set(outputs)
    closed = {*programs, *map(Path, wall.hidden)}
    writable = set()
    for path in outputs:
        if path.parent != root:
            writable.add(path.parent)
        # A protected folder allows no new files, so the output is created beforehand.
        if path.parent == root or any(each.is_relative_to(path.parent) for each in closed):
            writable.add(path)
    below = [path for path in outputs if any(path.is_relative_to(p) for p in wall.hidden)]
    writable.update(below)
    return replace(
        wall,
        shown=(*wall.shown, *map(str, below)),
        read_only=tuple(sorted({*wall.read_only, *map(str, programs)})),
        writable=(*wall.writable, *sorted(map(str, writable))),
    )


def _closed(wall: Sandbox, files: Iterable[str], outputs: Iterable[str]) -> Sandbox:
    """Return `wall`, narrowed so that a command reads only `files` and `outputs` of the workspace.
    The command can write `outputs`, too."""
    read, made = ([f"{wall.root}/{name}" for name in names] for names in (files, outputs))
    seen = [path for path in read if not is_below(path, wall.hidden)]
    return replace(
        wall,
        shown=(*wall.shown, *seen, *made),
        writable=tuple(dict.fromkeys((*wall.writable, *made))),
        closed=True,
    )


def programs_of(config: Config) -> set[Path]:
    """Return the files that no command may write: programs and the configuration."""
    programs = {file.path for file in config.files}
    for op in config.ops:
        for program in (op.op, op.reference):
            programs.update(() if program is None else program.files)
    programs.update(kernel.source for kernel in config.kernels if kernel.source is not None)
    return programs


def _programs(config: Config) -> set[Path]:
    made = {config.root / output for rule in config.rules for output in rule.outputs}
    return programs_of(config) - made


def _files(
    rule: RuleConfig, root: Path, sources: SourceIndex, declared: Sequence[str]
) -> tuple[list[str], tuple[str, ...]]:
    """Return the files and the packages that decide a rule's outputs, each in sorted order. The
    rule's own outputs are left out, even if a glob matches them. Outputs of other rules, which
    `declared` lists, are included even before they exist."""
    files = {
        name
        for pattern in rule.inputs
        for name in (*glob_files(root, pattern), *(n for n in declared if matches(pattern, n)))
    }
    packages: set[str] = set()
    for word in () if rule.shell else rule.command:
        path, name = root / word, os.path.normpath(word)
        if name in declared:
            files.add(name)
            continue
        try:
            if not word or not path.is_file() or not path.resolve().is_relative_to(root):
                continue
        except (OSError, ValueError):
            continue
        if path.suffix == ".py":
            closure = sources.closure(path)
            files.update(closure.files)
            packages.update(closure.packages)
        else:
            files.add(path.relative_to(root).as_posix())
    return sorted(files - set(rule.outputs)), tuple(sorted(packages))


# Files that a CUDA source includes, found without running a preprocessor.

_INCLUDE = re.compile(
    rb'^[ \t]*#[ \t]*include(?:_next)?[ \t]*(?:"([^"\r\n]{1,1024})"|<([^>\r\n]{1,1024})>)', re.M
)
_HAS_INCLUDE = re.compile(
    rb'\b__has_include(?:_next)?[ \t]*\([ \t]*(?:"([^"\r\n]{1,1024})"|<([^>\r\n]{1,1024})>)'
)
_FOLDER_OPTIONS = ("-I", "--include-path", "-isystem", "--system-include")
_FILE_OPTIONS = ("-include", "--pre-include")
_OPTIONS_FILES = ("-optf", "--options-file")
_HEADERS = frozenset((
    "", ".cuh", ".def", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".ipp", ".tcc",
))  # fmt: skip
"""Suffixes of file names in the ``#include`` lines of the toolkit's headers."""
MAX_FILES = 10_000
"""Largest number of files that are followed from one source, more than any kernel includes."""
_MAX_OPTIONS_FILES = 16


class Includes(Struct, frozen=True):
    """The files that a source includes, and the paths where new files could change this list. All
    paths are relative to the workspace if they lie inside of it."""

    files: list[str]
    absent: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)


def find_includes(start: Path, flags: Iterable[str], root: Path) -> Includes:
    """Find the files that a source includes from its folder or from ``-I`` folders. All
    ``#include`` lines and uses of ``__has_include`` count, even under conditions that do not hold.
    The toolkit's own headers are not listed; in keys, the compiler's version stands for them."""
    folders, named = _options(flags, root)
    found: set[Path] = set()
    absent: set[Path] = set()
    pending = [start, *named]
    while pending and len(found) < MAX_FILES:
        path = pending.pop()
        if path in found:
            continue
        try:
            text = path.read_bytes()
        except (OSError, ValueError):
            continue
        found.add(path)
        for quoted, angled in (*_INCLUDE.findall(text), *_HAS_INCLUDE.findall(text)):
            name = (quoted or angled).decode("utf-8", "surrogateescape")
            for folder in [path.parent, *folders] if quoted else folders:
                candidate = _normal(folder / name)
                if candidate.is_file():
                    pending.append(candidate)
                    break
                absent.add(candidate)
    searched = [folder for folder in folders if folder.is_relative_to(root)]
    headers, below = _headers_below(searched, root)
    return Includes(
        sorted({relative(path, root) for path in (*found, start)}),
        sorted(relative(path, root) for path in absent),
        headers,
        below,
    )


def _headers_below(folders: Iterable[Path], root: Path) -> tuple[list[str], list[str]]:
    """List the possible headers below some folders, and all folders searched; both sorted."""
    headers: set[str] = set()
    below: set[str] = set()
    for top in folders:
        for folder, inner, names in os.walk(top):
            inner[:] = [name for name in inner if not name.startswith((".", "__pycache__"))]
            place = relative(Path(folder), root)
            below.add(place)
            headers.update(f"{place}/{name}" for name in names if Path(name).suffix in _HEADERS)
            if len(below) + len(headers) > MAX_FILES:
                break
    return sorted(headers), sorted(below)


def relative(path: Path, root: Path) -> str:
    """Return a path in the form of keys and messages: relative to the workspace if inside."""
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return path.as_posix()


def _normal(path: Path) -> Path:
    """Return a path without ``..``, but with its links unresolved, as the compiler shows it."""
    return Path(os.path.normpath(path))


def _options(flags: Iterable[str], root: Path) -> tuple[list[Path], list[Path]]:
    """Return the include folders and the files that compiler flags name, as two lists."""
    folders: list[Path] = []
    files: list[Path] = []
    waiting: list[Path] | None = None
    for flag in _with_files_of_options(flags, root, files):
        files += _files_in(flag, root)
        if waiting is not None:
            waiting.extend(_normal(root / part) for part in flag.split(","))
            waiting = None
            continue
        for options, target in ((_FOLDER_OPTIONS, folders), (_FILE_OPTIONS, files)):
            for option in options:
                if flag == option:
                    waiting = target
                elif flag.startswith(f"{option}="):
                    target.extend(_normal(root / p) for p in flag[len(option) + 1 :].split(","))
                elif option == "-I" and flag.startswith("-I"):
                    target.append(_normal(root / flag[2:]))
    return folders, files


def _with_files_of_options(flags: Iterable[str], root: Path, files: list[Path]) -> Iterator[str]:
    """Yield flags, including those in nvcc's options files; add these files to `files`."""
    pending = list(reversed([*flags]))
    while pending:
        flag = pending.pop()
        option, equals, names = flag.partition("=")
        if option not in _OPTIONS_FILES or not (equals or pending):
            yield flag
            continue
        for name in reversed((names if equals else pending.pop()).split(",")):
            path = _normal(root / name)
            if path in files or len(files) >= _MAX_OPTIONS_FILES:
                continue
            try:
                text = path.read_text("utf-8", "surrogateescape")
            except (OSError, ValueError):
                continue
            files.append(path)
            pending += reversed(text.split())


def _files_in(flag: str, root: Path) -> Iterator[Path]:
    """Split a flag at ``=``, ``,`` and ``@``; yield the parts that are files of the workspace."""
    for word in re.split(r"[=,@]", flag):
        path = _normal(root / word)
        if word and path.is_relative_to(root) and path.is_file():
            yield path


DEFAULT_ARCH = "sm_80"
"""Architecture for sources that have to be compiled, if none is configured."""

CUDA, GIVEN, COMMAND, TRITON = "cuda", "given", "command", "triton"
_ALIASES = {
    "max_local_memory": "max_local_memory_bytes",
    "forbidden_patterns": "forbidden_instructions",
}  # under which a limit may stand among those that a kernel gives
_NEEDED = {
    CUDA: ("nvcc", "nvdisasm"),
    GIVEN: ("ptxas", "nvdisasm"),
    COMMAND: ("ptxas", "nvdisasm"),
    TRITON: ("nvdisasm",),
}


class KernelTasks(Struct):
    """The part of the graph that the kernels add."""

    tasks: list[TaskSpec] = field(default_factory=list)
    groups: dict[str, list[str]] = field(default_factory=dict)
    skips: list[Skip] = field(default_factory=list)
    basis: KernelBasis | None = None
    unbuildable: dict[str, str] = field(default_factory=dict)

    def code_of(self, kernel: str, arch: str) -> TaskSpec | None:
        """Return the ``code`` task of a kernel's build for `arch`; None if there is no such build.
        An empty `arch` accepts any build. A build without an architecture matches every `arch`."""
        for spec in self.tasks:
            if spec.stage == stages.CODE and spec.subject == kernel:
                own = params_of(CodeParams, spec.params).arch
                if not own or arch in ("", own):
                    return spec
        return None


def kernel_policy(policies: Policies, kernel: KernelConfig | None) -> KernelPolicy:
    """Return the policy of a kernel: its own limits and, where it sets none, ``[policies]``.
    Without a kernel, this is the policy that ``[policies]`` describes."""
    limits: dict[str, Any] = {
        "max_registers": policies.registers.fail,
        "registers_warn_above": policies.registers.warn,
        "max_spills": policies.spills.fail,
        "spills_warn_above": policies.spills.warn,
        "max_local_memory_bytes": policies.local_memory.fail,
        "local_memory_warn_above": policies.local_memory.warn,
    }
    allow: dict[str, str] = {}
    archs: tuple[str, ...] = ()
    if kernel is not None:
        archs = kernel.build.arch
        allow = {allowed.rule: allowed.reason for allowed in kernel.allow}
        for written in kernel.checks.given:
            name = _ALIASES.get(written, written)
            own = getattr(kernel.checks, name)
            if own is not None:
                limits["expect_tensor_cores" if name == "tensor_cores" else name] = own
    given = {name: value for name, value in limits.items() if value is not None}
    return KernelPolicy(
        **given, severities=policies.rules, allow=allow, archs=archs, explicit=frozenset(given)
    )


def still_holds(root: Path, basis: KernelBasis) -> bool:
    """Tell whether the artifacts, headers and tools that tasks were compiled from are unchanged."""
    return (
        all(
            to_builtins(find_includes(root / start, flags, root)) == found
            for start, flags, found in basis.includes
        )
        and all((root / path).is_file() == there for path, there in basis.given)
        and tool_files(basis.tools, basis.configured) == basis.tool_files
        and basis.triton in (None, triton_version(basis.python))
    )


def tool_files(names: Sequence[str], configured: Mapping[str, str]) -> list[list[Json]]:
    """Return a pair [path, stamp] for each path where a tool is looked for. The stamp is None if
    there is no file at the path. `configured` maps names of tools to the programs that the
    configuration sets for them."""
    stamps = {path: stamp_of(path) for name in names for path, _ in tool_places(name, configured)}
    return [[path, None if stamp is None else list(stamp)] for path, stamp in stamps.items()]


def triton_version(python: str) -> str:
    """Return the version of Triton in the interpreter `python`; empty if Triton is not installed.
    If `python` is empty, this is the version in our own interpreter."""
    if not python:
        return package_version("triton")
    pattern = "lib/python*/site-packages/triton-*.dist-info"
    found = sorted(path.name for path in Path(python).parent.parent.glob(pattern))
    return ", ".join(found)


class KernelCompiler:
    """Makes the tasks of all kernels; `version` is the digest of our own code."""

    def __init__(
        self,
        config: Config,
        cache: WorkspaceCache,
        sources: SourceIndex,
        version: str,
        fence: Fence,
        rules: RuleTasks | None,
    ) -> None:
        self._rules = rules
        self._version = version
        self._fence = fence
        self._config = config
        self._root = config.root
        self._cache = cache
        self._sources = sources
        self._out = KernelTasks()
        self._includes: list[list[Json]] = []
        self._given: list[list[Json]] = []
        self._op_names = {op.name for op in config.ops}
        self._run = {
            ref.kernel for op in config.ops for ref in (op.op, op.reference) if ref is not None
        }
        self._python = config.execution.python_path or ""

    def compile(self) -> KernelTasks:
        if not self._config.kernels:
            return self._out
        kinds = {kernel.name: self._kind(kernel) for kernel in self._config.kernels}
        tools = sorted({name for kind in kinds.values() for name in _NEEDED.get(kind, ())})
        configured = dict(self._config.execution.tools)
        self._chain = find_tools(configured, names=tools, root=self._root) if tools else Toolchain()
        for kernel in self._config.kernels:
            kind = kinds[kernel.name]
            if not kind:
                self._out.skips.append(Skip(kernel.name, "", kernel.skip_reason))
                self._out.groups.setdefault(kernel.name, [])
            else:
                self._add(kernel, kind)
        watched = [*tools, *(HOST_COMPILERS if CUDA in kinds.values() else ())]
        self._out.basis = KernelBasis(
            includes=self._includes,
            given=self._given,
            tools=watched,
            configured=configured,
            tool_files=tool_files(watched, configured),
            triton=triton_version(self._python) if TRITON in kinds.values() else None,
            python=self._python,
        )
        return self._out

    def _kind(self, kernel: KernelConfig) -> str:
        """Return the kind of a kernel's build, such as `CUDA`; empty if nothing can be built."""
        if kernel.build.command:
            return COMMAND
        if kernel.triton is not None:
            return TRITON
        given = [path for path in (kernel.ptx, kernel.cubin) if path is not None]
        compiled = kernel.source is not None and kernel.source.suffix == ".cu"
        if compiled:
            self._given += [[relative(path, self._root), path.is_file()] for path in given]
            return GIVEN if any(path.is_file() for path in given) else CUDA
        return GIVEN if given or kernel.source is not None else ""

    def _add(self, kernel: KernelConfig, kind: str) -> None:
        archs: tuple[str, ...] = kernel.build.arch
        if kind == COMMAND:
            archs = archs if len(archs) == 1 else ()
        elif kind != GIVEN:
            archs = archs or (DEFAULT_ARCH,)
        linted = []
        missing = self._missing(kind)
        if missing:
            self._out.unbuildable[kernel.name] = missing
        for arch in archs or ("",):
            build = self._build(kernel, kind, arch)
            lint = self._lint(kernel, build, arch)
            run = kernel.name in self._run and not missing
            code = [self._code(kernel, build, arch)] if run else []
            for spec in (build, *code, lint):
                self._take(spec, f"{spec.stage}:{kernel.name}", spec.stage)
            linted.append(TaskInput(f"lint:{arch}", lint.name))
        if not archs:
            for arch in kernel.build.arch:  # names that the configuration's targets may use
                for stage in (stages.BUILD, stages.LINT):
                    self._out.groups[f"{stage}:{kernel.name}:{arch}"] = [f"{stage}:{kernel.name}"]
        policy = kernel_policy(self._config.policies, kernel)
        name = f"diff:{kernel.name}"
        diff = self._spec(
            stages.KERNEL_DIFF,
            kernel,
            name=f"{name}:kernel" if kernel.name in self._op_names else name,
            inputs=tuple(linted),
            params=KernelDiffParams(forbidden=list(policy.forbidden_instructions)),
        )
        self._take(diff, name, stages.DIFF)

    def _take(self, spec: TaskSpec, group: str, stage: str) -> None:
        self._out.tasks.append(spec)
        groups = self._out.groups
        names = [stage, spec.subject]
        if group != spec.name:
            names.append(group)
        for name in names:
            groups.setdefault(name, []).append(spec.name)

    def _build(self, kernel: KernelConfig, kind: str, arch: str) -> TaskSpec:
        includes = self._includes_of(kernel)
        files, packages = self._files(kernel, kind, includes)
        tools = [tool for name in _NEEDED[kind] for tool in self._chain.tools.get(name, ())]
        ptx, cubin = (
            None if p is None else relative(p, self._root) for p in self._given_paths(kernel)
        )
        params = BuildParams(
            kind=kind,
            arch=arch,
            source=None if kernel.source is None else relative(kernel.source, self._root),
            ptx=ptx,
            cubin=cubin,
            tools=[[tool.name, tool.version] for tool in tools],
            unusable=[problem.file for problem in self._chain.problems],
            flags=list(kernel.build.flags),
        )
        if kind == COMMAND:
            globs = kernel.build.inputs
            params = msgspec.structs.replace(
                params,
                command=list(kernel.build.command),
                inputs=None if globs is None else sorted(globs),
            )
        if kind == TRITON and kernel.triton is not None:
            triton = kernel.triton
            compiled = {
                "path": relative(triton.path, self._root),
                "kernel": triton.kernel,
                "signature": dict(triton.signature),
                "constants": dict(triton.constants),
                "num_warps": triton.num_warps,
                "num_stages": triton.num_stages,
            }
            version = triton_version(self._python)
            params = msgspec.structs.replace(params, triton=compiled, triton_version=version)
        own = map(str, _own(kernel))
        closed = off_limits(cache=self._cache.folder, root=self._root)
        wall = self._fence.around(closed, "", emulated=False, own=own)
        maker = wall
        if wall is not None and kind == COMMAND:
            maker = self._with_outputs(wall, kernel)
        if kind in (COMMAND, CUDA, TRITON):
            params = msgspec.structs.replace(params, sandbox=self._fence.key())
        if kind == CUDA and kernel.source is not None:
            start = relative(kernel.source, self._root)
            self._includes.append([start, list(kernel.build.flags), to_builtins(includes)])
            headers = [name for name in includes.headers if name not in files]
            host = host_compilers(kernel.build.flags, self._root)
            params = msgspec.structs.replace(
                params,
                headers=digest_json(headers) if headers else None,
                host_compilers=sorted(host.values()),
            )
        return self._spec(
            stages.BUILD,
            kernel,
            arch=arch,
            sources=files,
            packages=packages,
            inputs=() if self._rules is None else self._rules.of_files(files),
            params=params,
            settings={
                "tools": [[t.name, t.path, list(t.release), t.version, t.origin] for t in tools],
                "tool_problems": [
                    to_builtins(problem, enc_hook=str) for problem in self._chain.problems
                ],
                "python": self._python,
                "sandbox": None if maker is None else msgspec.to_builtins(maker),
                "tool_sandbox": None if wall is None else msgspec.to_builtins(wall),
            },
        )

    def _with_outputs(self, wall: Sandbox, kernel: KernelConfig) -> Sandbox:
        """Return the sandbox `wall`, extended so that a build command can write its outputs."""
        outputs = {path for path in (kernel.ptx, kernel.cubin) if path is not None}
        return with_outputs(wall, outputs, programs_of(self._config), self._root)

    @staticmethod
    def _given_paths(kernel: KernelConfig) -> tuple[Path | None, Path | None]:
        """Return the configured paths of a kernel's PTX and cubin, each None if there is none. If a
        file is not configured, but the kernel's source is a ``.ptx`` or ``.cubin`` file, this
        source is returned for it, unless the kernel is built by a command."""
        ptx, cubin = kernel.ptx, kernel.cubin
        if kernel.source is not None and not kernel.build.command:
            ptx = kernel.source if ptx is None and kernel.source.suffix == ".ptx" else ptx
            cubin = kernel.source if cubin is None and kernel.source.suffix == ".cubin" else cubin
        return ptx, cubin

    def _includes_of(self, kernel: KernelConfig) -> Includes:
        """Return a kernel's source and the files that it includes; empty if there is no source."""
        if kernel.source is None:
            return Includes([])
        return find_includes(kernel.source, kernel.build.flags, self._root)

    def _files(
        self, kernel: KernelConfig, kind: str, includes: Includes
    ) -> tuple[list[str], tuple[str, ...]]:
        """Return the files, sorted, and the packages that decide the result of a build."""
        files = set(includes.files)
        packages: tuple[str, ...] = ()
        if kind == GIVEN:
            given = [path for path in self._given_paths(kernel) if path is not None]
            files.update(relative(path, self._root) for path in given)
        if kind == TRITON and kernel.triton is not None:
            closure = self._sources.closure(kernel.triton.path)
            files.update(closure.files)
            packages = closure.packages
        outputs = {path for path in (kernel.ptx, kernel.cubin) if path is not None}
        for pattern in kernel.build.inputs or ():
            made = [] if self._rules is None else self._rules.made(pattern)
            matched = {*glob_files(self._root, pattern), *made}
            files.update(matched - {relative(path, self._root) for path in outputs})
        for word in kernel.build.command:
            path = self._root / word
            if word and path not in outputs and path.is_file():
                files.update(
                    self._sources.closure(path).files
                    if path.suffix == ".py"
                    else find_includes(path, kernel.build.command, self._root).files
                )
        return sorted(files), packages

    def _missing(self, kind: str) -> str:
        """Return the reason why kernels of a kind cannot be built here; empty if they can."""
        if kind == CUDA and not self._chain.tools.get("nvcc"):
            missing = tool_missing("nvcc")
            return f"{missing.message}: {missing.hint}"
        if kind == TRITON and not triton_version(self._python):
            return "triton is not installed: pip install triton"
        return ""

    def _code(self, kernel: KernelConfig, build: TaskSpec, arch: str) -> TaskSpec:
        return self._spec(
            stages.CODE,
            kernel,
            arch=arch,
            inputs=(TaskInput(stages.BUILD, build.name),),
            params=CodeParams(arch=arch),
        )

    def _lint(self, kernel: KernelConfig, build: TaskSpec, arch: str) -> TaskSpec:
        policy = kernel_policy(self._config.policies, kernel)
        if arch:  # this task answers for its own architecture
            policy = structs.replace(policy, archs=(arch,))
        return self._spec(
            stages.LINT,
            kernel,
            arch=arch,
            inputs=(TaskInput(stages.BUILD, build.name),),
            params=LintParams(
                entry=kernel.name,
                arch=arch,
                policy=json.decode(json.encode(policy, order="deterministic")),
                threads=kernel.threads_per_block or 0,
                dynamic_shared_bytes=kernel.dynamic_shared_memory,
                versions=[VIEW_VERSION, LINT_VERSION],
            ),
        )

    def _spec(
        self,
        stage: str,
        kernel: KernelConfig,
        *,
        params: Struct,
        name: str = "",
        arch: str = "",
        settings: Json = None,
        sources: Sequence[str] = (),
        packages: Sequence[str] = (),
        inputs: tuple[TaskInput, ...] = (),
    ) -> TaskSpec:
        default = f"{stage}:{kernel.name}:{arch}" if arch else f"{stage}:{kernel.name}"
        return TaskSpec(
            name=name or default,
            stage=stage,
            version=self._version,
            subject=kernel.name,
            dtype="",
            sources=tuple(sources),
            inputs=inputs,
            params=plain(params),
            settings=settings,
            packages=tuple(packages),
        )


def _own(kernel: KernelConfig) -> list[Path]:
    places = (kernel.source, None if kernel.triton is None else kernel.triton.path)
    return [path for path in places if path is not None]
