"""The published client, installed unmodified in an environment of its own, talks to our daemon."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from daemon_workspace import Served

pytestmark = pytest.mark.ci

CLIENT = "gpuemu==0.1.0"
INSTALL_SECONDS = 600


@pytest.fixture(scope="module")
def interpreter(request: pytest.FixtureRequest) -> Path:
    """An interpreter that has the client, numpy and pynng, and nothing of ours."""
    version = ".".join(map(str, sys.version_info[:2]))
    folder = Path(request.config.cache.mkdir(f"published-client-{version}"))
    python = folder / "bin" / "python"
    done = folder / "installed"
    if done.exists() and python.exists():
        return python
    try:
        venv.create(folder, with_pip=True, clear=True)
        command = [python, "-m", "pip", "install", "--quiet", "--no-input", CLIENT]
        subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"{CLIENT} cannot be installed here: {error}")
    done.touch()
    return python


def run(interpreter: Path, daemon: Served, script: str, timeout: int = 100) -> Any:
    """A script of a user of that client; what it prints last, as JSON."""
    done = subprocess.run(
        [interpreter, "-c", PRELUDE + dedent(script)],
        env=daemon.environ,
        cwd=daemon.folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


PRELUDE = """\
import json, time
import numpy as np
import gpuemu
from gpuemu import Client, ClientError

assert not hasattr(gpuemu, "gpuemu_flow")

def softmax(x):
    if not x.ndim or not x.size:
        return np.ones_like(x)
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True)).astype(x.dtype)

def tell(**found):
    print(json.dumps(found))

x = np.random.default_rng(1).normal(size=(4, 9)).astype(np.float32)
"""


def test_it_finds_the_daemon_by_itself(interpreter: Path, daemon: Served) -> None:
    found = run(interpreter, daemon, "with Client() as c: tell(**c.ping())")
    assert found["protocol_version"] == 1
    assert found["version"]


def test_validate_op(interpreter: Path, daemon: Served) -> None:
    found = run(
        interpreter,
        daemon,
        """
        with Client() as c:
            good = c.validate_op("softmax", {"x": x}, softmax(x))
            bad = c.validate_op("softmax", {"x": x}, softmax(x) + np.float32(0.5))
            scaled = c.validate_op("scaled", {"x": x}, x * 3, factor=3)
            try:
                c.validate_op("sofmax", {"x": x}, x)
            except ClientError as error:
                unknown = str(error)
            stored = c.get_result(bad.seed)
            tell(
                good=good.passed, bad=bad.passed, scaled=scaled.passed, unknown=unknown,
                messages=[f["message"] for f in bad.failures], text=f"{bad.max_diff:.2e}",
                stored=stored.seed == bad.seed, missing=c.get_result(1) is None,
                listed=[r.seed for r in c.list_results()][:3] == [scaled.seed, bad.seed, good.seed],
                infinite=f"{c.validate_op('double', {'x': x}, x * np.inf).max_diff:.2e}",
            )
        """,
    )
    assert found["good"] and found["scaled"] and not found["bad"]
    assert "softmax" in found["unknown"]
    assert found["messages"] and found["text"] == "5.00e-01"
    assert found["stored"] and found["missing"] and found["listed"]
    assert found["infinite"]


def test_dtypes_shapes_and_strides(interpreter: Path, daemon: Served) -> None:
    found = run(
        interpreter,
        daemon,
        """
        arrays = [np.ones(shape, dtype) for shape in [(2, 3), (), (0, 3)] for dtype in
                  ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint64")]
        arrays += [x.T, x[::-1], x[:, ::2], np.broadcast_to(x[0], (3, 9))]
        with Client() as c:
            results = [c.validate_op("double", {"x": a}, (a * 2).astype(a.dtype)) for a in arrays]
            wrong = [c.validate_op("double", {"x": a}, a).passed for a in arrays if a.size]
        pairs = list(zip(arrays, results))
        tell(failed=[r.failures for a, r in pairs if a.size and not r.passed], wrong=any(wrong),
             empty=any(r.passed for a, r in pairs if not a.size))
        """,
    )
    # Of an output without elements, shape and dtype are all that can be wrong.
    assert found == {"failed": [], "wrong": False, "empty": True}


def test_cases_and_submissions(interpreter: Path, daemon: Served) -> None:
    found = run(
        interpreter,
        daemon,
        """
        with Client() as c:
            one = c.get_test_case("softmax", seed=42)
            batch = c.get_test_batch("softmax", count=5, seed=42)
            results = [
                c.submit_output("softmax", b["inputs"], softmax(b["inputs"]["x"]), b["seed"])
                for b in batch
            ]
            tell(
                same=one["seed"] == batch[0]["seed"],
                cases=[[b["seed"], b["shape"], b["dtype"], b["layout"]] for b in batch],
                passed=all(r.passed for r in results), seeds=[r.seed for r in results],
                dtypes=[str(b["inputs"]["x"].dtype) for b in batch],
            )
        """,
    )
    assert found["same"] and found["passed"]
    assert found["seeds"] == [case[0] for case in found["cases"]]
    assert found["dtypes"] == [case[2] for case in found["cases"]]
    assert {case[3] for case in found["cases"]} <= {"contiguous", "strided"}


def test_the_default_batch_stays_within_its_timeout(interpreter: Path, daemon: Served) -> None:
    """100 cases of the default shapes, some 100 MB of JSON, with the client's own 30 s."""
    found = run(
        interpreter,
        daemon,
        """
        with Client() as c:
            r = c.fuzz_op_client_side("softmax", lambda i: softmax(i["x"]), seed=42)
            tell(seed=r.seed, total=r.total, passed=r.passed, failed=r.failed)
        """,
    )
    assert found == {"seed": 42, "total": 100, "passed": 100, "failed": 0}


def test_client_side_fuzzing_finds_what_is_wrong(interpreter: Path, daemon: Served) -> None:
    found = run(
        interpreter,
        daemon,
        """
        schema = {
            "name": "matmul",
            "dims": [{"name": n, "candidates": c} for n, c in
                     (("M", [2, 3]), ("K", [4, 5]), ("N", [6]))],
            "inputs": [{"name": "a", "dims": ["M", "K"]}, {"name": "b", "dims": ["K", "N"]}],
            "output": {"name": "c", "dims": ["M", "N"]},
        }
        def fuzz(op, **more):
            with Client() as c:
                return c.fuzz_op_client_side("matmul", op, iterations=6, seed=3, op_schema=schema,
                                             **more)
        right = fuzz(lambda i: i["a"] @ i["b"])
        wrong = fuzz(lambda i: i["a"] @ i["b"] + i["a"].dtype.type(1), fail_fast=True)
        narrow = fuzz(lambda i: i["a"] @ i["b"], dtypes=["bfloat16"])
        info = wrong.failures[0].repro_info
        tell(right=right.passed, wrong=[wrong.total, wrong.failed], narrow=narrow.passed,
             layout=info.layout, seed=info.seed == wrong.failures[0].seed)
        """,
    )
    assert found["right"] == 6
    assert found["narrow"] == 6
    assert found["wrong"] == [1, 1]
    assert found["layout"] in ("Contiguous", "Strided")
    assert found["seed"]


def test_fuzz_reproduce_minimize(interpreter: Path, daemon: Served) -> None:
    found = run(
        interpreter,
        daemon,
        """
        small = dict(batch_sizes=[1, 2], seq_lengths=[3], hidden_dims=[2, 8])
        with Client() as c:
            right = c.fuzz_op("double", seed=5, iterations=8, **small)
            wrong = c.fuzz_op("wrong", seed=5, iterations=8, **small)
            again = c.fuzz_op("wrong", seed=5, iterations=8, fail_fast=True, **small)
            seed = wrong.failures[0].seed
            listed = [f.seed for f in c.list_failures(100)]
            repro = c.reproduce(seed)
            shrunk = c.minimize(seed, max_iters=200)
            values = c.minimize(seed, strategy="binary-search-values", max_iters=50)
            final = c.reproduce(shrunk.minimized_seed)
            missing = []
            for call in (c.reproduce, c.minimize):
                try:
                    call(1)
                except ClientError as error:
                    missing.append(str(error))
            tell(
                right=[right.total, right.passed, right.failed],
                wrong=[wrong.total, wrong.passed + wrong.failed, wrong.failed > 0],
                first=again.failures[0].seed == seed, listed=seed in listed,
                input=list(repro.inputs["x"].shape) == repro.result.repro_info.shape,
                info=repro.result.repro_info.fuzz_config["seed"],
                shape=shrunk.minimized_shape, final=list(final.inputs["x"].shape),
                values=values.result.passed, missing=missing,
                message=wrong.failures[0].failures[0]["message"],
            )
        """,
    )
    assert found["right"] == [8, 8, 0]
    assert found["wrong"] == [8, 8, True]
    assert found["first"] and found["listed"] and found["input"]
    assert found["info"] == 5
    assert found["shape"] == found["final"]
    assert found["shape"][-1] == 4
    assert found["values"] is False
    assert len(found["missing"]) == 2
    assert found["message"]


def test_baselines_and_lint(interpreter: Path, daemon: Served) -> None:
    found = run(
        interpreter,
        daemon,
        '''
        ptx = """.version 8.0
        .target sm_80
        .address_size 64
        .visible .entry k(.param .u64 p)
        {
            .reg .b32 %r<8>;
            mov.u32 %r1, 1;
            ret;
        }
        """
        with Client() as c:
            c.store_baseline("v1")
            (linted,) = c.lint_kernel(ptx)
            named = c.lint_kernel(ptx, "mine")
            try:
                c.lint_kernel("junk")
            except ClientError as error:
                refused = str(error)
            tell(linted=linted, named=named[0]["kernel_name"], refused=refused)
        ''',
    )
    assert found["linted"]["kernel_name"] == "k"
    assert found["linted"]["passed"] is True
    assert found["linted"]["metrics"]["register_count"] == 8
    assert found["linted"]["metrics"]["instruction_count"] == 2
    assert found["linted"]["violations"] == []
    assert found["named"] == "mine"
    assert found["refused"]


def test_its_context_manager(interpreter: Path, daemon: Served) -> None:
    found = run(
        interpreter,
        daemon,
        """
        from gpuemu import ValidationError, validate_op
        with Client() as c:
            with validate_op(c, "softmax", inputs={"x": x}) as ctx:
                ctx["output"] = softmax(x)
            try:
                with validate_op(c, "softmax", inputs={"x": x}) as ctx:
                    ctx["output"] = x
            except ValidationError as error:
                caught = str(error)
        tell(passed=ctx["result"].passed, caught=caught)
        """,
    )
    assert found["passed"] is False
    assert found["caught"]


def test_it_waits_for_a_daemon_that_comes_late(interpreter: Path, unserved: Served) -> None:
    process = subprocess.Popen(
        [interpreter, "-c", PRELUDE + "print('calling', flush=True)\nprint(Client().ping())"],
        env=unserved.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "calling\n"
    unserved.start()
    assert "protocol_version" in process.communicate(timeout=600)[0]
