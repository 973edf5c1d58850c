"""A worker that is given several cases at once tells its runner what comes, before the first."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuemu_flow.runners.worker import Worker


class Views:
    """Stands for the shared memory: gives each slot's array by its place."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self._arrays = arrays

    def views(self, slots: dict[str, Any]) -> dict[str, np.ndarray]:
        return {name: self._arrays[slot.offset] for name, slot in slots.items()}


class Watched:
    def __init__(self) -> None:
        self.said: list[str] = []

    def preparing(self) -> None:
        self.said.append("preparing")


class Batching:
    def __init__(self) -> None:
        self.expected: list[dict[str, np.ndarray]] = []

    def expect(self, cases: list[dict[str, np.ndarray]]) -> None:
        self.expected = cases


def worker(runner: object, arrays: list[np.ndarray]) -> Any:
    made: Any = object.__new__(Worker)
    made._runner, made._arena, made._watch = runner, Views(arrays), Watched()
    return made


def message(count: int) -> dict[str, Any]:
    return {"items": [{"slots": {"x": [n, [2], [4], "float32"]}} for n in range(count)]}


def test_the_inputs_of_all_cases_are_handed_over_in_their_order() -> None:
    arrays = [np.full(2, n, "f4") for n in range(3)]
    runner = Batching()
    made = worker(runner, arrays)
    made._expect(message(3))
    assert [case["x"][0] for case in runner.expected] == [0, 1, 2]
    assert made._watch.said == ["preparing"], "its time counts as none of the cases'"


def test_a_runner_without_use_for_it_is_not_bothered() -> None:
    made = worker(object(), [])
    made._expect(message(2))
    assert made._watch.said == []
