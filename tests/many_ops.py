"""One workspace with many small ops, run once: a matrix costs one command, and not one for each."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from mini_workspace import Mini
from once import once

VECTOR = 'dims = { N = [5, 12] }\ninputs = { x = ["N"] }\noutput = ["N"]'
MATRIX = 'dims = { M = [3, 6], N = [4, 17] }\ninputs = { x = ["M", "N"] }\noutput = ["M", "N"]'


@dataclass(frozen=True)
class Op:
    """An op and its reference as bodies of functions, and what is expected of the run.

    ``says`` holds words of its failures. In place of a body, ``text`` is a whole file with a
    function ``op``, and ``script`` a program that speaks the protocol.
    """

    takes: str = "x"
    op: str = "return x * 2"
    reference: str = "return x * 2"
    schema: str = VECTOR
    keys: str = ""
    head: str = ""
    text: str = ""
    script: str = ""
    verdict: str = "passed"
    kind: str = ""
    says: tuple[str, ...] = ()
    wrong: int | None = None


@dataclass(frozen=True)
class Ran:
    """A run's report, by op."""

    mini: Mini
    report: dict[str, Any]
    results: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failures: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def check(self, name: str, wanted: Op) -> None:
        """Compare an op's verdict, kind and words of failures with those wanted."""
        results = self.results[name]
        failures = self.failures.get(name, [])
        said = [f"{f['kind']}: {f['message']}" for f in failures]
        assert {r["verdict"] for r in results} == {wanted.verdict}, (results, said)
        if wanted.verdict == "passed":
            unjudged = wanted.wrong or 0
            assert all(r["passed"] == r["cases"] - unjudged > 0 for r in results), results
            assert len(failures) == unjudged, said
            return
        if wanted.wrong is not None:
            assert sum(r["cases"] - r["passed"] for r in results) == wanted.wrong, results
        if wanted.kind:
            assert wanted.kind in {f["kind"] for f in failures}, said
        for words in wanted.says:
            assert any(words in line for line in said), (words, said)

    def check_all(self, ops: dict[str, Op]) -> None:
        """Compare all of them, and tell at once which ones differ."""
        wrong = []
        for name, op in ops.items():
            try:
                self.check(name, op)
            except (AssertionError, KeyError) as error:
                wrong.append(f"{name}: {error}")
        assert not wrong, "\n".join(wrong)


def function(name: str, takes: str, body: str) -> str:
    lines = dedent(body).strip("\n").replace("\n", "\n    ")
    return f"def {name}({takes}):\n    {lines}\n"


def make_ops(
    folder: Path,
    ops: dict[str, Op],
    validation: str = "",
    more: str = "",
    files: dict[str, str] | None = None,
    *,
    own: bool = False,
) -> Mini:
    """Write a workspace of the ops: one file for each, and one for each text of a reference.

    Ops with the same reference share its outputs and its process, unless each has its ``own``.
    """
    mini = Mini(folder)
    references: dict[tuple[str, str], str] = {}
    for path, text in (files or {}).items():
        mini.write(path, text)
    tables = []
    for name, op in ops.items():
        head = f"import numpy as np  # {name}\n{dedent(op.head)}"
        mini.write(f"ops/{name}.py", op.text or f"{head}\n\n{function('op', op.takes, op.op)}")
        key = name if own else op.takes, op.reference
        if key not in references:
            references[key] = name
            text = function("reference", op.takes, op.reference)
            mini.write(f"refs/{name}.py", f"import numpy as np\n\n\n{text}")
        program = f"ops/{name}.py:op"
        if op.script:
            program = f"ops/{name}_script.py"
            mini.write(program, op.script)
        tables.append(
            f'[[ops]]\nname = "{name}"\nop = "{program}"\n'
            f'reference = "refs/{references[key]}.py:reference"\n'
            f"{dedent(op.keys).strip()}\n[ops.schema]\n{dedent(op.schema).strip()}\n"
        )
    given = dedent(validation).strip() or "cases = 4"
    head = f'[project]\nname = "many"\n[validation]\ncause_budget = 0\n{given}\n'
    mini.write("gpuemu.toml", f"{head}\n{more}\n" + "\n".join(tables))
    return mini


def run_ops(folder: Path, ops: dict[str, Op], *arguments: Any, **more: Any) -> Ran:
    """Write the workspace, and run all of it."""
    mini = make_ops(folder, ops, *arguments, **more)
    ran = Ran(mini, mini.run(code=None))
    for result in ran.report["results"]:
        ran.results.setdefault(result["op"], []).append(result)
    for failure in ran.report["failures"]:
        ran.failures.setdefault(failure["op"], []).append(failure)
    return ran


def run_once(
    factory: pytest.TempPathFactory, name: str, ops: dict[str, Op], *arguments: Any, **more: Any
) -> Ran:
    """Do the same once for all of pytest's workers, for tests that only read what it said."""
    return once(factory, name, lambda folder: run_ops(folder, ops, *arguments, **more))
