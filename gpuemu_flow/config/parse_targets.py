"""Parse ``[targets]``: check each name, and expand targets within targets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from gpuemu_flow.config.model import KernelConfig, OpConfig
from gpuemu_flow.config.names import (
    BUILD,
    GROUPS,
    KERNEL_STAGES,
    OP_STAGES,
    STAGES,
    name_fault,
    split_task,
)
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.report import Reporter, shown
from gpuemu_flow.config.target_options import members_of, members_path
from gpuemu_flow.model.types import Json

MAX_SHOWN = 8
MAX_CIRCLES = 20
MAX_MEMBERS = 500_000  # total of all expanded targets


class TargetParser(Struct, dict=True):
    """Checks and expands the user's targets."""

    # The ops and kernels without errors.
    ops: Sequence[OpConfig]
    kernels: Sequence[KernelConfig]
    # Names of all ops, kernels and rules of the files, including those that have errors: a
    # target that names them causes no further error.
    names: frozenset[str]
    rules: Collection[str]
    # Maps a key path to the reporter of its file.
    out_of: Callable[[KeyPath], Reporter]
    expanded: dict[str, tuple[str, ...]] = {}
    total: int = 0

    def __post_init__(self) -> None:
        self.op_of = {op.name: op for op in self.ops}
        self.kernel_of = {kernel.name: kernel for kernel in self.kernels}

    def parse(self, tables: Mapping[str, Json]) -> dict[str, tuple[str, ...]]:
        """Map each target to the ops, tasks and groups that it contains, without duplicates."""
        given = {name: members_of(value) for name, value in tables.items()}
        for name, members in given.items():
            where = ("targets", name)
            fault = name_fault(name)
            if name in self.names:
                fault = "is the name of an op, kernel or rule"
            if fault:
                text = f"the target {shown(name)} {fault}"
                self.out_of(where).add("config-reserved-name", where, text)
            for place, member in enumerate(members):
                if member not in given:
                    self.check(member, (*members_path(name, tables[name]), place), given)
        if not self.any_circle(given):
            for name in given:
                self.expand(name, given)
        if self.total > MAX_MEMBERS:
            text = f"targets within targets stand for over {MAX_MEMBERS} members"
            self.out_of(("targets",)).add("config-too-large", ("targets",), text)
        return self.expanded

    def check(self, member: str, where: KeyPath, targets: Iterable[str]) -> None:
        """Report a member that is neither an op, a kernel, a task, a group nor a stage."""
        if member in self.names or member in STAGES or member in GROUPS:
            return
        task = split_task(member)
        if task is None:
            out = self.out_of(where)
            hint = out.nearest(member, (*self.names, *targets, *STAGES, *GROUPS))
            text = f"{shown(member)} is no op, kernel, rule, task, group or target"
            out.add("config-target-unknown", where, text, hint)
            return
        stage, subject, last = task
        fault, hint = self.task_fault(stage, subject, last, self.out_of(where))
        if fault:
            text = f"there is no task {shown(member)}: {fault}"
            self.out_of(where).add("config-target-unknown", where, text, hint)

    def task_fault(self, stage: str, subject: str, last: str, out: Reporter) -> tuple[str, str]:
        """Return the reason why a task does not exist, and a hint; both are empty if it exists.

        They are also empty if the subject has errors of its own, which are reported anyway. `last`
        is the end of the task's name: a dtype, an architecture, or ''.
        """
        op, kernel = self.op_of.get(subject), self.kernel_of.get(subject)
        fault, hint = "", ""
        if stage == BUILD and subject in self.rules and not last:
            return "", ""
        if op is not None and stage in OP_STAGES:
            if last and last not in op.dtypes:
                fault = f"{subject} is not checked as {last}"
                hint = f"its dtypes: {', '.join(op.dtypes)}"
        elif kernel is not None and stage in KERNEL_STAGES:
            arches = kernel.build.arch
            if last and arches and last not in arches:
                fault = f"{subject} is not built for {last}"
                hint = f"its architectures: {', '.join(arches)}"
        elif op is not None or kernel is not None:
            fault = f"{subject} has no stage {stage}"
            hint = f"its stages: {', '.join(OP_STAGES if op is not None else KERNEL_STAGES)}"
        elif subject not in self.names:  # otherwise its own errors are reported
            fault = f"{shown(subject)} is no op, kernel or rule"
            hint = out.nearest(subject, self.names)
        return fault, hint

    def any_circle(self, given: Mapping[str, list[str]]) -> bool:
        """Report targets that contain themselves; return True if there are any."""
        finished: set[str] = set()
        found = 0
        for start in given:
            # An explicit stack instead of recursion, since a chain may exceed Python's limit.
            path = {start: None} if start not in finished else {}
            stack = [iter(given[name]) for name in path]
            while stack:
                for member in stack[-1]:
                    if member in path:
                        self.report_circle(list(path), member)
                        found += 1
                        if found == MAX_CIRCLES:
                            return True
                    elif member in given and member not in finished:
                        path[member] = None
                        stack.append(iter(given[member]))
                        break
                else:
                    stack.pop()
                    finished.add(path.popitem()[0])
        return found > 0

    def report_circle(self, path: list[str], back_to: str) -> None:
        circle = [*path[path.index(back_to) :], back_to]
        if len(circle) > MAX_SHOWN:
            circle = [*circle[: MAX_SHOWN // 2], "…", *circle[-MAX_SHOWN // 2 :]]
        where = ("targets", path[-1])
        text = f"targets lead in a circle: {' → '.join(circle)}"
        self.out_of(where).add("config-target-cycle", where, text, "remove one of them")

    def expand(self, start: str, given: Mapping[str, list[str]]) -> None:
        """Store the members of target `start` in ``self.expanded``, with nested targets expanded.

        A target among the members is replaced by its own members, and its expansion is stored, too.
        `given` maps each target to the members that the configuration names. The code does not
        recurse, as targets may nest deeply. It stops early if there are over `MAX_MEMBERS` members.
        """
        stack = [start]
        while stack and self.total <= MAX_MEMBERS:
            name = stack[-1]
            if name in self.expanded:
                stack.pop()
                continue
            missing = [m for m in given[name] if m in given and m not in self.expanded]
            if missing:
                stack.extend(missing)
                continue
            members: dict[str, None] = {}
            for member in given[name]:
                members.update(dict.fromkeys(self.expanded.get(member, (member,))))
            self.expanded[name] = tuple(members)
            self.total += len(members)
