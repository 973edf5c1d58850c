"""From a configuration to the task graph: one place decides which task reads what."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuemu_flow.config.model import Config, OpConfig, ProgramRef
from gpuemu_flow.engine.environment import package_version
from gpuemu_flow.engine.graph import STAGES, Graph, Skip
from gpuemu_flow.engine.sources import Closure, SourceIndex
from gpuemu_flow.store.workspace_cache import WorkspaceCache
from gpuemu_flow.tasks import compare, diff, generate, run_op, run_reference
from gpuemu_flow.tasks.base import TaskInput, TaskSpec
from gpuemu_flow.types import Json


@dataclass(frozen=True)
class Overrides:
    """What a command line changes of the configuration.

    Attributes
    ----------
    seed : int or None
        Master seed of all ops.
    """

    seed: int | None = None


class Compiler:
    """Builds the graph of one configuration.

    Parameters
    ----------
    config : Config
    cache : WorkspaceCache
        Only its layout of paths is used.
    overrides : Overrides
    """

    def __init__(self, config: Config, cache: WorkspaceCache, overrides: Overrides) -> None:
        self._config = config
        self._cache = cache
        self.random_seed = False
        self._seed = self._master_seed(overrides)
        self.sources = SourceIndex(config.root)
        self._tasks: dict[str, TaskSpec] = {}
        self._skips: list[Skip] = []
        self._groups: dict[str, list[str]] = {stage: [] for stage in STAGES}

    def graph(self) -> Graph:
        """All tasks, groups and skips."""
        for op in self._config.ops:
            if op.op is None:
                self._skips += [Skip(op.name, dtype, op.skip_reason) for dtype in op.dtypes]
                self._groups.setdefault(op.name, [])
            else:
                self._add_op(op, op.op)
        quick_dtypes = set(self._config.ci.quick_dtypes)
        self._groups["quick"] = [
            name
            for name, spec in self._tasks.items()
            if spec.stage == compare.STAGE and spec.dtype in quick_dtypes
        ]
        self._groups["all"] = list(self._tasks)
        self._add_targets(self._config.targets)
        return Graph(
            self._tasks, {n: tuple(m) for n, m in self._groups.items()}, tuple(self._skips)
        )

    def _master_seed(self, overrides: Overrides) -> int:
        """The command line's seed, else the file's; its 0 means one drawn anew for every run."""
        if overrides.seed is not None:
            return overrides.seed
        if self._config.validation.seed == 0:
            self.random_seed = True
            return secrets.randbits(53)  # below 2**53: readers of JSON in JavaScript keep it whole
        return self._config.validation.seed

    def _add(self, spec: TaskSpec) -> None:
        self._tasks[spec.name] = spec
        self._groups[spec.stage].append(spec.name)
        self._groups.setdefault(spec.subject, []).append(spec.name)

    def _add_op(self, op: OpConfig, program: ProgramRef) -> None:
        slices = op.slices()
        op_files = self._program_files(op, program)
        reference_files = self._program_files(op, op.reference)
        compared = []
        for dtype in op.dtypes:
            made = self._spec(
                generate.STAGE, generate.VERSION, op.name, dtype,
                params={
                    "schema": generate.schema_to_json(op.schema),
                    "seed": self._seed,
                    "cases": op.cases,
                    "strategies": list(op.strategies),
                    "layouts": list(op.layouts),
                },
            )  # fmt: skip
            cases = _reads(generate.STAGE, made)
            ran = self._spec(
                run_op.STAGE, run_op.VERSION, op.name, dtype,
                files=op_files, inputs=(cases,), params=slices["op"],
                settings=self._program_settings(op, program),
            )  # fmt: skip
            expected = self._spec(
                run_reference.STAGE, run_reference.VERSION, op.name, dtype,
                files=reference_files, inputs=(cases,), params=slices["reference"],
                settings=self._program_settings(op, op.reference),
            )  # fmt: skip
            judged = self._spec(
                compare.STAGE, compare.VERSION, op.name, dtype,
                inputs=(cases, _reads(run_op.STAGE, ran), _reads(run_reference.STAGE, expected)),
                params=slices["compare"],
                settings={
                    "op": {"params": ran.params, "settings": ran.settings},
                    "reference": {"params": expected.params, "settings": expected.settings},
                },
            )  # fmt: skip
            for spec in (made, ran, expected, judged):
                self._add(spec)
            compared.append(TaskInput(f"compare:{dtype}", judged.name, judged.target))
        policies = self._config.policies
        self._add(
            self._spec(
                diff.STAGE, diff.VERSION, op.name, "",
                inputs=tuple(compared),
                params={"regression_threshold": policies.regression_threshold},
            )
        )  # fmt: skip

    def _spec(
        self,
        stage: str,
        version: int,
        op: str,
        dtype: str,
        *,
        params: Json,
        settings: Json = None,
        files: Closure = Closure((), ()),  # noqa: B008 - immutable
        inputs: tuple[TaskInput, ...] = (),
    ) -> TaskSpec:
        target = self._cache.manifest_path(stage, op, dtype).relative_to(self._cache.folder)
        versions = ((name, package_version(name)) for name in files.packages)
        return TaskSpec(
            name=f"{stage}:{op}:{dtype}" if dtype else f"{stage}:{op}",
            stage=stage,
            version=version,
            subject=op,
            dtype=dtype,
            sources=files.files,
            inputs=inputs,
            params=params,
            settings=settings,
            target=target.as_posix(),
            packages=tuple((name, version) for name, version in versions if version),
        )

    def _program_files(self, op: OpConfig, program: ProgramRef) -> Closure:
        """Files that decide what a program computes: its closure and the op's ``depends``."""
        start: Path | None = program.path
        if program.module:
            start = self.sources.module_file(program.module)
        closure = self.sources.closure(start) if start is not None else Closure((), ())
        packages = set(closure.packages)
        if start is None and program.module:
            packages.add(program.module.partition(".")[0])
        extra = {
            path.relative_to(self._config.root).as_posix()
            for pattern in op.depends
            for path in self._config.root.glob(pattern)
            if path.is_file()
        }
        return Closure(tuple(sorted({*closure.files, *extra})), tuple(sorted(packages)))

    def _program_settings(self, op: OpConfig, program: ProgramRef) -> Json:
        """What running a program needs and no key holds."""
        return {
            "path": str(program.path) if program.path is not None else "",
            "root": str(self._config.root),
            "timeout": op.timeout,
            "memory_limit": op.memory_limit,
            "isolation": op.isolation,
        }

    def _add_targets(self, targets: Mapping[str, tuple[str, ...]]) -> None:
        """The user's own names; the loader has refused unknown members and cycles."""

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


def _reads(role: str, spec: TaskSpec) -> TaskInput:
    return TaskInput(role, spec.name, spec.target)
