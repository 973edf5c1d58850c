"""The script protocol: tensors as JSON with base64 data, written fast and read strictly.

Protocol v1: stdin holds ``{"inputs": {name: tensor}, "kwargs": {str: str}}`` where a tensor is
``{shape, strides, dtype, data}``; stdout holds one flat tensor ``{shape, dtype, data}``, or
``{"outputs": {name: tensor}}``, or ``{"output": tensor}``. Data is always the C-order element
sequence, little-endian.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pybase64

from gpuemu_flow.numerics.tensor_bytes import (
    ImpossibleShapeError,
    TensorBytesError,
    bytes_of,
    is_size,
    tensor_of,
)
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.runners.api import DEFAULT_OUTPUT, MAX_OUTPUTS, OpError, RunError
from gpuemu_flow.runners.lending import Captured
from gpuemu_flow.runners.tensors import MAX_OUTPUT_BYTES, element_type
from gpuemu_flow.types import DTYPES, MAX_DIMS, Json, canonical_dtype

_DATA_KEY = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*"')
_PRINT_HINT = "stdout must hold one JSON object and nothing else; print messages to stderr"


def _fail(slug: str, message: str, hint: str = "") -> OpError:
    return OpError(RunError(slug, message, hint))


def kwarg_text(value: Json) -> str:
    """Return a keyword argument as the string that protocol v1 sends."""
    if isinstance(value, (list, dict)):
        return json.dumps(value)
    return str(value)


@dataclass(frozen=True)
class EncodedRequest:
    """A request, both as the text to send and as the object that the text parses to.

    Attributes
    ----------
    pieces : sequence of str
        The text of the request, all of it ASCII.
    inputs : dict of str to dict
        The tensor objects.
    kwargs : dict of str to str
    """

    pieces: Sequence[str]
    inputs: dict[str, dict[str, Json]]
    kwargs: dict[str, str]

    @property
    def size(self) -> int:
        """Return the size of the request in bytes."""
        return sum(map(len, self.pieces))

    @cached_property
    def text(self) -> str:
        """Return the request as text."""
        return "".join(self.pieces)

    @cached_property
    def data(self) -> bytes:
        """Return the request as bytes."""
        return self.text.encode()

    def document(self) -> dict[str, Json]:
        """Build a fresh copy of the object that ``json.loads(text)`` would return."""
        inputs = {
            name: {
                key: list(value) if isinstance(value, list) else value
                for key, value in tensor.items()
            }
            for name, tensor in self.inputs.items()
        }
        return {"inputs": inputs, "kwargs": dict(self.kwargs)}


def encode_request(inputs: Mapping[str, np.ndarray], kwargs: Mapping[str, Json]) -> bytes:
    """Return the request for one call; see `prepare_request`."""
    return prepare_request(inputs, kwargs).data


def prepare_request(inputs: Mapping[str, np.ndarray], kwargs: Mapping[str, Json]) -> EncodedRequest:
    """Return the request for one call.

    Parameters
    ----------
    inputs : mapping of str to ndarray
        Any shapes and layouts; dtypes of `gpuemu_flow.types.DTYPES`.
    kwargs : mapping
        Values are converted to strings, as the protocol requires.
    """
    pieces = ['{"inputs":{']
    tensors: dict[str, dict[str, Json]] = {}
    for name, array in inputs.items():
        head: dict[str, Json] = {
            "shape": list(array.shape),
            "strides": [stride // array.itemsize for stride in array.strides],
            "dtype": element_type(array),
        }
        comma = "," if tensors else ""
        text = pybase64.b64encode_as_string(bytes_of(array).data)
        pieces += [f'{comma}{json.dumps(name)}:{json.dumps(head)[:-1]},"data":"', text, '"}']
        tensors[name] = {**head, "data": text}
    texts = {key: kwarg_text(value) for key, value in kwargs.items()}
    pieces += ['},"kwargs":', json.dumps(texts), "}"]
    return EncodedRequest(pieces, tensors, texts)


def _first_line(data: bytes) -> str:
    return data[:200].decode("utf-8", "replace").strip().partition("\n")[0][:80]


def _parse(text: bytes, whole: bytes) -> Json:
    try:
        value = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _fail(
            "op-output-junk",
            f"stdout is not one JSON object; it begins {_first_line(whole)!r}",
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


def _b64(text: str | bytes | memoryview, name: str) -> bytes:
    try:
        return pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _fail("op-output-junk", f"output {name!r}: its data is not base64") from None


def _tensor(
    value: Json, name: str, raw: memoryview | None = None, decoded: bytes | None = None
) -> np.ndarray:
    """Decode one tensor object.

    `raw` is the tensor's base64 text if it was cut out before parsing. `decoded` is the tensor's
    bytes if they are known.
    """
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
    data = _b64(text if raw is None else raw, name) if decoded is None else decoded
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

    Parameters
    ----------
    data : bytes
        The script's complete stdout.
    output_names : sequence of str
        Declared names. If empty, a single output is called ``result``, whatever the script names
        it, and several outputs keep the script's names.

    Raises
    ------
    OpError
        ``op-output-junk``, ``op-output-missing``, ``op-output-shape``, ``op-output-dtype``,
        ``op-output-length``.
    """
    if not data or data.isspace():
        raise _fail("op-output-missing", "the program wrote nothing to stdout")
    key = _DATA_KEY.search(data)
    if key is not None:
        # Parsing megabytes of base64 as a JSON string costs more than decoding them.
        start = key.end()
        stop = data.find(b'"', start)
        alone = _DATA_KEY.search(data, max(stop, start)) is None
        if stop >= 0 and alone and data.find(b"\\", start, stop) < 0:
            document = _parse(data[:start] + data[stop:], data)
            named = _rename(_named(document), output_names)
            (name, value), *others = named.items()
            span = memoryview(data)[start:stop]
            if not others and isinstance(value, dict) and value.get("data") == "":
                return {name: _tensor(value, name, span)}
    named = _rename(_named(_parse(data, data)), output_names)
    return {name: _tensor(value, name) for name, value in named.items()}


def decode_captured(captured: Captured, output_names: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Return the tensors of a response that was captured before it was written to stdout.

    Names and errors are as for `decode_response`.
    """
    document = json.loads(captured.short)
    outputs = {}
    for name, value in _rename(_named(document), output_names).items():
        data = value.get("data") if isinstance(value, dict) else None
        known = captured.taken.get(data) if isinstance(data, str) else None
        outputs[name] = _tensor(value, name, decoded=None if known is None else known[1])
    return outputs
