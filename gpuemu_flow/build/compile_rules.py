"""Compile rules to tasks: one task for each command that makes files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from gpuemu_flow.build.globs import glob_files
from gpuemu_flow.build.sources import SourceIndex
from gpuemu_flow.config.model import Config, OpConfig, RuleConfig
from gpuemu_flow.config.paths import matches
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import TaskInput, TaskSpec
from gpuemu_flow.tasks.params import RuleParams, plain
from gpuemu_flow.workers.sandbox.fence import Fence, off_limits
from gpuemu_flow.workers.sandbox.spec import Sandbox, is_below


class RuleTasks(Struct):
    """The part of the graph that the rules add."""

    tasks: dict[str, TaskSpec] = field(default_factory=dict)

    def made(self, pattern: str) -> list[str]:
        """Return the names of the rules' outputs that a glob matches; they need not exist yet."""
        outputs = (name for spec in self.tasks.values() for name in spec.outputs)
        return [name for name in outputs if matches(pattern, name)]

    def needed(self, op: OpConfig, stage: str, files: Collection[str]) -> tuple[TaskInput, ...]:
        """Return the rules that a stage of an op needs, as inputs of its task.

        For the stage ``op``, their results are part of the task's key. Programs of other stages,
        such as references, rarely depend on the rules' outputs. Therefore, the tasks of these
        stages only wait for the rules. They run again only if the files of their programs, or files
        that the programs used, have changed.
        """
        used = {*files, *(name for pattern in op.depends for name in self.made(pattern))}
        makers = [n for n, spec in self.tasks.items() if not used.isdisjoint(spec.outputs)]
        beginning = stages.BUILT if stage == stages.OP else stages.AFTER
        return tuple(self.inputs(dict.fromkeys((*op.needs, *makers)), beginning))

    def of_files(self, files: Iterable[str]) -> tuple[TaskInput, ...]:
        """Return the rules that make these files, as inputs of a task."""
        used = set(files)
        return tuple(
            self.inputs(n for n, spec in self.tasks.items() if not used.isdisjoint(spec.outputs))
        )

    def inputs(self, rules: Iterable[str], beginning: str = stages.BUILT) -> list[TaskInput]:
        """Return these rules as inputs of a task.

        The role of an input is `beginning`, followed by the rule's name.
        """
        specs = [self.tasks[rule] for rule in rules if rule in self.tasks]
        return [TaskInput(f"{beginning}{s.subject}", s.name) for s in specs]


def outputs_apart(config: Config) -> tuple[str, ...]:
    """Return the absolute paths of the rules' outputs that match the key ``sandbox.apart``.

    The key is a list of globs. An output is returned if a glob matches the output or one of its
    parent folders. Outputs need not exist yet, since they are taken from the configuration.
    """
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
    """Make the tasks of all rules of a configuration."""
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
    """Return a sandbox, extended so that a command can write its declared outputs.

    The command can also write other files in the folders of these outputs, except in the
    workspace's top folder. In a hidden folder, it can read and write only its declared outputs.
    """
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

    The command can write `outputs`, too.
    """
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
    """Return the files and the packages that decide a rule's outputs, each in sorted order.

    The rule's own outputs are left out, even if a glob matches them. Outputs of other rules, which
    `declared` lists, are included even before they exist.
    """
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
