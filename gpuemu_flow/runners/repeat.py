"""Compare two identical calls bit by bit, to detect hidden state and unwritten elements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpuemu_flow.runners.buffers import as_number, same_bytes
from gpuemu_flow.types import Failure, FailureKind

# Fresh memory is filled with one of these before the judged call and with the other before the
# repeated one, where the allocator allows it.
FIRST_FILL, SECOND_FILL = 0x5B, 0xA4


NONE: Mapping[str, np.ndarray] = {}


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """Return one row of bytes per element."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, array.itemsize)


def compare_calls(
    first: Mapping[str, np.ndarray],
    second: Mapping[str, np.ndarray],
    *,
    deterministic: bool,
    counting: Mapping[str, np.ndarray] = NONE,
) -> list[Failure]:
    """Compare the outputs of two identical calls, and report differences."""
    found = []
    for name, array in first.items():
        again = second.get(name)
        if again is None or again.shape != array.shape or again.dtype != array.dtype:
            message = f"an identical call gave output {name!r} another shape or dtype"
            found.append(Failure(FailureKind.NON_DETERMINISTIC, message, name))
            continue
        rows, rows_again = _bytes_of(array), _bytes_of(again)
        if same_bytes(rows, rows_again):
            continue
        differs = (rows != rows_again).any(axis=1)
        if name in counting and counting[name].shape == array.shape:
            differs &= counting[name].reshape(-1)
        if not differs.any():  # or no longer, if a thread of the program still writes
            continue
        unwritten = differs & (rows == FIRST_FILL).all(axis=1)
        unwritten &= (rows_again == SECOND_FILL).all(axis=1)
        if unwritten.any():
            found.append(_failure(FailureKind.UNWRITTEN, name, unwritten, array, again))
        elif deterministic:
            found.append(_failure(FailureKind.NON_DETERMINISTIC, name, differs, array, again))
    return found


def _failure(
    kind: FailureKind, name: str, where: np.ndarray, first: np.ndarray, second: np.ndarray
) -> Failure:
    flat = int(np.flatnonzero(where)[0])
    index = tuple(int(i) for i in np.unravel_index(flat, first.shape))
    count = int(np.count_nonzero(where))
    told = (
        f"{count} of {first.size} elements of output {name!r} were never written"
        if kind is FailureKind.UNWRITTEN
        else f"an identical call changed {count} of {first.size} elements of output {name!r}"
    )
    return Failure(kind, told, name, index, as_number(first[index]), as_number(second[index]))
