"""Durations of earlier runs: which task comes first, and how much time remains."""

from __future__ import annotations

from gpuemu_flow.build.graph import Graph
from gpuemu_flow.build.run import longest_first, spread
from gpuemu_flow.cli.progress import Remaining
from gpuemu_flow.tasks.base import TaskInput, TaskSpec
from gpuemu_flow.tasks.params import DiffParams, plain

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


def test_the_remaining_time_is_that_of_what_is_left() -> None:
    remaining = Remaining({"a": 4.0, "b": 2.0, "c": 2.0}, 3, 2)
    assert remaining.estimate({}) == 4.0
    assert remaining.estimate({"a": 1.0, "b": 1.0}) == 3.0
    remaining.finish("b")
    assert remaining.estimate({"a": 3.0, "c": 1.0}) == 1.0
    remaining.finish("c")
    assert remaining.estimate({"a": 3.0}) == 1.0, "one task keeps but one worker busy"
    late = remaining.estimate({"a": 40.0})
    assert late is not None and late > 0, "what takes longer than ever is not done yet"
    remaining.finish("a")
    assert remaining.estimate({}) == 0.0


def test_nothing_is_said_where_little_is_known() -> None:
    assert Remaining({}, 4, 1).estimate({}) is None
    assert Remaining({"a": 1.0}, 4, 1).estimate({"b": 2.0}) is None
    assert Remaining({"a": 1.0, "b": 1.0}, 4, 1).estimate({}) == 4.0
