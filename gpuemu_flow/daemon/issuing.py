"""Cases handed out to clients: GetTestCase and GetTestBatch."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from gpuemu_flow.cases.protocol_v1 import (
    case_at,
    nominal_strides,
    representative_shape,
    tensors,
)
from gpuemu_flow.daemon.cases import Issued, digest_of
from gpuemu_flow.daemon.fields import Fields, invalid
from gpuemu_flow.daemon.jobs import Job
from gpuemu_flow.daemon.service import Service
from gpuemu_flow.errors import UsageError
from gpuemu_flow.numerics.dtypes import to_float32
from gpuemu_flow.types import Case, Json
from gpuemu_flow.wire import MAX_MESSAGE_BYTES
from gpuemu_flow.wire.tensors import encode_tensor

MAX_BATCH = 100_000
MAX_BATCH_BYTES = MAX_MESSAGE_BYTES * 3 // 4 - (1 << 20)  # base64 makes 4 bytes of 3


def get_test_case(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    """``GetTestCase``: case 0 of a configuration."""
    found = _cases(service, fields, job, 0, 1)
    return {"type": "TestCase", **found[0]}


def get_test_batch(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    """``GetTestBatch``: cases ``start`` (0 when not given) and following."""
    count = fields.integer("count", 0, MAX_BATCH)
    start = fields.integer("start", 0, 1 << 32, default=0)
    return {"type": "TestBatch", "cases": _cases(service, fields, job, start, count)}


def _cases(
    service: Service, fields: Fields, job: Job, start: int, count: int
) -> list[dict[str, Json]]:
    name = fields.name("op_name")
    _, op = service.op(name)
    config = fields.fuzz_config()
    exchange = fields.reply_exchange
    found = []
    size = 0
    for number in range(start, start + count):
        job.check()
        case = case_at(config, op.input_names, number)
        inputs = _made(case, MAX_BATCH_BYTES - size)
        size += sum(array.nbytes for array in inputs.values())
        shape = representative_shape(config, case)
        service.issued.add(name, Issued(case, shape, config.to_json(), digest_of(inputs)))
        found.append(
            {
                "seed": case.seed,
                "inputs": {
                    spec.name: encode_tensor(
                        inputs[spec.name], nominal_strides(spec.shape, case.layout), exchange
                    )
                    for spec in case.inputs
                },
                "shape": list(shape),
                "dtype": case.dtype,
                "layout": case.layout,
            }
        )
    return found


def _made(case: Case, room: int) -> dict[str, NDArray[Any]]:
    """Inputs of a case as they travel: bfloat16 as float32, which every client can read."""
    try:
        made = tensors(case, protocol_v1=False, max_bytes=max(0, room))
    except UsageError as error:
        if error.slug != "case-too-large":
            raise
        raise invalid(
            "the cases take too many bytes for one answer; ask for fewer or smaller ones"
        ) from None
    if case.dtype != "bfloat16":
        return made
    return {name: to_float32(array) for name, array in made.items()}
