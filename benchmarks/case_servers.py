"""The candidates of ``bench_cases``: each judges cases in a process of its own, when it is told to.

    python case_servers.py CANDIDATE FOLDER CASES STRATEGY...

Writes ``ready``, reads how many cases to judge next, line by line, and answers each line with
``[cases, CPU seconds, wall seconds]``. The CPU seconds are those of this process and its children.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import workspaces
from processes import plain_environment, tree_cpu_s

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.cases.op_schema import Dim, OpSchema, TensorDef
from gpuemu_flow.cases.plan import plan_cases, sample_cases
from gpuemu_flow.fuzz.case_queue import checks_for
from gpuemu_flow.judge.case_evaluator import SESSIONS_PER_EVALUATOR, open_evaluator
from gpuemu_flow.judge.subject import PLAIN, CompareParams, Subject
from gpuemu_flow.model.types import Case, CheckResult, Tolerance, Verdict
from gpuemu_flow.numerics.compare import Policy, check_outputs
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.workers import limits
from gpuemu_flow.workers.api import Program
from gpuemu_flow.workers.pool import Pool
from gpuemu_flow.workers.script import decode_response, encode_request

TOLERANCE = Tolerance(*workspaces.SOFTMAX_TOLERANCE)
OP, REFERENCE = "softmax", "softmax_reference"

Arrays = Mapping[str, np.ndarray]
Judge = Callable[[Sequence[int]], None]


@dataclass(frozen=True)
class Setting:
    """Input of every candidate: the folder with the scripts, and the cases."""

    folder: Path
    cases: Sequence[Case]


Candidate = Callable[[Setting], AbstractContextManager[Judge]]


class NotPassedError(Exception):
    """A case did not pass, so that its time means nothing."""


def plan(count: int, strategies: Sequence[str]) -> list[Case]:
    """The cases that all candidates judge."""
    names = ("B", "M", "N")
    sizes = zip(names, workspaces.SOFTMAX_SHAPE, strict=True)
    schema = OpSchema(
        dims=tuple(Dim(name, (size,)) for name, size in sizes),
        inputs=(TensorDef("x", names),),
        outputs=(TensorDef("result", names),),
        fixed_shapes=(),
    )
    return plan_cases(
        schema,
        seed=workspaces.SEED,
        dtype="float32",
        count=count,
        strategies=strategies,
        layouts=["contiguous"],
    )


def expect_passed(result: CheckResult) -> None:
    """Every candidate has to come to the right verdict."""
    if result.verdict is not Verdict.PASSED:
        raise NotPassedError(result)


def compare(inputs: Arrays, actual: Arrays, expected: Arrays) -> None:
    """Under the explicit tolerance."""
    result = check_outputs(
        actual,
        expected,
        tolerance={"float32": TOLERANCE},
        policy=Policy(),
        expected_dtypes={"result": "float32"},
        inputs=inputs,
    )
    expect_passed(result)


def widen(inputs: Arrays) -> dict[str, np.ndarray]:
    """Return the inputs in float64, as the reference gets them."""
    return {name: array.astype(np.float64) for name, array in inputs.items()}


def load_function(path: Path) -> Callable[..., np.ndarray]:
    """The function that is named as its file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., np.ndarray] = getattr(module, path.stem)
    return function


def one_by_one(judge_one: Callable[[int], None]) -> Judge:
    """A judge of numbers out of a judge of one."""

    def judge(numbers: Sequence[int]) -> None:
        for n in numbers:
            judge_one(n)

    return judge


@contextmanager
def alone(setting: Setting) -> Iterator[Judge]:
    """The numerical work alone, as plainly as it can be written."""
    limits.tune()
    op, reference = (load_function(setting.folder / f"{name}.py") for name in (OP, REFERENCE))

    def judge_one(n: int) -> None:
        inputs = materialise(setting.cases[n])
        actual = {"result": op(**inputs)}
        compare(inputs, actual, {"result": reference(**widen(inputs))})

    yield one_by_one(judge_one)


def run_script(path: Path, request: bytes) -> bytes:
    """In a fresh interpreter."""
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(path)],
        input=request,
        stdout=subprocess.PIPE,
        env={**one_thread, **plain_environment()},
        check=True,
    ).stdout


@contextmanager
def interpreters(setting: Setting) -> Iterator[Judge]:
    """A fresh interpreter per case for op and reference each; everything else as in `alone`."""
    limits.tune()

    def call(name: str, inputs: Arrays) -> dict[str, np.ndarray]:
        path = setting.folder / f"{name}_script.py"
        return decode_response(run_script(path, encode_request(inputs, {})), ())

    def judge_one(n: int) -> None:
        inputs = materialise(setting.cases[n])
        compare(inputs, call(OP, inputs), call(REFERENCE, widen(inputs)))

    yield one_by_one(judge_one)


@contextmanager
def practice(setting: Setting) -> Iterator[Judge]:
    """Judge as a checker does whose author ignored its cost.

    Numbers are drawn one by one and coded by the standard library; op and reference get an
    interpreter per case each; statistics are in float64.
    """

    def call(name: str, inputs: Arrays) -> np.ndarray:
        tensors = {
            key: {
                "shape": list(array.shape),
                "strides": [stride // array.itemsize for stride in array.strides],
                "dtype": array.dtype.name,
                "data": base64.b64encode(array.tobytes()).decode(),
            }
            for key, array in inputs.items()
        }
        request = json.dumps({"inputs": tensors, "kwargs": {}}).encode()
        answer = json.loads(run_script(setting.folder / f"{name}_script.py", request))
        data = base64.b64decode(answer["data"])
        return np.frombuffer(data, answer["dtype"]).reshape(answer["shape"])

    def judge_one(n: int) -> None:
        (spec,) = setting.cases[n].inputs
        rng = SeededRng(setting.cases[n].seed)
        values = [rng.gen_f32() * 20 - 10 for _ in range(math.prod(spec.shape))]
        inputs = {spec.name: np.array(values, np.float32).reshape(spec.shape)}
        actual = call(OP, inputs).astype(np.float64)
        expected = call(REFERENCE, widen(inputs))
        error = np.abs(actual - expected)
        relative = error / np.maximum(np.abs(expected), np.finfo(np.float64).tiny)
        figures = [f(v) for v in (error, relative) for f in (np.max, np.mean, np.median)]
        figures += [np.percentile(error, level) for level in (90, 99)]
        allowed = TOLERANCE.atol + TOLERANCE.rtol * np.abs(expected)
        if not (np.all(error <= allowed) and np.all(np.isfinite(figures))):
            raise NotPassedError(n)

    yield one_by_one(judge_one)


def evaluator(kind: str, *, auto: bool) -> Candidate:
    """Judging by `tasks.case_evaluator`, as ``fuzz`` does under the auto tolerance."""
    explicit = {"float32": {"atol": TOLERANCE.atol, "rtol": TOLERANCE.rtol}}
    compare_settings = CompareParams("auto", {}) if auto else CompareParams("table", explicit)

    def program(folder: Path, name: str) -> Program:
        suffix, function = ("_script", "") if kind == "script" else ("", name)
        return Program(
            kind,
            root=str(folder),
            input_names=("x",),
            path=str(folder / f"{name}{suffix}.py"),
            function=function,
        )

    @contextmanager
    def candidate(setting: Setting) -> Iterator[Judge]:
        subject = Subject(
            OP,
            "float32",
            program(setting.folder, OP),
            program(setting.folder, REFERENCE),
            compare_settings,
            sample_cases(setting.cases),
        )
        with (
            Pool(SESSIONS_PER_EVALUATOR) as pool,
            open_evaluator(pool, subject) as warm,
        ):
            pool.start()

            def judge(numbers: Sequence[int]) -> None:
                """As ``fuzz`` does."""
                waiting: list[Case] = []
                for n in numbers:
                    case = setting.cases[n]
                    checks = checks_for(n) if auto else PLAIN
                    if checks is not PLAIN:
                        expect_passed(warm.judge(case, checks).result)
                        continue
                    together = sum(each.nbytes for each in [*waiting, case])
                    if not warm.batch_size.admits(len(waiting) + 1, together):
                        judge_all(waiting)
                        waiting = []
                    waiting.append(case)
                judge_all(waiting)

            def judge_all(cases: Sequence[Case]) -> None:
                for evaluated in warm.judge_all(cases):
                    expect_passed(evaluated.result)

            yield judge

    return candidate


CANDIDATES: dict[str, Candidate] = {
    "alone": alone,
    "callables-explicit": evaluator("callable", auto=False),
    "callables-auto": evaluator("callable", auto=True),
    "scripts": evaluator("script", auto=False),
    "interpreters": interpreters,
    "practice": practice,
}


def ended_children_s() -> float:
    """CPU seconds of children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    """Serve one candidate until standard input ends."""
    name, folder, count, *strategies = sys.argv[1:]
    setting = Setting(Path(folder), plan(int(count), strategies))
    done = 0
    with CANDIDATES[name](setting) as judge:
        print("ready", flush=True)
        for line in sys.stdin:
            number = int(line)
            cpu = tree_cpu_s(os.getpid()) + ended_children_s()
            begin = time.perf_counter()
            judge(range(done, done + number))
            wall = time.perf_counter() - begin
            cpu = tree_cpu_s(os.getpid()) + ended_children_s() - cpu
            done += number
            print(json.dumps([number, cpu, wall]), flush=True)


if __name__ == "__main__":
    main()
