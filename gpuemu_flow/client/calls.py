"""Each request of the protocol as data: the message to send, and how to read its reply."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Generic, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.client.results import ClientError, TestCase, ValidationResult
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.types import DTYPES, Json
from gpuemu_flow.numerics.dtypes import ML_DTYPES_NAMES, dtype_name, numpy_dtype
from gpuemu_flow.numerics.layouts import lay_out
from gpuemu_flow.wire.tensors import Exchange, decode_tensors

Names = Callable[["np.dtype[Any]"], "str | None"]

MAX_NESTED = 64
"""Largest depth of nested lists to examine: the largest number of dimensions in numpy."""


def as_array(
    value: Any, name: str, dtype: str | None = None, *, known: Names = dtype_name
) -> NDArray[Any]:
    """Convert one tensor to a numpy array with a dtype of the protocol. Raises ClientError:
    ``client-not-a-tensor``; ``client-several-tensors`` for a tuple or list of tensors, which numpy
    would stack."""
    if holds_tensors(value):
        text = f"{name!r} is a {type(value).__name__} with tensors in it, which would be stacked"
        hint = "give one tensor: what the list holds, or numpy.stack of it"
        raise ClientError(Problem("client-several-tensors", text, hint))
    try:
        array = _as_numpy(value)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if dtype is not None:
            wanted = numpy_dtype(dtype)
            if array.dtype.kind == "c" and wanted.kind != "c":
                raise TypeError(f"{dtype} would lose the imaginary parts")
            array = array.astype(wanted, copy=False)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise _no_tensor(name, str(error)) from None
    if known(array.dtype) is None:
        raise _no_tensor(name, f"its dtype {array.dtype} is none that can be sent")
    return array


def _as_numpy(value: Any) -> NDArray[Any]:
    masked = sys.modules.get("numpy.ma")  # where it is not loaded, no array is of its type
    if isinstance(value, getattr(masked, "MaskedArray", ())) and np.ma.is_masked(value):
        raise TypeError("it is a masked array, whose masked elements have no value")
    if isinstance(value, np.ndarray):
        return value.view(np.ndarray)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(torch, value)
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "numpy") and not hasattr(value, "__array__"):
        return np.asarray(value.numpy())
    return np.asarray(value)


def _from_torch(torch: Any, value: Any) -> NDArray[Any]:
    """Convert a PyTorch tensor to a dense numpy array in the memory of the CPU. numpy has no
    bfloat16 and float8, and PyTorch does not know the types that we use for them in numpy. Such
    tensors are therefore converted bit by bit."""
    if value.is_quantized or value.is_nested:
        raise TypeError("it is a quantized or nested tensor; send what it stands for")
    tensor = value.detach().cpu()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    # Resolve lazy negation before using the bits, which do not contain the sign.
    tensor = tensor.resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if name in ML_DTYPES_NAMES:
        words = torch.uint8 if DTYPES[name].itemsize == 1 else torch.int16
        bits = tensor.contiguous().view(words).numpy()
        bits = bits.view(numpy_dtype(name))
        return np.asarray(bits)
    return np.asarray(tensor.numpy())


def as_arrays(
    values: Mapping[str, Any], dtype: str | None = None, *, known: Names = dtype_name
) -> dict[str, NDArray[Any]]:
    """Convert each tensor of a mapping; see `as_array`."""
    if not isinstance(values, Mapping):
        raise _no_tensor("inputs", "they must be a mapping of names to tensors")
    return {
        str(name): as_array(value, str(name), dtype, known=known) for name, value in values.items()
    }


def elements_changed(
    before: Mapping[str, NDArray[Any]], after: Mapping[str, NDArray[Any]]
) -> dict[str, int]:
    """Count, for each array that an op changed, the elements whose bits differ. Arrays without
    changes are left out. NaNs with the same bits are equal. If the shape or dtype changed, all
    elements count."""
    found = {}
    for name, array in before.items():
        now = after[name]
        if now.shape != array.shape or now.dtype != array.dtype:
            found[name] = max(1, array.size)
            continue
        old, new = array.tobytes(), now.tobytes()
        if old != new:
            differs = np.frombuffer(old, np.uint8) != np.frombuffer(new, np.uint8)
            found[name] = int(differs.reshape(-1, array.itemsize).any(axis=1).sum())
    return found


def output_fields(output: Any, dtype: str | None = None) -> dict[str, Any]:
    """Return the field of a request that contains the output, or all outputs by name. Raises
    ClientError: ``client-several-outputs`` for a tuple or list of tensors, which numpy would
    stack."""
    if isinstance(output, Mapping):
        for name, one in output.items():
            _refuse_several(one, f"the output {name!r}")
        return {"outputs": as_arrays(output, dtype)}
    _refuse_several(output, "the output")
    return {"output": as_array(output, "output", dtype)}


def _refuse_several(output: Any, what: str) -> None:
    if holds_tensors(output):
        text = f"{what} is a {type(output).__name__} with tensors in it, without names"
        hint = 'give them by the names of the op\'s outputs: {"values": v, "indices": i}'
        raise ClientError(Problem("client-several-outputs", text, hint))


def holds_tensors(value: Any) -> bool:
    """Tell whether a value is a tuple or list that contains a tensor. Of nested lists, only the
    first is examined, because they usually form a matrix of numbers."""
    for _ in range(MAX_NESTED):
        if not isinstance(value, (tuple, list)) or not value:
            return False
        if any(
            hasattr(one, "shape") and hasattr(one, "dtype") and not isinstance(one, np.generic)
            for one in value
        ):
            return True
        value = value[0]
    return False


def _no_tensor(name: str, reason: str) -> ClientError:
    return ClientError(Problem("client-not-a-tensor", f"{name!r} cannot be sent: {reason}"))


T = TypeVar("T")

PLAIN = "contiguous"
MAX_ERROR = 2000
"""Largest number of characters of an exception's text to send."""
FUZZ_SHAPES: Mapping[str, Sequence[int]] = {
    "batch_sizes": (1, 2, 4, 8, 16, 32),
    "seq_lengths": (64, 128, 256, 512, 1024),
    "hidden_dims": (256, 512, 768, 1024),
}
CASE_SHAPES: Mapping[str, Sequence[int]] = {
    "batch_sizes": (1, 2, 4, 8),
    "seq_lengths": (64, 128, 256),
    "hidden_dims": (256, 512),
}
"""Shapes of the published client, so that the same seed gives the same cases."""


class Reply(Struct, frozen=True):
    """A daemon's reply, of the expected type."""

    fields: dict[str, Json]
    exchange: Exchange | None

    def tensors(self, value: Json, where: str) -> dict[str, NDArray[Any]]:
        """Decode tensors by name into arrays that the caller owns and may write to."""
        found = decode_tensors(value, where, self.exchange)
        return {n: a if a.flags.writeable else a.copy() for n, a in found.items()}


class Call(Struct, Generic[T], frozen=True):
    """One request, and how to read its reply."""

    request: Mapping[str, Any]
    expects: str
    read: Callable[[Reply], T]


def seed_or_new(seed: int | None) -> int:
    """Return the seed or, if it is None, a new seed from the clock."""
    return time.time_ns() & ((1 << 64) - 1) if seed is None else seed


def the_result(reply: Reply) -> ValidationResult:
    return ValidationResult.from_dict(reply.fields["result"])


def the_results(reply: Reply) -> list[ValidationResult]:
    return [ValidationResult.from_dict(item) for item in reply.fields["results"]]


def nothing(_: Reply) -> None:
    """Read a reply that says no more than that the request was obeyed."""
    return


def validate(
    op_name: str,
    inputs: Mapping[str, Any],
    output: Any,
    kwargs: Mapping[str, Json],
    *,
    seed: int | None,
    dtype: str | None,
    client: Mapping[str, Json] | None = None,
    modified: Mapping[str, int] | None = None,
) -> Call[ValidationResult]:
    """Make the request to judge an output. Raises ClientError: ``client-no-output`` if the output
    is None; ``client-several-outputs`` for several outputs without names."""
    if output is None:
        raise ClientError(Problem("client-no-output", f"there is no output of {op_name} to judge"))
    request: dict[str, Any] = {
        "op_name": op_name,
        "inputs": as_arrays(inputs, dtype),
        "kwargs": checked_arguments(kwargs),
    }
    if client is not None:
        request["client"] = dict(client)
    if modified:
        request["modified"] = dict(modified)
    request.update(output_fields(output, dtype))
    if seed is None:
        return Call({"type": "ValidateOp", **request}, "ValidationResult", the_result)
    return Call({"type": "SubmitOutput", "seed": seed, **request}, "SubmitResult", the_result)


def submit_outputs(
    op_name: str,
    cases: Sequence[tuple[int, Mapping[str, Any], Any]],
    kwargs: Mapping[str, Json],
    *,
    client: Mapping[str, Json],
    request_id: str,
) -> Call[list[ValidationResult]]:
    """Make the request to judge the outputs for several cases; an extension of protocol v1. Raises
    ClientError: ``client-no-output`` if an output is None; ``client-several-outputs`` for several
    outputs without names."""
    submitted = []
    for seed, inputs, output in cases:
        if output is None:
            text = f"there is no output of {op_name} for the case with the seed {seed}"
            raise ClientError(Problem("client-no-output", text))
        try:
            given = as_arrays(inputs, None)
            submitted.append({"seed": seed, "inputs": given, **output_fields(output)})
        except ClientError as error:
            text = f"the case with the seed {seed}: {error.message}"
            raise ClientError(replace(error.problems[0], message=text)) from None
    request = {
        "type": "SubmitOutputs",
        "op_name": op_name,
        "kwargs": checked_arguments(kwargs),
        "client": dict(client),
        "cases": submitted,
        "request_id": request_id,
    }
    return Call(request, "Results", the_results)


def raised(
    op_name: str,
    inputs: Mapping[str, Any],
    error: str,
    kwargs: Mapping[str, Json],
    *,
    seed: int,
    client: Mapping[str, Json],
) -> Call[ValidationResult]:
    """Make the request that reports an op's exception on a case; an extension of protocol v1."""
    request = {
        "type": "SubmitOutput",
        "op_name": op_name,
        "inputs": as_arrays(inputs, None),
        "kwargs": checked_arguments(kwargs),
        "client": dict(client),
        "seed": seed,
        "error": error[:MAX_ERROR],
    }
    return Call(request, "SubmitResult", the_result)


def nbytes(value: Any) -> int:
    """Return the total size in bytes of the tensors in a request."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if value is None or isinstance(value, (str, int)):
        return 0
    if isinstance(value, (dict, Mapping)):  # a dict is found out much faster
        return sum(map(nbytes, value.values()))
    return sum(map(nbytes, value)) if isinstance(value, list) else 0


def fuzz_config(
    seed: int,
    shapes: Mapping[str, Sequence[int]],
    *,
    edge_cases: Sequence[Sequence[int]],
    dtypes: Sequence[str] | None,
    layouts: Sequence[str],
    op_schema: Mapping[str, Json] | None = None,
) -> dict[str, Json]:
    config: dict[str, Json] = {
        "seed": seed,
        "shape_options": {
            **{name: list(sizes) for name, sizes in shapes.items()},
            "edge_cases": [list(shape) for shape in edge_cases],
        },
        "dtypes": list(dtypes or ("float32", "float16")),
        "layouts": [layout.capitalize() for layout in layouts],
    }
    if op_schema is not None:
        config["op_schema"] = dict(op_schema)
    return config


def case_config(
    seed: int, dtypes: Sequence[str] | None, op_schema: Mapping[str, Json] | None
) -> dict[str, Json]:
    """Return the configuration for cases on which the client itself runs an op."""
    return fuzz_config(
        seed,
        CASE_SHAPES,
        edge_cases=([1], [1, 1]),
        dtypes=dtypes,
        layouts=("contiguous", "strided"),
        op_schema=op_schema,
    )


def _test_case(reply: Reply, data: Mapping[str, Json], where: str) -> TestCase:
    inputs = reply.tensors(data["inputs"], f"{where}inputs")
    layouts = data.get("layouts", {})
    laid_out = {name: lay_out(array, layouts.get(name, PLAIN)) for name, array in inputs.items()}
    return TestCase.from_dict({**data, "inputs": laid_out})


def about_cases(
    kind: str, op_name: str, config: Mapping[str, Json], *, own_dtypes: bool, own_cases: bool = True
) -> dict[str, Json]:
    """Return the fields of a request for cases. If `own_cases` is true and `config` has no schema,
    the cases follow the op's schema, if any. If `own_cases` and `own_dtypes` are true, the cases
    have the op's dtypes, not those of `config`."""
    return {
        "type": kind,
        "op_name": op_name,
        "fuzz_config": dict(config),
        "own_cases": own_cases,
        "own_dtypes": own_cases and own_dtypes,
    }


def get_test_case(op_name: str, config: Mapping[str, Json], *, own_dtypes: bool) -> Call[TestCase]:
    """Make the request for one case, in the dtypes of `config` or, if `own_dtypes`, of the op."""
    request = about_cases("GetTestCase", op_name, config, own_dtypes=own_dtypes)
    return Call(
        {**request, "exchange": True}, "TestCase", lambda reply: _test_case(reply, reply.fields, "")
    )


def get_test_batch(
    op_name: str, config: Mapping[str, Json], *, start: int, count: int, own_dtypes: bool
) -> Call[list[TestCase]]:
    """Make the request for `count` cases of the sequence that `config` sets, from `start` on."""
    request = {
        **about_cases("GetTestBatch", op_name, config, own_dtypes=own_dtypes),
        "count": count,
        "start": start,
        "exchange": True,
    }
    return Call(
        request,
        "TestBatch",
        lambda reply: [
            _test_case(reply, case, f"cases[{number}].")
            for number, case in enumerate(reply.fields["cases"])
        ],
    )


def the_fields(reply: Reply) -> dict[str, Json]:
    """Return the fields of a reply."""
    return {name: value for name, value in reply.fields.items() if name != "type"}


def op_name_of(op_name: str | None, kwargs: dict[str, Json]) -> str:
    """Return the op's name. If it was passed as ``op``, remove this argument from `kwargs`."""
    name = kwargs.pop("op", None) if op_name is None else op_name
    if not isinstance(name, str):
        raise ClientError(Problem("client-no-name", "the op's name is missing"))
    return name


TOLERANCES = ("atol", "rtol")


def checked_arguments(given: Mapping[str, Json]) -> dict[str, Json]:
    """Check a call's keyword arguments, and return them."""
    for name, value in given.items():
        if name in TOLERANCES:
            check_tolerance(name, value)
        elif isinstance(value, float) and not math.isfinite(value):
            text = f"the argument {name} is {value}, which a request cannot hold"
            raise ClientError(Problem("client-not-finite", text, "give a finite number"))
    return dict(given)


def check_tolerance(name: str, value: Any) -> None:
    """Raise ClientError ``client-bad-tolerance`` unless a value is None or a finite number. Texts
    such as ``"1e-3"`` are refused, although the daemon accepts them from published clients, which
    send every argument as text."""
    if value is None:
        return
    if not isinstance(value, Real) or isinstance(value, bool):
        text = f"{name} is of type {type(value).__name__}"
    elif not math.isfinite(value):
        text = f"{name} is {float(value)}"
    else:
        return
    raise ClientError(
        Problem("client-bad-tolerance", text, f"give a finite number of 0 or more, as {name}=1e-5")
    )


def check_tolerances(atol: Any, rtol: Any) -> None:
    """Check both members of a tolerance; see `check_tolerance`."""
    for name, value in zip(TOLERANCES, (atol, rtol), strict=True):
        check_tolerance(name, value)


def one_per_case(
    op_name: str, cases: Iterable[TestCase | int], outputs: Iterable[Any]
) -> list[tuple[TestCase | int, Any]]:
    """Pair each case, or seed of a case, with its output."""
    for name, given in (("cases", cases), ("outputs", outputs)):
        if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
            text = f"the {name} of {op_name} are of type {type(given).__name__}"
            raise ClientError(Problem("client-outputs-count", text, "give a list of them"))
    cases, outputs = list(cases), list(outputs)
    if len(cases) != len(outputs):
        text = f"{len(outputs)} outputs were given for {len(cases)} cases of {op_name}"
        raise ClientError(Problem("client-outputs-count", text, "give one output per case"))
    known = [_case_or_seed(case, f"cases[{n}] of {op_name}") for n, case in enumerate(cases)]
    return list(zip(known, outputs, strict=True))


def _case_or_seed(given: Any, what: str) -> TestCase | int:
    if isinstance(given, TestCase):
        return given
    if isinstance(given, Integral) and not isinstance(given, bool):
        return int(given)  # JSON cannot encode numpy's integers
    kind = type(given)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    hint = "give cases of get_test_batch, gpuemu_flow.client.TestCase(seed=…, inputs=…), or seeds"
    raise ClientError(Problem("client-not-a-case", f"{what} is of type {name}", hint))


def failure_fields(failure: int | str) -> dict[str, Json]:
    """Return the fields of a request that identify a failure: by seed, or by id if it is a str."""
    return {"failure_id": failure} if isinstance(failure, str) else {"seed": failure}


MOST_ITERATIONS = 1 << 20
_BY_POSITION = (
    "seed", "iterations", "fail_fast", "batch_sizes", "seq_lengths", "hidden_dims", "dtypes",
    "layouts",
)  # fmt: skip


def named_by_position(op_name: str, given: Sequence[Any]) -> dict[str, Any]:
    """Return arguments of `Client.fuzz_op` by name.

    gpuemu's page has ``(op, iterations, seed)``, its code ``(op_name, seed, iterations)``. A number
    that is too large for iterations is the seed; three arguments and more are those of the code.

    Raises ClientError: ``client-argument``, if numbers could be either.
    """
    large = [isinstance(number, int) and number > MOST_ITERATIONS for number in given]
    if len(given) <= 2 and sum(large) != 1:
        numbers = [*given, 100][:2]
        said = f"fuzz_op({op_name!r}, {', '.join(map(repr, given))}): which is the seed?"
        hint = " or ".join(
            f"fuzz_op({op_name!r}, seed={seed!r}, iterations={iterations!r})"
            for seed, iterations in (numbers, numbers[::-1])
        )
        raise ClientError(Problem("client-argument", said, hint))
    ordered = given[::-1] if len(given) == 2 and large[1] else given
    return dict(zip(_BY_POSITION, ordered, strict=False))
