"""A temporary workspace for the runner's tests: programs as real files, a pool, their outputs."""

from __future__ import annotations

import contextlib
import hashlib
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpuemu_flow.model.types import Case, InputSpec
from gpuemu_flow.workers import tensors
from gpuemu_flow.workers.api import Checks, Outcome, Program, Request
from gpuemu_flow.workers.pool import Pool
from gpuemu_flow.workers.sandbox.fence import system_level
from gpuemu_flow.workers.sandbox.spec import Sandbox

NO_CHECKS = Checks(inputs_unchanged=False)

PROTOCOL = """
import base64, json, sys
import numpy as np

def read():
    request = json.load(sys.stdin)
    arrays = {
        name: np.frombuffer(base64.b64decode(t["data"]), dtype=t["dtype"]).reshape(t["shape"])
        for name, t in request["inputs"].items()
    }
    return arrays, request["kwargs"]

def tensor(array):
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"shape": list(array.shape), "dtype": str(array.dtype), "data": data}
"""


def make_case(
    index: int, shape: tuple[int, ...] = (3, 4), dtype: str = "float32", **more: Any
) -> Case:
    """A case of one input `x` with normal values."""
    layout = more.pop("layout", "contiguous")
    names = more.pop("names", ("x",))
    inputs = tuple(
        InputSpec(name, shape, dtype, layout, "normal", position)
        for position, name in enumerate(names)
    )
    return Case(
        index=index,
        seed=more.pop("seed", 1000 + index),
        dtype=dtype,
        layout=layout,
        strategy="normal",
        inputs=inputs,
    )


def marked_case(index: int) -> Case:
    """A case whose input holds nothing but 42: the value that sets the hostile programs off."""
    case = make_case(index)
    (spec,) = case.inputs
    return replace(case, inputs=(replace(spec, low=42.0, high=42.0),))


class Workspace:
    """Programs below one folder and a pool that runs them.

    Attributes
    ----------
    blobs : dict of str to bytes
        Outputs, by digest.
    fenced : bool
        Programs run behind the fence of the system, as ops do; the folder is theirs to write.
    """

    def __init__(self, folder: Path, pool: Pool) -> None:
        self.folder = folder
        self.pool = pool
        self.blobs: dict[str, bytes] = {}
        self.fenced = False

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def program(self, kind: str, text: str, **more: Any) -> Program:
        name = more.pop("name", "program.py")
        path = self.write(name, text)
        if kind == "callable":
            more.setdefault("function", "op")
        more.setdefault("input_names", ("x",))
        if self.fenced:
            fence = Sandbox(system_level(), str(self.folder), writable=(str(self.folder),))
            more.setdefault("sandbox", fence)
        return Program(kind, path=str(path), root=str(self.folder), **more)

    def keep(self, outputs: Mapping[str, Any]) -> tuple[str, int]:
        data = tensors.encode(outputs)
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return digest, len(data)

    def run(
        self, program: Program, cases: int | list[Case] = 1, checks: Checks = NO_CHECKS, **more: Any
    ) -> list[Outcome]:
        if isinstance(cases, int):
            cases = [make_case(i) for i in range(cases)]
        requests = [Request(case) for case in cases]
        return self.pool.run(program, requests, checks=checks, keep=self.keep, **more)

    def outputs(self, outcome: Outcome) -> dict[str, Any]:
        assert outcome.ok, outcome.error
        return tensors.decode(self.blobs[outcome.blob])


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """A pool that a module's tests share, as users' runs do."""
    with Pool(2) as made:
        yield made


@pytest.fixture
def ws(tmp_path: Path, pool: Pool, request: pytest.FixtureRequest) -> Workspace:
    """A workspace of the test's own on the shared pool; fenced where the module says `FENCED`."""
    made = Workspace(tmp_path, pool)
    made.fenced = getattr(request.module, "FENCED", False)
    return made


@contextlib.contextmanager
def workspace(tmp_path: Path, **options: Any) -> Iterator[Workspace]:
    """A workspace with a pool of its own."""
    with Pool(**{"workers": 2, **options}) as pool:
        yield Workspace(tmp_path / "ws", pool)


def slugs(outcomes: list[Outcome]) -> list[str]:
    """``ok`` or the error's slug, in order."""
    return ["ok" if o.error is None else o.error.slug for o in outcomes]


def wait_until(condition: Any, seconds: float = 600.0) -> bool:
    """Poll for a condition; the time is an upper bound for a stuck test, not a measurement."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())
