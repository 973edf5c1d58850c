"""Validate the answers of a worker before they are used."""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from gpuemu_flow.runners.api import MAX_OUTPUTS, MOST_PRINTED, Outcome, OutputInfo
from gpuemu_flow.runners.slots import Slot
from gpuemu_flow.types import ELEMENT_TYPES, Json, failure_from_json

MALFORMED = (KeyError, TypeError, ValueError, OverflowError, AttributeError)
"""Exceptions that malformed answers cause."""

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_PIECE = 1 << 20
# A program that writes to the socket could answer one type of request as if it were another, and so
# leave out the fields that were requested.
_ANSWER = {"case": "outcome", "call": "called", "calls": "called-all", "serve": "served"}


def read_outcome(answer: Mapping[str, Json], index: int, serial: int, request: str) -> Outcome:
    """Read the outcome of a case from an answer; raise one of `MALFORMED` if it is invalid."""
    if answer["serial"] != serial:
        raise ValueError("not the answer to this request")
    if answer["type"] not in (_ANSWER[request], "outcome"):
        raise ValueError("the answer to a request of another kind")
    if answer["type"] == "called":
        return Outcome(
            index,
            ok=True,
            outputs=tuple(
                OutputInfo(name, slot.shape, slot.dtype)
                for name, slot in read_slots(answer).items()
            ),
            violations=tuple(failure_from_json(f) for f in answer["violations"]),
            duration_s=float(answer["seconds"]),
            printed=str(answer.get("printed", ""))[:MOST_PRINTED],
        )
    if answer["type"] in ("served", "called-all"):
        return Outcome(index, ok=True)
    if answer["type"] != "outcome":
        raise ValueError("no answer at all")
    if "staging" in answer and request == "case":
        return Outcome(index, ok=False)
    outcome = Outcome.from_json(answer["outcome"])
    if outcome.index != index or outcome.ok == (outcome.error is not None):
        raise ValueError("not an outcome of this case")
    if outcome.ok and request != "case":
        raise ValueError("success without what was asked for")
    for info in outcome.outputs:
        if info.dtype not in ELEMENT_TYPES or min((0, *info.shape)) < 0:
            raise ValueError("not a tensor")
    return outcome


def read_slots(answer: Mapping[str, Json]) -> dict[str, Slot]:
    """Return each output's position in shared memory; raise one of `MALFORMED` for a bad answer."""
    if len(answer["slots"]) > MAX_OUTPUTS:
        raise ValueError("more outputs than a program may have")
    return {str(name): Slot.from_json(data) for name, data in answer["slots"].items()}


def is_staged(path: Path, outcome: Outcome) -> bool:
    """Tell whether `path` is a plain file with the digest and size that the worker reports.

    The digest is computed again from the file. A program could report the digest of another output,
    which would then be judged instead of its own.
    """
    if not _DIGEST.match(outcome.blob):
        return False
    try:
        found = path.lstat()
    except OSError:
        return False
    is_plain = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
    return is_plain and found.st_size == outcome.size and _digest(path) == outcome.blob


def _digest(path: Path) -> str:
    """Return the sha256 of a file; empty if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as stream:
            while piece := stream.read(_PIECE):
                digest.update(piece)
    except OSError:
        return ""
    return digest.hexdigest()
