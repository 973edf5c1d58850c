"""Requests of several clients that are answered together get the answers that each would alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from daemon_workspace import Served, normal, softmax
from numpy.typing import NDArray
from runner_workspace import wait_until

from gpuemu_flow.client import ClientError, RequestTimeoutError, ValidationResult

pytestmark = pytest.mark.ci

Tensor = NDArray[Any]
DIFFERENT_BY_NATURE = {"timestamp", "duration_ms", "failure_id"}
WARM_UP = 30
"""Requests of which at least one is quick, however busy the machine is."""

REFERENCE = """
import os, time

GATE = os.path.join(os.path.dirname(__file__), "gate")

def reference(x):
    what = float(x.reshape(-1)[0])
    while what == 12 and not os.path.exists(GATE):
        time.sleep(0.002)
    if what == 13:
        while True:
            time.sleep(1)
    if what == 14:
        os._exit(3)
    if what == 15:
        raise ValueError("the reference refuses")
    return x * 2
"""
HOLDS, HANGS, DIES, RAISES = 12.0, 13.0, 14.0, 15.0


def starting_with(value: float, seed: int = 1) -> Tensor:
    x = normal(3, 4, seed=seed)
    x[0, 0] = value
    return x


def verdict_of(call: Callable[[], ValidationResult]) -> str:
    try:
        return call().verdict
    except RequestTimeoutError:
        return "no answer"
    except ClientError as error:
        return error.code


@pytest.fixture
def moody(unserved: Served) -> Served:
    """A daemon with a reference that was quick so far."""
    config = (unserved.root / "gpuemu.toml").read_text()
    config += (
        '\n[[ops]]\nname = "moody"\nreference = "scripts/moody.py:reference"\n'
        'input_names = ["x"]\nexecution_mode = "client_side"\ntimeout = 100\n'
    )
    unserved.write("gpuemu.toml", config)
    unserved.write("scripts/moody.py", REFERENCE)
    unserved.start()
    with unserved.client() as client:
        for seed in range(WARM_UP):
            x = starting_with(1.0, seed)
            assert client.validate_op("moody", {"x": x}, x * 2).passed
    return unserved


def all_at_once(
    served: Served, asked: list[Callable[[Any], ValidationResult]], op: str = "moody"
) -> list[str]:
    """Ask everything while a first request of the op holds up all others, and return verdicts."""
    served.close_gate()
    first = starting_with(HOLDS)
    with ThreadPoolExecutor(len(asked) + 1) as threads, served.client() as client:

        def ask(one: Callable[[Any], ValidationResult]) -> str:
            with served.client() as own:
                return verdict_of(lambda: one(own))

        held = threads.submit(ask, lambda own: own.validate_op(op, {"x": first}, first * 2))
        assert wait_until(lambda: client.ping()["in_progress"] == 1)
        pending = [threads.submit(ask, one) for one in asked]

        def arrived() -> int:
            """Count answers before requests, so that none counts twice.

            A request that comes long after the first one, as on a busy machine, is answered alone.
            """
            answered = sum(each.done() for each in pending)
            return answered + int(client.ping()["in_progress"])

        assert wait_until(lambda: arrived() == len(asked) + 1)
        served.open_gate()
        assert held.result() == "passed"
        return [one.result() for one in pending]


def test_each_gets_its_own_verdict(moody: Served) -> None:
    inputs = [normal(3, 4, seed=seed) for seed in range(6)]
    outputs = [x * 2 for x in inputs]
    outputs[1] = outputs[1] + 1
    outputs[3] = outputs[3][:, :-1]

    def asking(number: int) -> Callable[[Any], ValidationResult]:
        return lambda own: own.validate_op("moody", {"x": inputs[number]}, outputs[number])

    found = all_at_once(moody, [asking(number) for number in range(6)])
    assert found == ["passed", "failed", "passed", "error", "passed", "passed"]
    with moody.client() as client:
        assert len(client.list_results(100)) == WARM_UP + 7
        assert len(client.list_failures()) == 2


@pytest.mark.parametrize("mood", [DIES, RAISES])
def test_trouble_with_one_case_is_not_the_others(moody: Served, mood: float) -> None:
    inputs = [starting_with(value, seed=int(value)) for value in (1.0, mood, 2.0, 3.0)]

    def asking(x: Tensor) -> Callable[[Any], ValidationResult]:
        return lambda own: own.validate_op("moody", {"x": x}, x * 2)

    found = all_at_once(moody, [asking(x) for x in inputs])
    assert found == ["passed", "ReferenceScriptFailed", "passed", "passed"]


def test_a_case_that_hangs_keeps_the_others_only_for_a_while(moody: Served) -> None:
    """Its own client gives up long before the reference's time is over."""
    hangs, first, second = (starting_with(value, seed=int(value)) for value in (HANGS, 1.0, 2.0))

    def impatient(_: Any) -> ValidationResult:
        with moody.client(timeout_ms=6000) as own:
            return own.validate_op("moody", {"x": hangs}, hangs * 2)

    found = all_at_once(
        moody,
        [
            impatient,
            lambda own: own.validate_op("moody", {"x": first}, first * 2),
            lambda own: own.validate_op("moody", {"x": second}, second * 2),
        ],
    )
    assert found == ["no answer", "passed", "passed"]


def test_requests_that_cannot_be_read_are_refused_alone(moody: Served) -> None:
    x = starting_with(1.0)
    found = all_at_once(
        moody,
        [
            lambda own: own.validate_op("moody", {"x": x}, x * 2),
            lambda own: own.validate_op("moody", {"wrong": x}, x * 2),
            lambda own: own.validate_op("moody", {"x": x}, x * 2.1, rtol=0.5),
        ],
    )
    assert found == ["passed", "InvalidRequest", "passed"]


def test_results_are_those_of_requests_alone(daemon: Served) -> None:
    inputs = [normal(2, 5, seed=seed) for seed in range(8)]
    outputs = [softmax(x) for x in inputs]
    outputs[2] = inputs[2]

    def facts(number: int) -> dict[str, object]:
        with daemon.client() as client:
            given = {"x": inputs[number]}
            result = client.submit_output("softmax", given, outputs[number], seed=number)
        return {name: result[name] for name in result if name not in DIFFERENT_BY_NATURE}

    alone = [facts(number) for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(facts, range(8)))
    assert together == alone


def test_they_are_on_disk_when_they_are_acknowledged(unserved: Served) -> None:
    unserved.start()
    x = np.ones((2, 2), np.float32)

    def submit(seed: int) -> bool:
        with unserved.client() as client:
            return client.submit_output("double", {"x": x + seed}, (x + seed) * 2, seed).passed

    assert all(map(submit, range(WARM_UP)))
    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(submit, range(WARM_UP, WARM_UP + 40)))
    unserved.kill()
    unserved.start()
    with unserved.client() as client:
        assert {result["seed"] for result in client.list_results(100)} == set(range(WARM_UP + 40))
