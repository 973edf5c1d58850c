"""Make decoy calls, which expose an op that remembers results or counts its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gpuemu_flow.types import Case, Failure

_KEPT = 64  # elements at each end, at most
_ONE_IN = 8

Arrays = Mapping[str, np.ndarray]


def resemble(decoy: Arrays, judged: Arrays, case: Case) -> None:
    """Copy the first and last elements of the judged inputs into the decoy, in half of the cases.

    An op that looks up stored results by a digest of those elements then returns the decoy's result
    for the judged inputs. In the other cases, all elements of the decoy differ, so that a stored
    result is wrong everywhere. Inputs whose elements depend on each other, such as offsets, are
    left as they are.
    """
    if case.seed % 2 == 0:
        return
    whole = {spec.name for spec in case.inputs if spec.rule and spec.rule.concerns_whole}
    whole |= {spec.rule.other for spec in case.inputs if spec.rule and spec.rule.relation}
    for name, array in decoy.items():
        if name in whole:
            continue
        kept = min(_KEPT, array.size // 3)
        if kept and array.flags.writeable:
            array.flat[:kept] = judged[name].flat[:kept]
            array.flat[-kept:] = judged[name].flat[-kept:]


def comes_again(seed: int, earlier_cases: int) -> bool:
    """Tell whether the decoy call is repeated after the judged calls.

    This is done for the first case of a process, since no other check covers a process's first
    call. It is also done for some other cases, chosen by seed so that an op cannot predict them by
    counting its calls.
    """
    return earlier_cases == 0 or seed % _ONE_IN == 0


def told(failures: Sequence[Failure]) -> list[Failure]:
    """Return the failures, each with a note that it was found in the decoy calls."""
    place = "in the call before the judged one and in one after it, on other inputs: "
    return [replace(failure, message=place + failure.message) for failure in failures]
