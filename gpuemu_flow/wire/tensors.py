"""Tensors of wire protocol v1: shape, strides, dtype, and base64 of the elements in C order."""

from __future__ import annotations

import base64
import contextlib
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.model.errors import did_you_mean
from gpuemu_flow.model.types import DTYPES, MAX_DIMS, Json, canonical_dtype
from gpuemu_flow.numerics.dtypes import TensorBytesError, bytes_of, dtype_name, tensor_of
from gpuemu_flow.wire import WireError, is_private

# The daemon owns a private folder. A message contains the random name of a file there, and never a
# path. The side that reads a file deletes it.

FROM_BYTES = 1 << 20
"""Least size in bytes of a tensor passed as a file; smaller tensors are in the message itself."""
LEFT_SECONDS = 300.0
_NAME = re.compile(r"[0-9a-f]{32}")


def exchange_folder(private: Path, stem: str) -> Path:
    """Return the folder through which a daemon exchanges tensors. The folder is not in shared
    memory, since ops may write to shared memory."""
    return private / f"{stem}.exchange"


class Exchange:
    """A folder through which tensors are passed. Thread-safe. Raises WireError: The folder does not
    exist or is not private."""

    def __init__(self, folder: Path) -> None:
        if not is_private(folder):
            raise WireError(f"{folder} is not a private folder of this user")
        self.folder = folder

    def put(self, array: NDArray[Any]) -> str:
        """Write an array's elements in C order, and return the file's name. Raises OSError: There
        is no space; the tensor can still be sent in the message."""
        name = secrets.token_hex(16)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        path = self.folder / name
        descriptor = os.open(path, flags, 0o600)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                left = bytes_of(array).data
                while left:
                    left = left[file.write(left) :]
        except OSError:
            self.drop(name)
            raise
        return name

    def take(self, name: object, nbytes: int, where: str) -> NDArray[np.uint8]:
        """Read a file of exactly `nbytes`, and delete it. The file is read and not mapped: if the
        other side truncated it, a process that has it mapped would be killed. Raises WireError: The
        file is missing, or does not have the size in the message."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise WireError(f"{where}.file is not the name of an exchanged file")
        try:
            descriptor = os.open(
                self.folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            )
        except OSError:
            raise WireError(f"{where}.file is not there") from None
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            self.drop(name)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size != nbytes:
                raise WireError(f"{where}.file does not hold {nbytes} bytes")
            flat = np.empty(nbytes, dtype=np.uint8)
            left = flat.data
            while left:
                count = file.readinto(left)
                if not count:
                    raise WireError(f"{where}.file ends early")
                left = left[count:]
        return flat

    def drop(self, name: str) -> None:
        """Delete a file that the other side will not read; ignore a missing file."""
        with contextlib.suppress(OSError):
            (self.folder / name).unlink()

    def close(self) -> None:
        """Delete the folder and everything in it."""
        self.clear(0)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def clear(self, older_than: float = LEFT_SECONDS) -> None:
        """Delete files older than `older_than` seconds, since nobody will read them."""
        limit = time.time() - older_than if older_than else math.inf
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.folder):
                with contextlib.suppress(OSError):
                    if _NAME.fullmatch(entry.name) and entry.stat().st_mtime <= limit:
                        Path(entry.path).unlink()


Array = NDArray[Any]

MAX_TENSORS = 256
MAX_SIZE = 1 << 48
"""Sizes of dims are below this."""
MAX_SHOWN = 60


def encode_tensor(
    array: Array, strides: Sequence[int] | None = None, exchange: Exchange | None = None
) -> dict[str, Json]:
    """Return a tensor in the form in which a message contains it. Raises WireError: The protocol
    does not have the dtype."""
    name = dtype_name(array.dtype)
    if name is None:
        raise WireError(
            f"a tensor of dtype {array.dtype} cannot be sent; known: {', '.join(DTYPES)}"
        )
    head: dict[str, Json] = {
        "shape": list(array.shape),
        "strides": list(c_strides(array.shape) if strides is None else strides),
        "dtype": name,
    }
    if exchange is not None and array.nbytes >= FROM_BYTES:
        with contextlib.suppress(OSError):
            return {**head, "file": exchange.put(array)}
    return {**head, "data": base64.b64encode(bytes_of(array).data).decode()}


@lru_cache(maxsize=256)
def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of the C order."""
    strides: list[int] = []
    step = 1
    for dim in reversed(shape):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


def decode_tensor(value: Json, where: str, exchange: Exchange | None = None) -> Array:
    """Decode a tensor of a message; ignore its strides, since the data are always in C order.
    Raises WireError: The value is no valid tensor. The error's text names it as `where`."""
    if not isinstance(value, dict):
        raise WireError(f"{where} must be a tensor object, not {json_type(value)}")
    source = "file" if exchange is not None and "file" in value else "data"
    for key in ("shape", "dtype", source):
        if key not in value:
            raise WireError(f"{where} lacks {key!r}")
    shape = _shape(value["shape"], where)
    dtype = _dtype(value["dtype"], where)
    wanted = math.prod(shape) * DTYPES[dtype].itemsize
    raw: bytes | NDArray[np.uint8]
    if source == "file" and exchange is not None:
        raw = exchange.take(value["file"], wanted, where)
    else:
        raw = _bytes(value["data"], where)
        if len(raw) != wanted:
            raise WireError(
                f"{where} of shape {list(shape)} and dtype {dtype} takes {wanted} bytes; "
                f"its data holds {len(raw)}"
            )
    try:
        return tensor_of(raw, shape, dtype)
    except TensorBytesError as error:
        raise WireError(f"{where} {error}") from None


def decode_tensors(value: Json, where: str, exchange: Exchange | None = None) -> dict[str, Array]:
    if not isinstance(value, dict):
        raise WireError(f"{where} must be an object of named tensors, not {json_type(value)}")
    if len(value) > MAX_TENSORS:
        raise WireError(f"{where} holds {len(value)} tensors; at most {MAX_TENSORS} are possible")
    return {name: decode_tensor(item, f"{where}.{name}", exchange) for name, item in value.items()}


def encode_tensors(
    arrays: Mapping[str, Array], exchange: Exchange | None = None
) -> dict[str, Json]:
    return {name: encode_tensor(array, None, exchange) for name, array in arrays.items()}


def json_type(value: Json) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")


def _shape(value: Json, where: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise WireError(f"{where}.shape must be an array of sizes")
    for dim in value:
        if type(dim) is not int or not 0 <= dim < MAX_SIZE:
            raise WireError(f"{where}.shape must be an array of sizes")
    if len(value) > MAX_DIMS:
        raise WireError(f"{where} has {len(value)} dims, more than {MAX_DIMS}")
    return tuple(value)


def _dtype(value: Json, where: str) -> str:
    if not isinstance(value, str):
        raise WireError(f"{where}.dtype must be a string, not {json_type(value)}")
    name = value if value in DTYPES else canonical_dtype(value)
    if name is None:
        shown = value[:MAX_SHOWN]
        hint = did_you_mean(shown.lower(), tuple(DTYPES))
        raise WireError(f"{where} has the unknown dtype {shown!r}; {hint}")
    return name


def _bytes(value: Json, where: str) -> bytes:
    if not isinstance(value, str):
        raise WireError(f"{where}.data must be a base64 string, not {json_type(value)}")
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise WireError(f"{where}.data is not base64") from None
