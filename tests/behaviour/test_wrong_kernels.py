"""Wrong kernels of kinds that once passed fail, and right ones beside them pass."""

from __future__ import annotations

import pytest
from many_ops import Op, Ran, run_once

STEP = (
    'dims = { N = [1, 7, 64] }\ninputs = { w = ["N"], g = ["N"] }\n'
    'outputs = { w = { dims = ["N"], dtype = "same as w" } }'
)
STATE = (
    'dims = { N = [1, 7, 64] }\ninputs = { w = ["N"], g = ["N"] }\noutput = ["N"]\n'
    "scalars = { training = [true, false] }"
)
MUTATES = 'mutates = ["w"]'


def step(body: str, verdict: str = "failed") -> Op:
    """A step of an optimiser, which changes its weights in place."""
    body = f"r = w - np.float32(0.125) * g\n{body}"
    return Op("w, g", body, "return w - 0.125 * g", STEP, MUTATES, verdict=verdict)


def state(body: str, verdict: str = "failed") -> Op:
    """An op with a running state, which changes in training only."""
    body = f"y = np.float32(2) * (w + g if training else w)\n{body}\nreturn y"
    reference = "if training:\n    w += g\nreturn 2 * w"
    return Op("w, g, training", body, reference, STATE, MUTATES, verdict=verdict)


IN_PLACE = {
    "half_of_it_in_place": step("w[: len(w) // 2] = r[: len(w) // 2]\nreturn r"),
    "only_returned": step("return r"),
    "last_element_left": step("w[:-1] = r[:-1]\nreturn r"),
    "returned_wrong": step("w[...] = r\nreturn r * 2"),
    "returned_and_in_place": step("w[...] = r\nreturn r", "passed"),
    "in_place_only": step("w[...] = r", "passed"),
    "state_never_changed": state(""),
    "state_changed_back": state("if training:\n    w -= g"),
    "state_changed_always": state("w += g"),
    "state_right": state("if training:\n    w += g", "passed"),
    "scratch": Op(
        "w, g", "w[...] = g\nreturn w * 3", "return 3 * g", STATE.partition("\nscalars")[0], MUTATES
    ),
}
OPS = {**IN_PLACE}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_once(tmp_path_factory, "wrong-kernels", OPS, "cases = 24")


@pytest.mark.ci
@pytest.mark.parametrize("name", OPS)
def test_wrong_kernels_fail_and_right_ones_pass(name: str, ran: Ran) -> None:
    ran.check(name, OPS[name])
