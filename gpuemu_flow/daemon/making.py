"""Make the cases of a request: the cases of protocol v1, or the cases that ``run`` would plan.

Protocol v1 gives all inputs of a case the same shape, which does not suit an op with a schema. Our
clients therefore request planned cases for such ops; other clients get the protocol's cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from gpuemu_flow.cases.fuzz_config import LAYOUTS_V1, SequenceConfig
from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.cases.op_schema import default_schema
from gpuemu_flow.cases.protocol_v1 import case_at, nominal_strides, representative_shape, tensors
from gpuemu_flow.config.model_ops import OpConfig
from gpuemu_flow.daemon.fields import Fields, invalid
from gpuemu_flow.daemon.service import Service
from gpuemu_flow.errors import UsageError
from gpuemu_flow.fuzz.planned import CaseSequence, PlannedCases
from gpuemu_flow.numerics.dtypes import to_float32
from gpuemu_flow.types import Case, Json, Shape
from gpuemu_flow.wire.tensors import c_strides

PLAIN = ("uniform",)
"""Value strategies of cases that are judged by the documented table of tolerances. The table is
valid only for these strategies."""


class CaseMaker:
    """Makes the cases of one request."""

    def __init__(
        self,
        service: Service,
        op: OpConfig,
        config: SequenceConfig,
        *,
        own_cases: bool,
        own_dtypes: bool,
    ) -> None:
        self.op = op
        self.config = config
        self.own_cases, self.own_dtypes = own_cases, own_dtypes
        self._planned: PlannedCases = service.planned
        has_schema = op.schema != default_schema(op.input_names)
        self._plans = own_cases and has_schema and config.op_schema is None
        judged_by_table = service.configured().subjects.judged_by_table(op.name)
        self._strategies = PLAIN if judged_by_table else ()

    @classmethod
    def of(cls, service: Service, op: OpConfig, fields: Fields) -> CaseMaker:
        """Make a CaseMaker from the fields of a request."""
        return cls(
            service,
            op,
            fields.fuzz_config(),
            own_cases=fields.flag("own_cases", default=False),
            own_dtypes=fields.flag("own_dtypes", default=False),
        )

    @classmethod
    def from_json(cls, service: Service, op: OpConfig, data: Mapping[str, Json]) -> CaseMaker:
        """Rebuild from `to_json`'s result, or raise KeyError, TypeError or UsageError."""
        return cls(
            service,
            op,
            SequenceConfig.from_json(data["fuzz_config"]),
            own_cases=bool(data["own_cases"]),
            own_dtypes=bool(data["own_dtypes"]),
        )

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON; `from_json` is its inverse."""
        return {
            "fuzz_config": self.config.to_json(),
            "own_cases": self.own_cases,
            "own_dtypes": self.own_dtypes,
        }

    def case(self, number: int) -> Case:
        """Return case `number` of the request; each number has a seed of its own."""
        dtypes = self.op.dtypes if self.own_dtypes else self.config.dtypes
        if not self._plans:
            return case_at(replace(self.config, dtypes=dtypes), self.op.input_names, number)
        sequence = CaseSequence(
            dtypes[number % len(dtypes)], self.config.seed, strategies=self._strategies
        )
        return self._planned.case(self.op, sequence, number)

    def shape(self, case: Case) -> Shape:
        """Return the single shape that the protocol gives for a whole case."""
        if self._plans:
            return case.inputs[0].shape if case.inputs else ()
        return representative_shape(self.config, case)

    def tensors(self, case: Case, room: int) -> dict[str, NDArray[Any]]:
        """Return a case's inputs as they are sent: bfloat16 as float32, which all clients can read.

        Raises
        ------
        RequestError
            The tensors take more than `room` bytes.
        """
        try:
            if not self._plans:
                made = tensors(case, protocol_v1=False, max_bytes=max(0, room))
            elif case_bytes(case) > room:
                raise _too_large()
            else:
                made = materialise(case)
        except UsageError as error:
            if error.slug != "case-too-large":
                raise
            raise _too_large() from None
        return {
            spec.name: to_float32(made[spec.name]) if spec.dtype == "bfloat16" else made[spec.name]
            for spec in case.inputs
        }


def _too_large() -> Exception:
    return invalid("the cases take too many bytes for one answer; ask for fewer or smaller ones")


def case_bytes(case: Case) -> int:
    """Return the size of a case's inputs in bytes."""
    return case.nbytes


def wire_strides(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """Return the strides that protocol v1 states for a layout; C strides for any other layout."""
    return nominal_strides(shape, layout) if layout in LAYOUTS_V1 else c_strides(shape)
