"""Durations of earlier runs: which task comes first."""

from __future__ import annotations

from gpuemu_flow.build.graph import Graph
from gpuemu_flow.build.run import longest_first, spread
from gpuemu_flow.tasks.base import DiffParams, TaskInput, TaskSpec, plain

PARAMS = plain(DiffParams(regression_threshold=0.1))  # it does not count here


def chain(*names: str) -> list[TaskSpec]:
    specs: list[TaskSpec] = []
    for name in names:
        inputs = (TaskInput("before", specs[-1].name),) if specs else ()
        specs.append(TaskSpec(name, "generate", "1", name, "", (), inputs, PARAMS, {}))
    return specs


def test_the_longest_way_comes_first() -> None:
    specs = [*chain("a1", "a2"), *chain("b1", "b2"), *chain("c1")]
    graph = Graph({spec.name: spec for spec in specs}, {})
    every = list(graph.tasks)
    assert longest_first(graph, every, {}) == every
    seconds = {"a1": 1.0, "a2": 1.0, "b1": 0.5, "b2": 9.0, "c1": 3.0}
    assert longest_first(graph, every, seconds) == ["b1", "b2", "c1", "a1", "a2"]
    assert longest_first(graph, ["a2", "b1"], seconds) == ["a2", "b1"]


def test_tasks_that_run_at_a_time_are_of_different_ops() -> None:
    names = ["a:f32", "a:f16", "a:", "b:f32", "b:f16", "c:f32"]
    tasks = {}
    for name in names:
        op, dtype = name.split(":")
        tasks[name] = TaskSpec(name, "op", "1", op, dtype, (), (), PARAMS, {})
    graph = Graph(tasks, {})
    assert spread(graph, names, 1) == names
    assert spread(graph, names, 2) == ["a:f32", "b:f32", "a:f16", "b:f16", "a:", "c:f32"]
    assert spread(graph, ["c:f32", "a:f16"], 9) == ["c:f32", "a:f16"]
