"""Fuzz an op of a framework, with the framework's own checks, with or without a daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gpuemu_flow.frameworks.base import CheckOutcome, FrameworkAdapter, caller, to_tensors
from gpuemu_flow.frameworks.local import outputs_by_name
from gpuemu_flow.frameworks.seeded import DTYPES, FuzzConfig, SeededFuzzer, fuzz_locally
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.numerics.operand import INPUT
from gpuemu_flow.numerics.rng import SeededRng, derive_seed, generate_seed

Check = Callable[[Callable[..., Any], Mapping[str, Any]], CheckOutcome]
CASES: Mapping[str, Any] = {
    "batch_sizes": (1, 2, 4, 8),
    "seq_lengths": (64, 128, 256),
    "hidden_dims": (256, 512),
    "edge_cases": ((1,), (1, 1)),
}
"""Options for the sizes of cases, with which clients ask the daemon for cases."""


class FuzzOutcome(Mapping[str, Any]):
    """The result of fuzzing with a framework's own checks; values can be read by attribute or key.

    ``total``, ``passed``, ``failed`` and ``inconclusive`` are numbers of cases; ``seed`` is the
    master seed. ``unjudged`` is the share of all output elements without a verdict. ``reason``
    explains why the outcome is inconclusive; otherwise it is empty. ``forward_failures`` lists the
    results of the cases in which the op raised, or failed the comparison with the reference. Each
    requested check has a list of its own failures: for the check ``jit``, it is ``jit_failures``.
    The object is true if enough was judged and nothing failed.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(name)
        return self._values[name]

    def __bool__(self) -> bool:
        judged = self._values["passed"] > 0 and not self._values["reason"]
        return bool(self._values["failed"] == 0 and judged)

    def __repr__(self) -> str:
        counts = ", ".join(f"{n}={self._values[n]}" for n in ("total", "passed", "failed", "seed"))
        return f"FuzzOutcome({counts})"


class CheckFailedError(Exception):
    """Raised to end the fuzzing at the first failure of a check."""


class _Tried(Struct):
    """A function that converts numpy arrays to a framework's tensors, and calls the op.

    Fuzzers call it in place of the op. Each call also runs the framework's checks.
    """

    adapter: FrameworkAdapter
    op: Callable[..., Any]
    checks: Mapping[str, Check]
    master: int
    dtypes: Sequence[str]
    fail_fast: bool
    calls: int = 0
    failures: dict[str, list[CheckOutcome]] = field(default_factory=dict)
    stopped_at: int | None = None  # seed of the case whose check ended the fuzzing

    def __post_init__(self) -> None:
        self.failures = {name: [] for name in self.checks}

    @property
    def func(self) -> Callable[..., Any]:
        """Return the op, whose code this is, as `functools.partial` says it."""
        return self.op

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        case_seed = derive_seed(self.master, f"iter_{self.calls}")
        self.calls += 1
        dtype = SeededRng(case_seed).derive("dtype").choice(self.dtypes)
        arrays = dict(inputs)
        if dtype == "bfloat16":  # which travels as float32
            wide = numpy_dtype("float32")
            low = numpy_dtype(dtype)
            arrays = {n: a.astype(low) if a.dtype == wide else a for n, a in arrays.items()}
        run = caller(self.op, arrays)
        tensors = to_tensors(self.adapter, arrays)
        output = run(dict(tensors))
        judgeable = any(array.size for array in arrays.values())
        for name, check in self.checks.items() if judgeable else ():
            outcome = check(self.op, arrays)
            if not outcome.passed:
                self.failures[name].append(replace(outcome, seed=case_seed))
                if self.fail_fast:
                    self.stopped_at = case_seed
                    raise CheckFailedError(f"{name}: {outcome.message}")
        # The fuzzer looks for inputs that the op changed.
        for name, tensor in tensors.items() if self.adapter.mutable else ():
            np.copyto(inputs[name], self.adapter.to_numpy(tensor), casting="same_kind")
        returned = outputs_by_name(output)
        return returned if len(returned) > 1 else next(iter(returned.values()))


def fuzz_with_checks(
    adapter: FrameworkAdapter,
    client: Any,
    op_name: str,
    op: Callable[..., Any] | None,
    checks: Mapping[str, Check],
    *,
    iterations: int = 100,
    seed: int | None = None,
    fail_fast: bool = False,
    atol: float | None = None,
    rtol: float | None = None,
    precision: str | None = None,
    ref_fn: Callable[..., Any] | None = None,
    names: Sequence[str] = ("input",),
    dtypes: Sequence[str] | None = None,
    **options: Any,
) -> FuzzOutcome:
    """Fuzz an op with a client, or with `ref_fn` and no daemon.

    The parameters are described in each framework's function, such as `pytorch.fuzz_pytorch_op`.
    """
    if op is None or (client is None and ref_fn is None):
        raise UsageError(
            Problem("fuzz-arguments", "fuzzing takes an op, and a client or ref_fn to judge it by")
        )
    master = generate_seed() if seed is None else seed
    tried = _Tried(adapter, op, checks, master, tuple(dtypes or DTYPES), fail_fast)
    if ref_fn is not None:
        config = FuzzConfig(master, dtypes=tried.dtypes, **{**CASES, **options})
        cases = SeededFuzzer(config).iterator(iterations)
        found = fuzz_locally(
            tried, ref_fn, cases, seed=master, names=names, op_name=op_name,
            atol=atol, rtol=rtol, precision=precision or INPUT, fail_fast=fail_fast,
        )  # fmt: skip
    else:
        given = {"atol": atol, "rtol": rtol, "precision": precision}
        limits = {name: value for name, value in given.items() if value is not None}
        if dtypes is not None:
            options["dtypes"] = list(dtypes)
        found = client.fuzz_op_client_side(
            op_name, tried, iterations, master, fail_fast, **options, **limits
        )
    by_check = {f"{name}_failures": failures for name, failures in tried.failures.items()}
    # When a check ends the fuzzing, the client counts the op as one that raised.
    forward = [result for result in found.failures if result.seed != tried.stopped_at]
    seeds = {outcome.seed for failures in tried.failures.values() for outcome in failures}
    failed = len(seeds | {result.seed for result in forward})
    total = found.total
    return FuzzOutcome(
        {
            "total": total,
            "passed": total - failed - found.inconclusive,
            "failed": failed,
            "inconclusive": found.inconclusive,
            "unjudged": found.unjudged,
            "reason": found.reason,
            "seed": master,
            "forward_failures": forward,
            **by_check,
        }
    )
