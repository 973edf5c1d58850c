"""The script protocol: tensors as JSON with base64 data, read strictly.

Protocol v1: stdin holds ``{"inputs": {name: tensor}, "kwargs": {str: str}}`` where a tensor is
``{shape, strides, dtype, data}``; stdout holds one flat tensor ``{shape, dtype, data}``, or
``{"outputs": {name: tensor}}``, or ``{"output": tensor}``. Data is always the C-order element
sequence, little-endian.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence

import numpy as np

from gpuemu_flow.numerics.dtypes import (
    ImpossibleShapeError,
    TensorBytesError,
    bytes_of,
    is_size,
    tensor_of,
)
from gpuemu_flow.runners.api import DEFAULT_OUTPUT, MAX_OUTPUTS, OpError, RunError
from gpuemu_flow.runners.tensors import MAX_OUTPUT_BYTES, element_type
from gpuemu_flow.types import DTYPES, MAX_DIMS, Json, canonical_dtype

_PRINT_HINT = "stdout must hold one JSON object and nothing else; print messages to stderr"


def _fail(slug: str, message: str, hint: str = "") -> OpError:
    return OpError(RunError(slug, message, hint))


def kwarg_text(value: Json) -> str:
    """Return a keyword argument as the string that protocol v1 sends."""
    if isinstance(value, (list, dict)):
        return json.dumps(value)
    return str(value)


def encode_request(inputs: Mapping[str, np.ndarray], kwargs: Mapping[str, Json]) -> bytes:
    """Return the request for one call; keyword arguments become strings, as in protocol v1."""
    tensors = {
        name: {
            "shape": list(array.shape),
            "strides": [stride // array.itemsize for stride in array.strides],
            "dtype": element_type(array),
            "data": base64.b64encode(bytes_of(array).data).decode(),
        }
        for name, array in inputs.items()
    }
    texts = {key: kwarg_text(value) for key, value in kwargs.items()}
    return json.dumps({"inputs": tensors, "kwargs": texts}, separators=(",", ":")).encode()


def _first_line(data: bytes) -> str:
    return data[:200].decode("utf-8", "replace").strip().partition("\n")[0][:80]


def _parse(data: bytes) -> Json:
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _fail(
            "op-output-junk",
            f"stdout is not one JSON object; it begins {_first_line(data)!r}",
            _PRINT_HINT,
        ) from None
    if not isinstance(value, dict):
        raise _fail(
            "op-output-junk", f"stdout holds a JSON {type(value).__name__}, not an object",
            _PRINT_HINT,
        )  # fmt: skip
    return value


def _shape(value: Json, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(map(is_size, value)):
        raise _fail("op-output-shape", f"output {name!r} has no valid shape: {value!r:.80}")
    if len(value) > MAX_DIMS:
        raise _fail("op-output-shape", f"output {name!r} has {len(value)} dims, over {MAX_DIMS}")
    return tuple(value)


def _dtype(value: Json, name: str) -> str:
    if value is None:
        return "float32"  # protocol v1's default for scripts that leave it out
    dtype = canonical_dtype(value) if isinstance(value, str) else None
    if dtype is None:
        raise _fail(
            "op-output-dtype",
            f"output {name!r} has the unknown dtype {value!r:.60}",
            f"known: {', '.join(DTYPES)}",
        )
    return dtype


def _b64(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise _fail("op-output-junk", f"output {name!r}: its data is not base64") from None


def _tensor(value: Json, name: str) -> np.ndarray:
    if not isinstance(value, dict):
        raise _fail("op-output-missing", f"output {name!r} is not a tensor object")
    for key in ("shape", "data"):
        if key not in value:
            raise _fail("op-output-missing", f"output {name!r} has no {key!r}")
    shape, dtype = _shape(value["shape"], name), _dtype(value.get("dtype"), name)
    text = value["data"]
    if not isinstance(text, str):
        raise _fail("op-output-junk", f"output {name!r}: its data is not a base64 string")
    nbytes = DTYPES[dtype].itemsize
    for dim in shape:
        nbytes *= dim
    if nbytes > MAX_OUTPUT_BYTES:
        raise _fail("op-output-shape", f"output {name!r} of {nbytes} bytes is over the limit")
    data = _b64(text, name)
    if len(data) != nbytes:
        raise _fail(
            "op-output-length",
            f"output {name!r} of shape {list(shape)} and dtype {dtype} takes {nbytes} bytes; "
            f"its data holds {len(data)}",
        )
    try:
        return tensor_of(np.frombuffer(data, dtype=np.uint8), shape, dtype)
    except ImpossibleShapeError as error:
        raise _fail("op-output-shape", f"output {name!r} {error}") from None
    except TensorBytesError as error:
        raise _fail("op-output-junk", f"output {name!r} {error}") from None


def _named(document: Mapping[str, Json]) -> dict[str, Json]:
    """Return the tensor objects of a response by name; the name of an unnamed tensor is ""."""
    if "outputs" in document:
        outputs = document["outputs"]
        if not isinstance(outputs, dict) or not outputs:
            raise _fail("op-output-missing", "'outputs' is not an object of named tensors")
        if len(outputs) > MAX_OUTPUTS:
            raise _fail("op-output-junk", f"{len(outputs)} outputs are over {MAX_OUTPUTS}")
        return outputs
    if "output" in document:
        return {"": document["output"]}
    if "data" in document or "shape" in document:
        return {"": document}
    keys = ", ".join(sorted(document)[:5])
    raise _fail(
        "op-output-missing",
        f"stdout holds no tensor, only: {keys or 'an empty object'}",
        'write {"shape": ..., "dtype": ..., "data": ...} or {"outputs": {name: tensor}}',
    )


def _rename(named: dict[str, Json], output_names: Sequence[str]) -> dict[str, Json]:
    wanted = tuple(output_names)
    if len(named) == 1 and len(wanted) <= 1:
        (value,) = named.values()
        return {wanted[0] if wanted else DEFAULT_OUTPUT: value}
    if wanted and set(named) != set(wanted):
        found = ", ".join(name or "one unnamed" for name in sorted(named))
        raise _fail(
            "op-output-missing", f"the outputs are {found}, but {', '.join(wanted)} are declared"
        )
    return {name: named[name] for name in wanted or sorted(named)}


def decode_response(data: bytes, output_names: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Return the tensors that a script wrote.

    Raises
    ------
    OpError
        ``op-output-junk``, ``op-output-missing``, ``op-output-shape``, ``op-output-dtype``,
        ``op-output-length``.
    """
    if not data or data.isspace():
        raise _fail("op-output-missing", "the program wrote nothing to stdout")
    named = _rename(_named(_parse(data)), output_names)
    return {name: _tensor(value, name) for name, value in named.items()}
