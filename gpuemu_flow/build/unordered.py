"""Refuse verdicts on programs that use a rule's output without waiting for the rule.

Such a program may have read the file before the rule updated it. Tasks are ordered only by `needs`,
because the files that a program uses are known only after it ran.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from gpuemu_flow.build.files import has_link
from gpuemu_flow.build.graph import Graph
from gpuemu_flow.model.errors import Problem, RunnerError
from gpuemu_flow.model.types import ConfiguredEnv, Observation
from gpuemu_flow.store.keys import Discovered, Lookup
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import TaskSpec

if TYPE_CHECKING:
    from gpuemu_flow.build.discovery import ObservedSets
    from gpuemu_flow.build.states import TaskStates
    from gpuemu_flow.build.workspace import Workspace

SLUG = "needs-missing"
_PROGRAMS = (stages.GENERATE, stages.OP, stages.REFERENCE, stages.COMPARE)
_DONE = ("current", "ran", "restored")
_INSTALLED = "<"  # such names begin with a prefix of the interpreter


class RuleOutputs(Struct, frozen=True):
    """The outputs of some or all rules of a graph."""

    root: Path
    producers: Mapping[str, tuple[str, str]]
    op: str = ""
    needs: tuple[str, ...] = ()

    @classmethod
    def of(cls, graph: Graph, root: Path) -> RuleOutputs:
        """Collect the outputs of all rules of a graph."""
        named = (n for n, spec in graph.tasks.items() if spec.stage == stages.RULE)
        rules = [graph.tasks[name] for name in named]  # no other task of a stored graph is parsed
        places = {_placed(str(root / o)): (spec.subject, o) for spec in rules for o in spec.outputs}
        return cls(root, places)

    @classmethod
    def not_awaited(cls, graph: Graph, root: Path, op: str) -> RuleOutputs:
        """Collect the outputs of the rules that neither an op nor its reference waits for."""
        found = cls.of(graph, root)
        if not found.producers:
            return found
        runs = (stages.OP, stages.REFERENCE)
        tasks = graph.tasks.items()
        names = [n for n, spec in tasks if spec.subject == op and spec.stage in runs]
        own = [graph.tasks[name] for name in names]
        before = _rules_before(graph, [spec.name for spec in own])
        others = {path: made for path, made in found.producers.items() if made[0] not in before}
        return cls(root, others, op, tuple(_named_needs(own)))

    def used(self, names: Discovered) -> dict[str, str]:
        """Find the rules whose outputs a program used, and map each rule to one used output.
        `names` holds the inputs of the program. An output that the program looked for in vain
        counts as used. Folders that the program listed do not count, since an interpreter lists
        each folder in which it looks for modules."""
        found: dict[str, str] = {}
        if not self.producers:
            return found
        linked: dict[str, bool] = {}
        for name in sorted(names.files | names.missed | names.looked):
            if name.startswith(_INSTALLED):
                continue
            path = os.path.join(self.root, name)  # noqa: PTH118 - for each file of each program
            places = {path}
            if has_link(path, linked):
                places |= {_placed(path), os.path.realpath(path)}
            for rule, output in map(self.producers.__getitem__, places & self.producers.keys()):
                found.setdefault(rule, output)
        return found

    def refuse(self, names: Discovered) -> None:
        """Raise RunnerError ``needs-missing`` if `names` contains an output of these rules."""
        used = self.used(names)
        if used:
            raise RunnerError(_without_needs(f"{self.op} or its reference", self.needs, used))

    def refuse_seen(self, observed: Mapping[str, Observation], lookup: Lookup) -> None:
        """Call `refuse` for each of the op's programs, with the inputs that it was seen to use.
        `observed` holds what each program was seen to use so far, as raw observations. `lookup`
        converts these to the names of inputs that `refuse` takes."""
        for seen in observed.values() if self.producers else ():
            self.refuse(lookup.discover(seen, ConfiguredEnv()))

    def not_waited_for(
        self,
        graph: Graph,
        observed: ObservedSets,
        states: TaskStates,
        names: Collection[str],
        finished: Collection[str] = (),
    ) -> dict[str, Problem]:
        """Return a problem for each task that used one of the outputs without waiting for its
        rule."""
        found: dict[str, Problem] = {}
        looked: dict[str | Discovered, dict[str, str]] = {}
        told: dict[tuple[str, str], set[str]] = {}
        for name, spec in graph.tasks.items():
            if name not in names or spec.stage not in _PROGRAMS:
                continue
            # Thousands of tasks may use the same set; check each set only once.
            key: str | Discovered = "" if name in finished else observed.task_sets.get(name, "")
            if not key:
                made = states.made_from(name)
                if made is None:
                    continue
                key = made.discovered
            if key not in looked:
                looked[key] = self.used(observed.names([name]) if isinstance(key, str) else key)
            if looked[key]:
                before = _rules_before(graph, [name])
                # A comparison's files include those of its reference, already reported there.
                before |= told.setdefault((spec.subject, spec.dtype), set())
                used = {rule: file for rule, file in looked[key].items() if rule not in before}
                if used:
                    told[spec.subject, spec.dtype].update(used)
                    who = f"{spec.stage} of {spec.subject}"
                    found[name] = _without_needs(who, _named_needs([graph.tasks[name]]), used)
        return found


def unordered(
    workspace: Workspace, names: Collection[str], finished: Collection[str] = ()
) -> dict[str, Problem]:
    """Find tasks that do not wait for a rule although their program used an output of the rule."""
    outputs = RuleOutputs.of(workspace.graph, workspace.root)
    if not outputs.producers:
        return {}
    observed, states = workspace.snapshot.observed, workspace.states()
    return outputs.not_waited_for(workspace.graph, observed, states, names, finished)


def announced(workspace: Workspace, status: Mapping[str, str]) -> list[Problem]:
    """Predict the problems of tasks that use a rule's output without waiting for the rule. After a
    run, the function `unordered` finds such tasks. This function needs only a dry run. Programs
    whose code changed are left out, since the files that they will use are unknown."""
    graph, states = workspace.graph, workspace.states()
    outputs = RuleOutputs.of(graph, workspace.root)
    if not outputs.producers:
        return []
    alike, unknown = set[str](), set[str]()
    told = dict[str, list[Problem]]()
    for name in status:
        made = states.made_from(name)
        if made is None:
            told[name] = states.broken(graph.tasks[name]) or []
            if not told[name]:
                unknown.add(name)
        elif made.parts.get("code") == states.code(graph.tasks[name]):
            alike.add(name)
    known = told.keys() - graph.downstream(unknown)
    problems = [problem for name in told if name in known for problem in told[name]]
    found = outputs.not_waited_for(graph, workspace.snapshot.observed, states, alike)
    mine = (problem for problem in problems if problem.slug == SLUG)
    return list(dict.fromkeys((*mine, *found.values())))


def refuse_unordered(workspace: Workspace, status: dict[str, str]) -> list[Problem]:
    """Mark as failed the tasks that used a rule's output without waiting for the rule. The function
    `unordered` finds these tasks. All tasks that depend on them are marked, too."""
    graph = workspace.graph
    finished = {name for name, how in status.items() if how in ("ran", "restored")}
    looked_at = {name for name, how in status.items() if how in _DONE}
    found = unordered(workspace, looked_at, finished)
    states = workspace.states()
    for name, problem in found.items():
        for task in graph.downstream([name]) & status.keys():
            if status[task] in _DONE:
                status[task] = "failed"
            if graph.tasks[task].stage in _PROGRAMS and (task == name or task not in found):
                states.save_broken(graph.tasks[task], [problem])
    return list(dict.fromkeys(found.values()))


def _rules_before(graph: Graph, tasks: Iterable[str]) -> set[str]:
    """Return the rules that tasks wait for, directly or through other tasks."""
    before = map(graph.tasks.__getitem__, graph.upstream(tasks))
    return {spec.subject for spec in before if spec.stage == stages.RULE}


def _named_needs(specs: Iterable[TaskSpec]) -> list[str]:
    found: dict[str, None] = {}
    for source in (source for spec in specs for source in spec.inputs):
        for beginning in (stages.BUILT, stages.AFTER):
            if source.role.startswith(beginning):
                found[source.role.removeprefix(beginning)] = None
    return list(found)


def _placed(path: str) -> str:
    """Return a path with the links in its folder resolved, but not a link at its end."""
    folder, name = os.path.split(path)
    return f"{os.path.realpath(folder).rstrip('/')}/{name}"


def _without_needs(who: str, needs: Iterable[str], used: Mapping[str, str]) -> Problem:
    files = " and ".join(f"{file}, which the rule {rule} makes," for rule, file in used.items())
    wanted = ", ".join(f'"{rule}"' for rule in dict.fromkeys((*needs, *used)))
    return Problem(
        SLUG,
        f"{who} used {files} without waiting for the rule: the file may have been an old one",
        f"add `needs = [{wanted}]` to the op",
    )
