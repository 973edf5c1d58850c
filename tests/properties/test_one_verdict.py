"""All that judge a case give it one verdict, with the same figures and in the same words.

``run``, ``fuzz``, a daemon, the pytest plugin and ``reproduce`` judge the same cases of random
small ops with planted faults, and of ops whose outputs have contracts. GPUEMU_PLANTED_OPS says how
many random ops, three cases each, or six, and of each contract there is a right or a wrong op, or
both: see `whole`; GPUEMU_PLANTED_SEED draws others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract_ops import contract_ops
from planted_ops import PlantedOp, planted_ops
from whole import WHOLE

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.client import Client
from gpuemu_flow.fuzz.failures import FailureLog, reproduce
from gpuemu_flow.fuzz.fuzzing import Fuzzer, FuzzOptions
from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.types import BAD, Case, CheckResult
from gpuemu_flow.services.daemon.control import stop_daemon
from gpuemu_flow.store.failures import FailureRecord, FailureStore
from gpuemu_flow.tasks.base import read_result
from gpuemu_flow.wire import start_daemon

OPS = int(os.environ.get("GPUEMU_PLANTED_OPS", "34"))
SEED = int(os.environ.get("GPUEMU_PLANTED_SEED", "11"))
CASES, REPRODUCED = (6, 2) if WHOLE else (3, 1)

CONFIG = f"""\
[project]
name = "planted"

[validation]
cases = {CASES}
seed = 3
cause_budget = 0

[execution]
max_parallel_refs = 1
reference_timeout = 60

"""

UNSEEN = {"exits", "dies", "dies late", "killed", "interrupts", "list"}
"""Faults that would end the process of the tests; and a list, which a test may hand over."""

BY_CHANCE = {"draws"}
"""Faults whose figures nobody can give again; the verdict and the kinds of failures stay."""

ACROSS_CASES = {"keeps state", "counts calls", "remembers", "draws"}
"""Faults whose figures depend on the cases before: one case alone only fails, too."""

CONFTEST = """
import json

from gpuemu_flow.model.decoding import plain

def pytest_runtest_teardown(item):
    case = item.funcargs["gpuemu_case"]
    result = None if case.result is None else plain(case.result)
    with open("told.jsonl", "a") as stream:
        stream.write(json.dumps([case.op, case.dtype, case.index, result]) + "\\n")
"""

TESTS = """
import importlib.util
import pytest

OPS = {ops!r}

def op(name):
    spec = importlib.util.spec_from_file_location(name, f"ops/{{name}}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.op

def test_of(name):
    @pytest.mark.gpuemu(name)
    def test(gpuemu_case):
        gpuemu_case.check(op(name)(*gpuemu_case.inputs.values()))

    return test

for name in OPS:
    globals()["test_" + name] = test_of(name)

del test_of
"""

Key = tuple[str, str, int]
Results = dict[Key, CheckResult]
"""By the name of the op, the dtype, and the number of the case."""


class Planted:
    """A workspace of planted ops, and what each way of judging says of its cases."""

    def __init__(self, root: Path, ops: list[PlantedOp]) -> None:
        self.root = root
        self.ops = {op.name: op for op in ops}
        for folder in ("ops", "refs", "home"):
            (root / folder).mkdir(parents=True)
        for op in ops:
            (root / "ops" / f"{op.name}.py").write_text(op.op)
            (root / "refs" / f"ref_{op.name}.py").write_text(op.reference)
        (root / "gpuemu.toml").write_text(CONFIG + "\n".join(op.table for op in ops))
        dropped = ("GPUEMU", "XDG", "CI", "PYTEST")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
        self.environ = {**kept, "HOME": str(root / "home"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        self.cases: dict[Key, Case] = {}

    def workspace(self) -> Workspace:
        return Workspace(self.root, environ=self.environ)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=self.root, env=self.environ, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "Traceback (most recent call last)" not in done.stderr, done.stderr
        return done

    def run(self) -> Results:
        done = self.command("gpuemu_flow", "run", "--format", "json")
        assert json.loads(done.stdout)["results"], done.stderr
        workspace = self.workspace()
        found = {}
        for spec in workspace.graph.tasks.values():
            if spec.stage == "compare":
                for entry in read_result(workspace.cache, spec.name, "compare")["cases"]:
                    case = convert(entry["case"], Case)
                    key = spec.subject, case.dtype, case.index
                    self.cases[key] = case
                    found[key] = convert(entry["result"], CheckResult, strict=False)
        workspace.cache.close()
        return found

    def fuzz(self) -> Results:
        workspace = self.workspace()
        workspace.cache.create()
        found = {}
        for name, op in self.ops.items():
            told: list[Any] = []
            options = FuzzOptions(op.cases(CASES), force=True)
            Fuzzer(workspace, name, options, on_case=told.append).run()
            for judged in told:
                key = name, judged.case.dtype, judged.case.index
                assert judged.case == self.cases[key]
                found[key] = judged.result
        workspace.cache.close()
        return found

    def reproduce(self, results: Results) -> Results:
        workspace = self.workspace()
        log = FailureLog(workspace)
        """Of the first cases of each op that failed: each is run again in several settings."""
        failing = {
            key: result
            for key, result in results.items()
            if result.verdict in BAD and key[2] < REPRODUCED
        }
        records: list[FailureRecord] = []
        for key, result in failing.items():
            record = log.add(key[0], self.cases[key], result, source="run")
            records.append(log.store.get(record))
        again = reproduce(workspace, records)
        workspace.cache.close()
        return {key: one.result for key, one in zip(failing, again, strict=True)}

    def daemon(self) -> Results:
        """The results of cases that failed, as the daemon recorded them.

        The daemon takes another dtype for each number of a case, so that of several dtypes it has
        half of the cases of `run`, and others.
        """
        recorded: list[tuple[str, str]] = []
        found = {}
        info = start_daemon(self.root, self.environ)
        try:
            with Client(str(info["socket"])) as client:
                for name, op in self.ops.items():
                    results = client.fuzz_op(name, seed=3, iterations=op.cases(CASES))
                    assert results.total == op.cases(CASES), op
                    recorded += [(name, one.failure_id) for one in results.failures]
        finally:
            stop_daemon(self.root, self.environ)
        workspace = self.workspace()
        store = FailureStore(workspace.cache)
        for name, failure in recorded:
            record = store.get(failure)
            case = record.case
            key = name, case.dtype, case.index
            if case.index < CASES:
                assert case.identity() == self.cases[key].identity()
                found[key] = record.result
        workspace.cache.close()
        return found

    def plugin(self, names: list[str]) -> Results:
        (self.root / "conftest.py").write_text(CONFTEST)
        (self.root / "test_ops.py").write_text(TESTS.format(ops=names))
        done = self.command(
            "pytest", "-p", "gpuemu_flow.pytest_plugin", "-p", "no:cacheprovider", "-q", "--tb=no",
            "test_ops.py",
        )  # fmt: skip
        found = {}
        for line in (self.root / "told.jsonl").read_text().splitlines():
            *key, result = json.loads(line)
            assert result is not None, (key, done.stdout)
            found[key[0], key[1], key[2]] = convert(result, CheckResult, strict=False)
        return found


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    ops = [*planted_ops(OPS, SEED), *contract_ops()]
    yield Planted(tmp_path_factory.mktemp("planted") / "w", ops)


def told(result: CheckResult, op: PlantedOp) -> dict[str, str]:
    """All of a result as text, in which NaN is equal to NaN."""
    if op.fault in BY_CHANCE:
        kinds = sorted({failure.kind.value for failure in result.failures})
        return {"verdict": result.verdict.value, "kinds": str(kinds)}
    return {name: json.dumps(value) for name, value in plain(result).items()}


def differences(
    planted: Planted, left: Results, right: Results, *, but: tuple[str, ...] = ()
) -> list[str]:
    """List the differences between two ways of judging, by case and by part of a result."""
    found = []
    for key in sorted(right):
        op = planted.ops[key[0]]
        one, other = told(left[key], op), told(right[key], op)
        for name in {**one, **other}:
            said = one.get(name), other.get(name)
            if name not in but and said[0] != said[1]:
                found.append(f"{op} case {key[1:]}: {name}: {said[0]} / {said[1]}")
    return found


@pytest.fixture(scope="module")
def of_run(planted: Planted) -> Results:
    found = planted.run()
    assert len(found) == sum(op.cases(CASES) for op in planted.ops.values())
    return found


def failing(results: Results) -> set[Key]:
    return {key for key, result in results.items() if result.verdict in BAD}


def test_fuzz_agrees_with_run(planted: Planted, of_run: Results) -> None:
    found = planted.fuzz()
    assert set(found) == set(of_run)
    demand_none(differences(planted, of_run, found))


@pytest.mark.ci
def test_reproduce_agrees_with_run(planted: Planted, of_run: Results) -> None:
    """Notes may say besides what a failure needs in order to show."""
    found = planted.reproduce(of_run)
    for key in [key for key in found if planted.ops[key[0]].fault in ACROSS_CASES]:
        assert found.pop(key).verdict is of_run[key].verdict, planted.ops[key[0]]
    demand_none(differences(planted, of_run, found, but=("notes",)))


def test_the_daemon_agrees_with_run(planted: Planted, of_run: Results) -> None:
    """Of several dtypes it has fewer cases, so that notes on earlier cases differ."""
    found = planted.daemon()
    expected = {key for key in failing(of_run) if planted.ops[key[0]].in_turn(*key[1:])}
    said = [f"{planted.ops[key[0]]} case {key[1:]}" for key in expected ^ set(found)]
    for key, result in found.items():
        but = ("notes",) if len(planted.ops[key[0]].dtypes) > 1 else ()
        said += differences(planted, of_run, {key: result}, but=but)
    demand_none(said)


@pytest.mark.ci
def test_the_plugin_agrees_with_run(planted: Planted, of_run: Results) -> None:
    seen = [
        name
        for name, op in planted.ops.items()
        if not (op.watched or op.script or op.fault in UNSEEN)
    ]
    found = planted.plugin(seen)
    assert set(found) == {key for key in of_run if key[0] in set(seen)}
    # What clients submit is measured besides, for `calibrate`.
    demand_none(differences(planted, of_run, found, but=("notes", "stderr", "stdout", "measured")))


def demand_none(said: list[str]) -> None:
    if said:
        pytest.fail(f"{len(said)} differences\n" + "\n".join(said), pytrace=False)
