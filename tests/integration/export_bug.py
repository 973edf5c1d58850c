"""An op with one bug, and its exported test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np

from gpuemu_flow.numerics.checked_output import Policy
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.reports.pytest_export import Expectation, PytestExport, render
from gpuemu_flow.runners.api import Program
from gpuemu_flow.store.failures import FailureRecord
from gpuemu_flow.types import (
    Case,
    CheckResult,
    Failure,
    FailureKind,
    InputSpec,
    Tolerance,
    Verdict,
)

Arrays = Mapping[str, np.ndarray]
LOOSE = {name: Tolerance(1e-5, 1e-5, "op") for name in ("float32", "float64")}


def ramp(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Values without a repetition: 1, 2, 3 ... in halves."""
    return (np.arange(1, np.prod(shape, dtype=int) + 1).reshape(shape) / 2).astype(
        numpy_dtype(dtype)
    )


@dataclass(frozen=True)
class Bug:
    """One op, wrong and right; the two sources have different lengths of their own accord.

    Attributes
    ----------
    name : str
        Also of the file.
    source : str
        With ``BUG`` where `wrong` or `right` stand.
    """

    name: str
    kind: FailureKind
    source: str
    wrong: str
    right: str
    inputs: Arrays
    expected: Callable[..., Any]
    layout: str = "contiguous"
    program: Mapping[str, Any] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    tolerance: Any = None
    dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    op: str = ""

    @property
    def file(self) -> str:
        return f"ops/{self.name}.py"

    def write(self, root: Path, *, mended: bool) -> None:
        path = root / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        text = dedent(self.source).lstrip("\n")
        assert text.count("BUG") == 1
        path.write_text(text.replace("BUG", self.right if mended else self.wrong))

    def record(self) -> FailureRecord:
        specs = tuple(
            InputSpec(name, array.shape, str(array.dtype.name), self.layout)
            for name, array in self.inputs.items()
        )
        case = Case(0, 42, specs[0].dtype, self.layout, "normal", specs)
        failure = Failure(self.kind, f"the bug {self.name}", "result", (0,), float("nan"), 1.0)
        result = CheckResult(Verdict.FAILED, (failure,))
        record = FailureRecord.of(self.op or self.name, case, result, source="fuzz")
        return replace(record, id=record.identity()[:12])

    def expectation(self) -> Expectation:
        wide = {
            name: array.astype(np.float64) if array.dtype.kind in "fV" else array
            for name, array in self.inputs.items()
        }
        found = self.expected(**wide)
        outputs = found if isinstance(found, dict) else {"result": np.asarray(found)}
        first = next(iter(self.inputs.values())).dtype.name
        dtypes = {
            name: (first,) if array.dtype == np.float64 else (array.dtype.name,)
            for name, array in outputs.items()
        }
        return Expectation(outputs, self.tolerance or LOOSE, self.policy, {**dtypes, **self.dtypes})

    def export(self, root: Path, folder: Path) -> PytestExport:
        settings: dict[str, Any] = {
            "kind": "callable",
            "path": str(root / self.file),
            "function": "op",
            "timeout": 1.0,
            **self.program,
        }
        program = Program(
            settings.pop("kind"), root=str(root), input_names=tuple(self.inputs), **settings
        )
        return render(self.record(), program, self.inputs, self.expectation(), folder=folder)
