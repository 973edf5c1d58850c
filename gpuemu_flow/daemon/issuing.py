"""Cases handed out to clients: GetTestCase and GetTestBatch."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from gpuemu_flow.cases.generated_values import demand_made, is_made
from gpuemu_flow.daemon.cases import Issued, digest_of
from gpuemu_flow.daemon.fields import Fields
from gpuemu_flow.daemon.jobs import Job
from gpuemu_flow.daemon.making import CaseMaker, wire_strides
from gpuemu_flow.daemon.service import Service
from gpuemu_flow.errors import FlowError
from gpuemu_flow.fuzz.wire_ops import Query
from gpuemu_flow.runners.api import DEFAULT_OUTPUT
from gpuemu_flow.types import Case, Json
from gpuemu_flow.wire import MAX_MESSAGE_BYTES
from gpuemu_flow.wire.tensors import encode_tensor

MAX_BATCH = 100_000
MAX_BATCH_BYTES = MAX_MESSAGE_BYTES * 3 // 4 - (1 << 20)  # base64 makes 4 bytes of 3


def get_test_case(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    """Answer ``GetTestCase``: return case 0 of a configuration."""
    found = _cases(service, fields, job, 0, 1)
    return {"type": "TestCase", **found[0]}


def get_test_batch(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    """Answer ``GetTestBatch``: return cases from number ``start`` on (0 if not given)."""
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
        if maker.own_cases:
            reply["layouts"] = {spec.name: spec.layout for spec in case.inputs}
            if op.in_place:
                reply["mutates"] = list(op.in_place)
                reply["outputs"] = [each.name for each in op.schema.outputs] or [DEFAULT_OUTPUT]
        found.append(reply)
    service.issued.add(name, maker.to_json(), issued)
    return found


def _made(service: Service, name: str, case: Case, job: Job) -> Case:
    """Return the case with the inputs that the user's generator functions make.

    Raises
    ------
    GenerateError
        A generator function failed.
    """
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
    """Make a handed-out case again from its recipe.

    Returns
    -------
    tuple or None
        The maker, the case and the inputs as they are sent. None for an unknown seed, or if the
        case cannot be made any more, such as after a change of the schema.
    """
    recipe = service.issued.recipe(name, seed)
    if recipe is None:
        return None
    _, op = service.op(name)
    try:
        maker = CaseMaker.from_json(service, op, recipe[0])
        case = _made(service, name, maker.case(recipe[1]), job)
    except (FlowError, KeyError, TypeError, ValueError):
        return None
    if case.seed != seed:  # the op's schema has changed
        return None
    return maker, case, maker.tensors(case, MAX_BATCH_BYTES)
