"""An op under test: its programs, the settings of its judgement, and the dtypes of its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.types import (
    ACCURACIES,
    COMPLEX,
    DTYPES,
    PRECISIONS,
    WIDE,
    Case,
    Json,
)
from gpuemu_flow.numerics.contract import OutputContract
from gpuemu_flow.workers.api import Checks, Outcome, Program


class Subject(Struct, frozen=True):
    """An op under test, with its programs and the settings by which its outputs are judged."""

    name: str
    dtype: str
    op: Program
    reference: Program
    compare: CompareParams
    samples: Sequence[Case]
    reference_dtype: str | None = None
    generators: Mapping[str, Program] = field(default_factory=dict)

    def program(self, who: str) -> Program:
        """Return the program of a role: ``op``, ``reference`` or ``generator``. If there are
        several generators, the first is returned: callers need only its environment, and all
        generators have the same."""
        if who == "generator":
            return next(iter(self.generators.values()))
        return self.op if who == "op" else self.reference


def provenance_of(subject: Subject) -> dict[str, Json]:
    """Return what a failure's record holds of the subject; `recorded_subject` reads it."""
    plain = to_builtins(subject)
    return {name: value for name, value in plain.items() if name not in ("name", "dtype")}


def recorded_subject(name: str, case: Case, provenance: Mapping[str, Json]) -> Subject:
    """Rebuild a subject from a failure's record; `case` replaces missing samples."""
    own = {"samples": [], **provenance, "name": name, "dtype": case.dtype}
    subject = convert(own, Subject)
    return subject if subject.samples else replace(subject, samples=[case])


# The ``compare`` part of an op's configuration, as a type: settings for judging its outputs.


CONFIGURED = "gpuemu.toml"


class CompareParams(Struct, frozen=True, omit_defaults=True):
    """Settings of the comparison; see `config.model.to_slice` for their canonical form."""

    tolerance: str
    tolerances: Mapping[str, Mapping[str, float]]
    precision: str = PRECISIONS[0]
    accuracy: str = ACCURACIES[0]
    nan_policy: str = "match"
    inf_policy: str = "match"
    invariants: tuple[str, ...] = ()
    shape_preserved_input: str | None = None
    mutates: tuple[str, ...] = ()
    deterministic: bool = True
    reference_dtype: str | None = None
    outputs: tuple[OutputContract, ...] = ()
    input_dims: Mapping[str, list[str | int]] = field(default_factory=dict)
    gradients: tuple[str, ...] = ()
    tolerances_from: str = CONFIGURED

    def needs_reference(self, dtype: str) -> bool:
        """Tell whether even a case that passes cannot be judged without running the reference.
        ``auto`` measures it, and functions that compare run beside it."""
        automatic = self.tolerance == "auto" and dtype not in self.tolerances
        return automatic or any(contract.compare is not None for contract in self.outputs)


# The checks that runners make when programs run for a verdict.


PLAIN = Checks(inputs_unchanged=False)
"""Only the outputs are checked: for references, and for ops if all checks would take too long."""

FULL_CHECKS = Checks(inputs_unchanged=True, guards=True, decoy=True, repeat=True)
"""All checks: for ops in ``run``, and for some cases elsewhere; see ``docs/oracle.md``."""


def widens(dtype: str, asked: str | None) -> bool:
    """Tell whether the reference gets float64 inputs first, before inputs in their own dtypes."""
    return DTYPES[dtype].kind == "float" and dtype != WIDE and asked in (None, WIDE)


def probe_case(samples: Sequence[Case]) -> Case:
    return min(samples, key=lambda case: case.numel)


def own_dtypes(ran: Outcome, dtype: str) -> dict[str, list[str]]:
    """Find the dtypes allowed for each output when the reference runs in the case's dtype. A float
    output may have the dtype of the reference's output, or the case's dtype. These can differ: in
    numpy, for example, products of bfloat16 are float32."""
    if DTYPES[dtype].kind != "float" or dtype == WIDE or not ran.ok:
        return {}
    return expected_dtypes(ran, [ran], dtype)


def expected_dtypes(probe: Outcome, wide: Sequence[Outcome], dtype: str) -> dict[str, list[str]]:
    """Find the dtypes allowed for each output, the likeliest first. A float output may have the
    dtype that the reference gave in `probe`, or the case's dtype. The reference's dtype comes
    first, unless it is float64: a reference that always computes in float64 does not show which
    dtype an output should have."""
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
