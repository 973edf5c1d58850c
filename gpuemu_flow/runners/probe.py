"""Measure the cost of running a small program on this machine, by each way to run one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.runners.api import Checks, Program, Request
from gpuemu_flow.runners.codec import decode_response, encode_request
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.types import Case, InputSpec, Shape

_FUNCTION = """
import numpy as np

def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
"""
_SCRIPT = (
    _FUNCTION
    + """
import base64, json, sys

tensor = json.load(sys.stdin)["inputs"]["x"]
data = base64.b64decode(tensor["data"])
y = softmax(np.frombuffer(data, dtype=tensor["dtype"]).reshape(tensor["shape"]))
text = base64.b64encode(y.tobytes()).decode()
json.dump({"shape": list(y.shape), "dtype": str(y.dtype), "data": text}, sys.stdout)
"""
)
_PLAIN = Checks(inputs_unchanged=False)


@dataclass(frozen=True)
class Costs:
    """Wall-clock milliseconds per case of a softmax, making inputs and returning outputs included.

    Attributes
    ----------
    generate : float
        Making the inputs alone.
    direct : float
        The function called in this process, without making inputs.
    in_memory : float
        A function in a worker, tensors in shared memory.
    callable : float
        A function in a worker, outputs as blob files.
    script : float
        The same as a protocol script.
    spawned : float
        A fresh interpreter of ours for each case.
    interpreter : float
        ``python script.py`` for each case, as upstream does it.
    """

    generate: float
    direct: float
    in_memory: float
    callable: float
    script: float
    spawned: float
    interpreter: float


def _per_case(count: int, run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - start) / count


def measure(folder: Path, *, shape: Shape = (8, 128), cases: int = 200, fresh: int = 5) -> Costs:
    """Run the same softmax in every way.

    Parameters
    ----------
    folder : Path
        Empty; holds the programs and staged blobs meanwhile.
    shape : tuple of int
    cases : int
        Per way; each starts after a warm-up.
    fresh : int
        Cases for the ways that start an interpreter each time.
    """
    function, script = folder / "function.py", folder / "script.py"
    function.write_text(_FUNCTION)
    script.write_text(_SCRIPT)
    staging = folder / "staging"
    staging.mkdir()
    specs = (InputSpec("x", shape, "float32"),)
    made = [Case(i, i, "float32", "contiguous", "uniform", specs) for i in range(cases)]
    requests = [Request(case) for case in made]
    as_function = Program(
        "callable",
        path=str(function),
        function="softmax",
        root=str(folder),
        input_names=("x",),
    )
    as_script = Program("script", path=str(script), root=str(folder), input_names=("x",))
    spawned = Program(**{**vars(as_function), "isolation": "spawn"})
    namespace: dict[str, Callable[..., object]] = {}
    exec(_FUNCTION, namespace)  # noqa: S102 - our own text above
    inputs = materialise(made[0])
    request = encode_request(inputs, {})

    def publish(path: Path, digest: str) -> None:
        path.unlink()

    def interpreters() -> None:
        for _ in range(fresh):
            done = subprocess.run(
                [sys.executable, str(script)], input=request, capture_output=True, check=True
            )
            decode_response(done.stdout)

    with Pool(1, staging=staging) as pool:

        def run(program: Program, count: int) -> None:
            outcomes = pool.run(program, requests[:count], checks=_PLAIN, publish=publish)
            assert all(outcome.ok for outcome in outcomes)  # noqa: S101 - programs of our own

        run(as_function, 1)
        run(as_script, 1)
        with pool.session(as_function) as session:
            session.call(made[0], checks=_PLAIN)
            in_memory = _per_case(
                cases, lambda: [session.call(case, checks=_PLAIN) for case in made]
            )
        return Costs(
            generate=_per_case(cases, lambda: [materialise(case) for case in made]),
            direct=_per_case(cases, lambda: [namespace["softmax"](**inputs) for _ in made]),
            in_memory=in_memory,
            callable=_per_case(cases, lambda: run(as_function, cases)),
            script=_per_case(cases, lambda: run(as_script, cases)),
            spawned=_per_case(fresh, lambda: run(spawned, fresh)),
            interpreter=_per_case(fresh, interpreters),
        )
