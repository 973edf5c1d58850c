"""An op under test: its programs, the settings of its judgement, and the dtypes of its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.types import (
    ACCURACIES,
    COMPLEX,
    DTYPES,
    PRECISIONS,
    WIDE,
    Case,
    Json,
    listed,
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
        """Return the program of a role: ``op``, ``reference`` or ``generator``.

        If there are several generators, the first is returned: callers need only its environment,
        and all generators have the same.
        """
        if who == "generator":
            return next(iter(self.generators.values()))
        return self.op if who == "op" else self.reference

    def to_json(self) -> dict[str, Json]:
        """Return the subject, without name and dtype, as plain JSON for a failure's record."""
        return {
            "op": msgspec.to_builtins(self.op),
            "reference": msgspec.to_builtins(self.reference),
            "reference_dtype": self.reference_dtype,
            "compare": self.compare.to_json(),
            "samples": [case.to_json() for case in self.samples],
            "generators": {
                label: msgspec.to_builtins(made) for label, made in self.generators.items()
            },
        }

    @classmethod
    def from_json(cls, name: str, case: Case, data: Mapping[str, Json]) -> Subject:
        """Rebuild a subject from the result of `to_json`; `case` replaces missing samples."""
        return cls(
            name,
            case.dtype,
            convert(data["op"], Program),
            convert(data["reference"], Program),
            CompareParams.from_json(data["compare"]),
            [Case.from_json(sample) for sample in data.get("samples", ())] or [case],
            data["reference_dtype"],
            {label: convert(made, Program) for label, made in data.get("generators", {}).items()},
        )


# The ``compare`` part of an op's configuration, as a type: settings for judging its outputs.


CONFIGURED = "gpuemu.toml"


class CompareParams(Struct, frozen=True):
    """Settings of the comparison; see `config.slices.to_slice` for their canonical form."""

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

    def to_json(self) -> dict[str, Json]:
        """Return the settings as plain JSON; `from_json` is the inverse."""
        lists = {"invariants": list(self.invariants), "mutates": list(self.mutates)}
        tolerances = {dtype: dict(explicit) for dtype, explicit in self.tolerances.items()}
        outputs = [listed(contract.to_json()) for contract in self.outputs]
        data = {**asdict(self), **lists, "tolerances": tolerances, "outputs": outputs}
        gradients = list(data.pop("gradients"))
        if self.accuracy == ACCURACIES[0]:
            del data["accuracy"]
        if self.tolerances_from == CONFIGURED:
            del data["tolerances_from"]
        return {**data, "gradients": gradients} if gradients else data

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> CompareParams:
        """Rebuild the settings from the result of `to_json`, or raise TypeError."""
        given = cls(**data)
        outputs = tuple(OutputContract.from_json(contract) for contract in data.get("outputs", ()))
        return replace(
            given,
            invariants=tuple(given.invariants),
            mutates=tuple(given.mutates),
            outputs=outputs,
            gradients=tuple(given.gradients),
        )


# The checks that runners make when programs run for a verdict.


PLAIN = Checks(inputs_unchanged=False)
"""Only the outputs are checked: for references, and for ops if all checks would take too long."""

FULL_CHECKS = Checks(inputs_unchanged=True, guards=True, decoy=True, repeat=True)
"""All checks: for ops in ``run``, and for some cases elsewhere; see ``docs/oracle.md``."""


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
