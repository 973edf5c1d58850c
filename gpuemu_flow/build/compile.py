"""Compile a configuration into the task graph, by adding the tasks of rules, ops and kernels."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from gpuemu_flow.build.files import glob_files, interpreter_files, links_of
from gpuemu_flow.build.graph import STAGES, Graph, Skip
from gpuemu_flow.build.snapshot import KernelBasis
from gpuemu_flow.build.sources import Closure, ForbiddenFiles, SourceIndex
from gpuemu_flow.config.model import (
    Config,
    OpConfig,
    Overrides,
    ProgramRef,
    Sampling,
    gradients_of,
    groups_of,
    masks_of,
    samplings,
    to_slice,
)
from gpuemu_flow.judge.subject import CompareParams
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.types import FRAMEWORK_KINDS, SCALAR, Json
from gpuemu_flow.store.cache import WorkspaceCache, artifact_path
from gpuemu_flow.store.keys import digest_bytes
from gpuemu_flow.store.private_files import user_cache_folder
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import (
    CodeParams,
    DiffParams,
    GenerateParams,
    OpParams,
    ReferenceParams,
    TaskInput,
    TaskSpec,
    params_of,
    plain,
)
from gpuemu_flow.workers.api import EMULATED, Gradients, Program
from gpuemu_flow.workers.imports import FRAMEWORKS, is_workspace_path
from gpuemu_flow.workers.sandbox.fence import NOTHING, Fence, OffLimits
from gpuemu_flow.workers.sandbox.spec import OFF

if TYPE_CHECKING:
    from gpuemu_flow.build.compile_kernels import KernelTasks, RuleTasks


def _rules_and_kernels() -> ModuleType:
    """Return the module that compiles rules and kernels, which brings lint; few workspaces have
    any."""
    from gpuemu_flow.build import compile_kernels  # noqa: PLC0415

    return compile_kernels


# Convert the programs of ops to the descriptions from which runners run them.


class ProgramCompiler:
    """Converts the programs of a configuration's ops to descriptions for runners."""

    def __init__(
        self,
        config: Config,
        cache_folder: Path,
        sources: SourceIndex,
        fence: Fence,
        forbidden: ForbiddenFiles,
    ) -> None:
        self._config = config
        self._cache_folder = cache_folder
        self._sources = sources
        self._fence = fence
        self._forbidden = forbidden

    def program(
        self,
        op: OpConfig,
        ref: ProgramRef,
        off_limits: OffLimits,
        code: TaskSpec | None,
        *,
        fenced: bool,
    ) -> dict[str, Json]:
        """Return the description of a program for runners: the JSON of a `Program`. It contains
        limits and absolute paths, which are no part of action keys."""
        executable, *arguments = ref.argv or ("",)
        has_file = (
            ref.path is not None and not ref.module and not (ref.kind == "command" and executable)
        )
        path = str(ref.path) if has_file else executable
        if code is not None:
            arch = params_of(CodeParams, code.params).arch
            path = str(artifact_path(self._cache_folder, code.subject, arch, "ptx"))
        emulated = ref.kind in EMULATED
        sandbox = None
        if fenced:
            own = self._forbidden.own(op, ref)
            sandbox = self._fence.around(off_limits, path, emulated=emulated, own=own)
        gpu = self._gpu_folder(ref)
        if sandbox is not None and any(map(self._gpu_folder, (ref, op.reference, *op.compares))):
            mine = (gpu,) if gpu else ()
            sandbox = replace(
                sandbox,
                hidden=(*sandbox.hidden, self._builds),
                shown=(*sandbox.shown, *mine),
                writable=(*sandbox.writable, *mine),
            )
        if emulated or ref.kind == "cuda-host":
            arguments.append(json.dumps({t.name: t.dims for t in op.schema.inputs}))
        program = Program(
            ref.kind,
            root=str(self._config.root),
            # A dotted module is imported by its name, as relative imports inside it need.
            path=path,
            module=ref.module,
            function=ref.function,
            argv=tuple(arguments),
            loads="" if ref.loads is None else str(ref.loads),
            input_names=op.input_names,
            output_names=tuple(tensor.name for tensor in op.schema.outputs),
            kwargs=dict(op.kwargs),
            env=dict(op.env),
            env_names=op.env_names,
            timeout=op.timeout,
            timeout_grows=op.timeout_grows,
            memory_limit=op.memory_limit,
            isolation=op.isolation,
            python=self._config.execution.python_path or "",
            mutates=op.mutates,
            leaves=tuple(
                name
                for name in op.in_place
                if fenced or name not in {tensor.name for tensor in op.schema.outputs}
            ),
            scalars={
                t.name: list(t.rule.choices) or None
                for t in op.schema.inputs
                if t.rule is not None and t.rule.kind == SCALAR
            },
            optional=tuple(t.name for t in op.schema.inputs if t.rule and t.rule.optional),
            groups=groups_of(op),
            deterministic=op.deterministic,
            masks=masks_of(op),
            gradients=convert({**gradients_of(op), "plain": fenced}, Gradients)
            if op.gradients
            else None,
            # Only for the op: a reference may be the library that is forbidden to the op.
            require_kernel=fenced and op.require_kernel,
            forbid=op.forbid if fenced else (),
            framework=self._framework(ref),
            gpu_folder=gpu,
            sandbox=sandbox,
        )
        settings: dict[str, Json] = msgspec.to_builtins(program)
        return settings

    def generators(self, op: OpConfig, program: ProgramRef) -> dict[str, Json]:
        """Return the descriptions of the functions that generate the op's inputs, by their labels.
        They are in a dict under the key ``generators``, which is missing if there are none. The
        restrictions of the op apply to these functions, too."""
        if not op.generators:
            return {}
        off_limits = self._forbidden.off_limits(op, program, *op.generators.values())
        made = {
            label: self.program(
                replace(op, kwargs={}, outputs=(), gradients=()), ref, off_limits, None, fenced=True
            )
            for label, ref in op.generators.items()
        }
        return {"generators": made}

    @cached_property
    def _builds(self) -> str:
        return str(user_cache_folder(os.environ) / "cuda" / "ops")

    def _gpu_folder(self, ref: ProgramRef) -> str:
        """Return the folder for what a program with CUDA host code builds; empty for others."""
        if ref.kind != "cuda-host":
            elsewhere = self._config.execution.python_path
            if ref.kind not in ("torch", "callable") or elsewhere:
                return ""
            starts = [*ref.files, *((ref.loads,) if ref.loads else ())]
            found = self._sources.module_file(ref.module) if ref.module else None
            starts += [found] if found is not None else []
            if not any(map(self._sources.uses_cuda, starts)):
                return ""
        place = f"{self._config.root}\0{ref.loads or ref.path or ref.module}"
        return f"{self._builds}/{digest_bytes(place.encode())[:32]}"

    def _framework(self, ref: ProgramRef) -> str:
        """Return the name of a framework that the program or its modules import; empty if none. See
        `preloadable` for its use."""
        starts = [] if ref.kernel else [*ref.files]
        found = self._sources.module_file(ref.module) if ref.module else None
        starts += [found] if found is not None else []
        packages = {ref.kind}.union(*(self._sources.closure(start).packages for start in starts))
        return next((name for name in FRAMEWORKS if name in packages), "")


class Compiler:
    """Builds the task graph of a configuration."""

    def __init__(
        self, config: Config, cache: WorkspaceCache, overrides: Overrides, version: str
    ) -> None:
        self._config = config
        self._cache = cache
        self._version = version
        sampling = samplings(config).get(overrides.ci, Sampling())
        self._sampling = replace(sampling, cases=overrides.cases or sampling.cases)
        self.drawn_seed: int | None = None
        self._seed = self._master_seed(overrides)
        self.sources = SourceIndex(config.root)
        wanted = config.sandbox
        references = frozenset(_references(config)) if wanted.mode != OFF else frozenset()
        self.listed = cache.keep_references(references) if references else ""
        self.fence = Fence(
            wanted.mode,
            config.root,
            tuple(map(str, wanted.writable)),
            str(user_cache_folder(os.environ) / "kernels"),
            tuple(map(str, (*wanted.hidden, *_results(config)))),
            wanted.apart,
            self._outputs_apart(config),
            references,
            self.listed,
        )
        self._forbidden = ForbiddenFiles(config.root, cache.folder, config.files, self.sources)
        self._programs = ProgramCompiler(
            config, cache.folder, self.sources, self.fence, self._forbidden
        )
        self._tasks: dict[str, TaskSpec] = {}
        self._skips: list[Skip] = []
        self.kernel_basis: KernelBasis | None = None
        self._rules: RuleTasks | None = None
        self._groups: dict[str, list[str]] = {stage: [] for stage in STAGES}

    def graph(self) -> Graph:
        self._rules = self._add_rules()
        kernels = self._kernels()
        for op in self._config.ops:
            reason = op.skip_reason
            for ref in (op.op, op.reference):
                if kernels is not None and ref is not None and ref.kernel:
                    reason = reason or kernels.unbuildable.get(ref.kernel, "")
            if op.op is None or reason:
                self._skips += [Skip(op.name, dtype, reason) for dtype in op.dtypes]
                self._groups.setdefault(op.name, [])
            else:
                self._add_op(self._sampling.of(op), op.op, kernels)
        if kernels is not None:
            self._add_kernels(kernels)
        quick_dtypes = set(self._config.ci.quick_dtypes)
        self._groups["quick"] = [
            name
            for name, spec in self._tasks.items()
            if spec.stage == stages.COMPARE and spec.dtype in quick_dtypes
        ]
        self._groups["all"] = list(self._tasks)
        self._add_targets(self._config.targets)
        return Graph(
            self._tasks, {n: tuple(m) for n, m in self._groups.items()}, tuple(self._skips)
        )

    @staticmethod
    def _outputs_apart(config: Config) -> tuple[str, ...]:
        if not (config.rules and config.sandbox.apart):
            return ()
        return tuple(_rules_and_kernels().outputs_apart(config))

    def _add_rules(self) -> RuleTasks | None:
        """Add the tasks of the rules, and return them; None if there are no rules. Call this before
        adding ops or kernels, since their tasks refer to these tasks."""
        if not self._config.rules:
            return None
        found: RuleTasks = _rules_and_kernels().rule_tasks(
            self._config, self._cache, self.sources, self._version, self.fence
        )
        for rule, spec in found.tasks.items():
            self._tasks[spec.name] = spec
            self._groups[stages.BUILD].append(spec.name)
            self._groups.setdefault(rule, []).append(spec.name)
        return found

    def _needs(self, op: OpConfig, stage: str, *programs: ProgramRef) -> tuple[TaskInput, ...]:
        """Return, as task inputs, the rules that a stage of an op needs."""
        if self._rules is None or not programs:
            return ()
        files = {self.sources.relative(path) for ref in programs for path in ref.files}
        return self._rules.needed(op, stage, files)

    def _kernels(self) -> KernelTasks | None:
        if not self._config.kernels:
            return None
        compiler = _rules_and_kernels().KernelCompiler(
            self._config, self._cache, self.sources, self._version, self.fence, self._rules
        )
        found: KernelTasks = compiler.compile()
        return found

    def _add_kernels(self, kernels: KernelTasks) -> None:
        self.kernel_basis = kernels.basis
        self._skips += kernels.skips
        self._tasks.update((spec.name, spec) for spec in kernels.tasks)
        for name, members in kernels.groups.items():
            self._groups.setdefault(name, []).extend(members)

    def _master_seed(self, overrides: Overrides) -> int:
        """Return the master seed of the command line, else of ``[ci]``, else of
        ``[validation]``. If the configured seed is 0, or the command line asks for a new seed, a
        random one is drawn."""
        if overrides.seed is not None:
            return overrides.seed
        wanted = (
            self._config.validation.seed if self._sampling.seed is None else self._sampling.seed
        )
        if wanted == 0 or overrides.draw_seed:
            # Below 2**53, so that JSON parsers in JavaScript do not round it.
            wanted = self.drawn_seed = secrets.randbits(53)
        return wanted

    def _add(self, spec: TaskSpec) -> None:
        self._tasks[spec.name] = spec
        self._groups[spec.stage].append(spec.name)
        self._groups.setdefault(spec.subject, []).append(spec.name)
        if spec.dtype:
            self._groups.setdefault(f"{spec.stage}:{spec.subject}", []).append(spec.name)

    def _add_op(self, op: OpConfig, program: ProgramRef, kernels: KernelTasks | None) -> None:
        compared = []
        builds = {ref.kernel: self._code(ref, kernels) for ref in (program, op.reference)}
        off_limits = self._forbidden.off_limits(op, program)
        fence: dict[str, Any] = {
            "sandbox": self._forbidden.key(self.fence, op, program, off_limits)
        }
        walled = not self._needs_no_wall(program)
        known = self._known(op, program) if walled else ()
        for dtype in op.dtypes:
            parts = to_slice(op, dtype)
            made = self._spec(
                stages.GENERATE,
                op.name,
                dtype,
                params=GenerateParams(
                    **parts["cases"],
                    seed=self._seed,
                    samples_seed=self._config.validation.seed,
                    dtype=dtype,
                ),
                files=self._program_files(op, *op.generators.values())
                if op.generators
                else Closure((), ()),
                inputs=self._needs(op, stages.GENERATE, *op.generators.values()),
                settings={
                    "schema": to_builtins(op.schema),
                    **self._programs.generators(op, program),
                },
            )
            cases = _reads(stages.GENERATE, made)
            judge = f"{stages.REFERENCE}:{op.name}:{dtype}" if walled else ""
            ran, expected = (
                self._spec(
                    stage,
                    op.name,
                    dtype,
                    files=self._program_files(op, ref),
                    inputs=(
                        cases,
                        *_reads_code(builds[ref.kernel]),
                        *self._needs(op, stage, ref),
                    ),
                    params=kind(
                        **parts[stage],
                        **self._what_it_computes(parts["program"]),
                        **self._interpreter(),
                        **extra,
                    ),
                    settings=self._programs.program(
                        op, ref, off_limits, builds[ref.kernel], fenced=stage == stages.OP
                    ),
                    judge=judge if stage == stages.OP else "",
                    known=known if stage == stages.OP else (),
                )
                for stage, kind, ref, off_limits, extra in (
                    (stages.OP, OpParams, program, off_limits, fence),
                    (stages.REFERENCE, ReferenceParams, op.reference, NOTHING, {}),
                )
            )
            judged = self._spec(
                stages.COMPARE,
                op.name,
                dtype,
                # With `auto`, the tolerance is computed from the reference itself, which is run
                # again in the comparison.
                files=self._program_files(op, op.reference, *op.compares),
                inputs=(
                    cases,
                    _reads(stages.OP, ran),
                    _reads(stages.REFERENCE, expected),
                    *_reads_code(builds[op.reference.kernel]),
                    *self._needs(op, stages.COMPARE, op.reference, *op.compares),
                ),
                params=convert(parts["compare"], CompareParams),
                settings={"op": ran.settings, "reference": expected.settings},
                judge=judge,
                known=known,
            )
            for spec in (made, ran, expected, judged):
                self._add(spec)
            compared.append(TaskInput(f"compare:{dtype}", judged.name))
        threshold = self._config.policies.regression_threshold
        self._add(
            self._spec(
                stages.DIFF,
                op.name,
                "",
                inputs=tuple(compared),
                params=DiffParams(regression_threshold=threshold),
            )
        )

    def _code(self, ref: ProgramRef, kernels: KernelTasks | None) -> TaskSpec | None:
        """Add the ``code`` task of a program's kernel and the ``build`` task that it reads. Returns
        the ``code`` task, or None if the program has no kernel."""
        spec = kernels.code_of(ref.kernel, ref.arch) if kernels and ref.kernel else None
        if spec is not None:
            self._tasks.update((made.name, made) for made in self._makers(spec, kernels))
        return spec

    @staticmethod
    def _makers(spec: TaskSpec, kernels: KernelTasks | None) -> list[TaskSpec]:
        needed = {spec.name, *(source.task for source in spec.inputs)}
        return [task for task in kernels.tasks if task.name in needed] if kernels else []

    @staticmethod
    def _what_it_computes(program: Mapping[str, Json]) -> dict[str, Json]:
        """Return a program's properties except its limits, such as timeouts."""
        limits = ("timeout", "timeout_grows", "memory_limit", "isolation")
        return {name: value for name, value in program.items() if name not in limits}

    def _interpreter(self) -> dict[str, Json]:
        """Return the task parameter that names the configured interpreter; {} if there is none."""
        python = self._config.execution.python_path
        return {"python": self.sources.relative(Path(python))} if python else {}

    def _spec(
        self,
        stage: str,
        op: str,
        dtype: str,
        *,
        params: Struct,
        settings: Json = None,
        files: Closure = Closure((), ()),  # noqa: B008 - immutable
        inputs: tuple[TaskInput, ...] = (),
        judge: str = "",
        known: tuple[str, ...] = (),
    ) -> TaskSpec:
        return TaskSpec(
            name=f"{stage}:{op}:{dtype}" if dtype else f"{stage}:{op}",
            stage=stage,
            version=self._version,
            subject=op,
            dtype=dtype,
            sources=files.files,
            inputs=inputs,
            params=plain(params),
            settings=settings,
            packages=files.packages,
            judge=judge,
            known=known,
        )

    def _needs_no_wall(self, program: ProgramRef) -> bool:
        """Tell whether nothing is hidden from a program, so that `TaskSpec.judge` is empty. A
        compiled kernel reads no files: our emulator runs it."""
        return program.kind in EMULATED or self.fence.level == OFF

    def _known(self, op: OpConfig, program: ProgramRef) -> tuple[str, ...]:
        """Return the value of `TaskSpec.known`, sorted. It contains the result of
        `ForbiddenFiles.known`, the outputs of rules that the op's globs match, and the files of the
        configured interpreter."""
        patterns = (*op.depends, *op.shared)
        found = {name for pattern in patterns for name in self._rules_made(pattern)}
        found.update(self._forbidden.known(op, program))
        python = self._config.execution.python_path
        if python and "/" in python:
            found.update(interpreter_files(python, self._config.root))
        return tuple(sorted(found))

    def _rules_made(self, pattern: str) -> list[str]:
        return [] if self._rules is None else self._rules.made(pattern)

    def _program_files(self, op: OpConfig, *programs: ProgramRef) -> Closure:
        """Return the files and packages that determine the results of an op's programs. These are
        what the programs import, and the files that ``depends`` matches."""
        files: set[str] = set()
        packages: set[str] = set()
        for program in programs:
            # Sources of compiled code are inputs of its build. Comments in them do not matter here.
            starts = [] if program.kernel else list(program.files)
            if program.module:
                found = self.sources.module_file(program.module)
                starts += [found] if found is not None else []
            closures = [self.sources.closure(start) for start in starts]
            files.update(path for closure in closures for path in closure.files)
            packages.update(name for closure in closures for name in closure.packages)
            if program.module and not starts:
                packages.add(program.module.partition(".")[0])
            if program.kind in EMULATED:
                packages.add("numpy")
            if program.kind in FRAMEWORK_KINDS:
                packages.add(program.kind)
        for pattern in op.depends:
            files.update(glob_files(self._config.root, pattern))
            files.update(self._rules_made(pattern))
        python = self._config.execution.python_path
        if python and "/" in python:
            files.add(self.sources.relative(Path(python)))
        return Closure(tuple(sorted(files)), tuple(sorted(packages)))

    def _add_targets(self, targets: Mapping[str, tuple[str, ...]]) -> None:
        """Add the user's targets to the groups; they are valid, since the loader checked them."""

        def members(name: str) -> list[str]:
            found: dict[str, None] = {}
            for word in targets[name]:
                if word in targets:
                    found.update(dict.fromkeys(members(word)))
                elif word in self._tasks:
                    found[word] = None
                else:
                    found.update(dict.fromkeys(self._groups.get(word, ())))
            return list(found)

        expanded = {name: members(name) for name in targets}
        self._groups.update(expanded)


def links_on_the_way(config: Config) -> list[list[str]]:
    """Return [link, target] for every symbolic link on the path to a program or the interpreter.
    The list is sorted. When the target of a link changes, the configuration is read anew, since the
    link may then lead out of the workspace."""
    python = config.execution.python_path
    paths = {
        path
        for op in config.ops
        for ref in (op.op, op.reference, *op.compares, *op.generators.values())
        if ref is not None
        for path in (*ref.files, *([ref.path] if ref.path is not None else ()))
    }
    paths.update({Path(python)} if python and "/" in python else ())
    found = {link for path in paths for link in links_of(str(path))}
    return sorted([link, str(Path(link).readlink())] for link in found)


def _references(config: Config) -> Iterator[str]:
    """Yield the real paths of the files of the workspace that only judge ops."""
    programs = {
        os.path.realpath(path) for op in config.ops if op.op is not None for path in op.op.files
    }
    for op in config.ops:
        for path in {file for ref in (op.reference, *op.compares) for file in ref.files}:
            real = os.path.realpath(path)
            if real not in programs and is_workspace_path(real, str(config.root)):
                yield real


def _results(config: Config) -> list[Path]:
    """Return the configured folder for results of submissions, in a list of at most one item. The
    list is empty if no folder is configured, or if the folder contains the workspace."""
    folder = config.storage.db_path
    return [] if folder is None or config.root.is_relative_to(folder) else [folder]


def _reads(role: str, spec: TaskSpec) -> TaskInput:
    return TaskInput(role, spec.name)


def _reads_code(spec: TaskSpec | None) -> tuple[TaskInput, ...]:
    return () if spec is None else (_reads(stages.CODE, spec),)


# Find references that import the op that they check.


def dependent_references(config: Config, tasks: Iterable[TaskSpec]) -> list[Problem]:
    """Return a warning for each op whose reference imports the file of the op. Such a reference may
    return the op's own results. The op would then pass whatever it computes."""
    imported = {spec.subject: spec.sources for spec in tasks if spec.stage == stages.REFERENCE}
    found = []
    for op in config.ops:
        file = op.op.relative if op.op is not None else ""
        if file and file != op.reference.relative and file in imported.get(op.name, ()):
            text = f"the reference of {op.name} imports {file}, which is the op"
            hint = "what the op gets wrong may then be wrong in both: move what both need elsewhere"
            found.append(Problem("reference-imports-op", text, hint, warning=True))
    return found


def dropped_flags(config: Config, environ: Mapping[str, str]) -> list[Problem]:
    """Return a warning for each variable that gives nvcc flags, which builds do not use."""
    if not any(str(kernel.source).endswith(".cu") for kernel in config.kernels):
        return []
    return [
        Problem(
            "nvcc-flags-dropped",
            f"{name}={environ[name]} is not used: no key of a build would hold it",
            "write the flags into `flags` of the op, or of the kernel's `build`",
            warning=True,
        )
        for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
        if environ.get(name)
    ]
