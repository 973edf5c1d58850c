"""Choose the dtype in which a reference runs, and the dtypes allowed for the op's outputs."""

from __future__ import annotations

from collections.abc import Sequence

from gpuemu_flow.runners.api import Outcome
from gpuemu_flow.types import COMPLEX, DTYPES, WIDE, Case


def widens(dtype: str, asked: str | None) -> bool:
    """Tell whether the reference gets float64 inputs first, before inputs in their own dtypes."""
    return DTYPES[dtype].kind == "float" and dtype != WIDE and asked in (None, WIDE)


def probe_case(samples: Sequence[Case]) -> Case:
    """Return the smallest sample, on which the reference runs to find the dtypes of its outputs."""
    return min(samples, key=lambda case: case.numel)


def own_dtypes(ran: Outcome, dtype: str) -> dict[str, list[str]]:
    """Find the dtypes allowed for each output when the reference runs in the case's dtype.

    A float output may have the dtype of the reference's output, or the case's dtype. These can
    differ: in numpy, for example, products of bfloat16 are float32.
    """
    if DTYPES[dtype].kind != "float" or dtype == WIDE or not ran.ok:
        return {}
    return expected_dtypes(ran, [ran], dtype)


def expected_dtypes(probe: Outcome, wide: Sequence[Outcome], dtype: str) -> dict[str, list[str]]:
    """Find the dtypes allowed for each output, the likeliest first.

    A float output may have the dtype that the reference gave in `probe`, or the case's dtype. The
    reference's dtype comes first, unless it is float64: a reference that always computes in float64
    does not show which dtype an output should have.
    """
    native = {output.name: output.dtype for output in probe.outputs} if probe.ok else {}
    sample = next((outcome for outcome in wide if outcome.ok), None)
    names = {output.name: output.dtype for output in (sample.outputs if sample else ())}
    expected: dict[str, list[str]] = {}
    for name, widened in {**names, **native}.items():
        own = native.get(name)
        if widened in COMPLEX:
            narrow = "complex128" if dtype == WIDE else "complex64"
            both = [narrow, own or narrow] if own in (None, "complex128") else [own, narrow]
            expected[name] = list(dict.fromkeys(both))
        elif DTYPES[widened].kind != "float":
            expected[name] = [widened]
        elif own is None:
            expected[name] = [dtype]
        else:
            expected[name] = list(dict.fromkeys([own, dtype] if own != WIDE else [dtype, own]))
    return expected
