"""Cases handed out to clients: GetTestCase and GetTestBatch."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.cases.generated_values import demand_made, is_made
from gpuemu_flow.cases.op_schema import default_schema
from gpuemu_flow.cases.protocol_v1 import SequenceConfig, case_at, representative_shape, tensors
from gpuemu_flow.config.model import OpConfig
from gpuemu_flow.fuzz.wire_ops import PlannedCases, Query
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import FlowError, UsageError
from gpuemu_flow.model.types import Case, Json, Shape
from gpuemu_flow.numerics.dtypes import to_float32
from gpuemu_flow.services.daemon.replies import Fields, invalid, wire_strides
from gpuemu_flow.services.daemon.service import Issued, Job, Service, digest_of
from gpuemu_flow.wire import MAX_MESSAGE_BYTES
from gpuemu_flow.wire.tensors import encode_tensor
from gpuemu_flow.workers.api import DEFAULT_OUTPUT

PLAIN = ("uniform",)
"""Value strategies of cases that are judged by the documented table of tolerances. The table is
valid only for these strategies."""


class Recipe(Struct, frozen=True):
    """What a request says of its cases; stored, so that they can be made again."""

    fuzz_config: Json
    own_cases: bool
    own_dtypes: bool


class CaseMaker:
    """Makes the cases of one request."""

    def __init__(self, service: Service, op: OpConfig, recipe: Recipe) -> None:
        self.op = op
        self.recipe = recipe
        self.config = SequenceConfig.from_json(recipe.fuzz_config)
        self._planned: PlannedCases = service.planned
        has_schema = replace(op.schema, constants=()) != default_schema(op.input_names)
        self._plans = recipe.own_cases and has_schema and self.config.op_schema is None
        judged_by_table = service.configured().subjects.judged_by_table(op.name)
        self._strategies = PLAIN if judged_by_table else ()

    @classmethod
    def of(cls, service: Service, op: OpConfig, fields: Fields) -> CaseMaker:
        own_cases = fields.flag("own_cases", default=False)
        own_dtypes = fields.flag("own_dtypes", default=False)
        return cls(service, op, Recipe(fields.fuzz_config().to_json(), own_cases, own_dtypes))

    def case(self, number: int) -> Case:
        """Return case `number` of the request; each number has a seed of its own."""
        dtypes = self.op.dtypes if self.recipe.own_dtypes else self.config.dtypes
        if not self._plans:
            return case_at(replace(self.config, dtypes=dtypes), self.op.input_names, number)
        dtype, seed = dtypes[number % len(dtypes)], self.config.seed
        return self._planned.case(
            self.op, number, dtype=dtype, seed=seed, strategies=self._strategies
        )

    def shape(self, case: Case) -> Shape:
        """Return the single shape that the protocol gives for a whole case."""
        if self._plans:
            return case.inputs[0].shape if case.inputs else ()
        return representative_shape(self.config, case)

    def tensors(self, case: Case, room: int) -> dict[str, NDArray[Any]]:
        """Return a case's inputs as sent: bfloat16 as float32. Raises RequestError: no `room`."""
        try:
            if not self._plans:
                made = tensors(case, protocol_v1=False, max_bytes=max(0, room))
            elif case.nbytes > room:
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


MAX_BATCH = 100_000
MAX_BATCH_BYTES = MAX_MESSAGE_BYTES * 3 // 4 - (1 << 20)  # base64 makes 4 bytes of 3


def get_test_case(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    found = _cases(service, fields, job, 0, 1)
    return {"type": "TestCase", **found[0]}


def get_test_batch(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    count = fields.integer("count", 0, MAX_BATCH)
    start = fields.integer("start", 0, 1 << 32, default=0)
    return {"type": "TestBatch", "cases": _cases(service, fields, job, start, count)}


def _cases(
    service: Service, fields: Fields, job: Job, start: int, count: int
) -> list[dict[str, Json]]:
    name = fields.name("op_name")
    _, op = service.op(name)
    maker = CaseMaker.of(service, op, fields)
    exchange = fields.reply_exchange
    found = []
    issued = []
    size = 0
    for number in range(start, start + count):
        job.check()
        case = _made(service, name, maker.case(number), job)
        inputs = maker.tensors(case, MAX_BATCH_BYTES - size)
        size += sum(array.nbytes for array in inputs.values())
        shape = maker.shape(case)
        issued.append((number, Issued(case, shape, maker.config.to_json(), digest_of(inputs))))
        reply = {
            "seed": case.seed,
            "inputs": {
                spec.name: encode_tensor(
                    inputs[spec.name], wire_strides(spec.shape, case.layout), exchange
                )
                for spec in case.inputs
            },
            "shape": list(shape),
            "dtype": case.dtype,
            "layout": case.layout,
        }
        if maker.recipe.own_cases:
            reply["layouts"] = {spec.name: spec.layout for spec in case.inputs}
            if op.in_place:
                reply["mutates"] = list(op.in_place)
                reply["outputs"] = [each.name for each in op.schema.outputs] or [DEFAULT_OUTPUT]
        found.append(reply)
    service.issued.add(name, msgspec.to_builtins(maker.recipe), issued)
    return found


def _made(service: Service, name: str, case: Case, job: Job) -> Case:
    if is_made(case):
        return case
    subject = service.configured().subjects.make(Query(name, case.dtype, {}), case)
    with service.references.checkout(subject, job) as session:
        return demand_made(session.made(case))


def issued_case(service: Service, name: str, seed: int, job: Job) -> Issued | None:
    """Return a case handed out by this daemon or an earlier daemon; None for an unknown seed."""
    known = service.issued.find(name, seed)
    if known is not None:
        return known
    remade = _remade(service, name, seed, job)
    if remade is None:
        return None
    maker, case, inputs = remade
    issued = Issued(case, maker.shape(case), maker.config.to_json(), digest_of(inputs))
    service.issued.remember(name, issued)
    return issued


def issued_inputs(
    service: Service, name: str, seed: int, job: Job
) -> dict[str, NDArray[Any]] | None:
    """Make a handed-out case again, and return its inputs as they were sent; None if that fails."""
    remade = _remade(service, name, seed, job)
    return None if remade is None else remade[2]


def _remade(
    service: Service, name: str, seed: int, job: Job
) -> tuple[CaseMaker, Case, dict[str, NDArray[Any]]] | None:
    recipe = service.issued.recipe(name, seed)
    if recipe is None:
        return None
    _, op = service.op(name)
    try:
        maker = CaseMaker(service, op, convert(recipe[0], Recipe))
        case = _made(service, name, maker.case(recipe[1]), job)
    except (FlowError, KeyError, TypeError, ValueError):
        return None
    if case.seed != seed:  # the op's schema has changed
        return None
    return maker, case, maker.tensors(case, MAX_BATCH_BYTES)
