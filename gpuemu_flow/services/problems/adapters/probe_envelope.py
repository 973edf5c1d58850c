"""Pass requests to a problem's probe, and encode the answers. Used only in a sandboxed worker.

A request is JSON in an array of bytes; an answer is JSON or bytes in such an array.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

ProbeRequest = dict[str, Any]


class NotTakenError(Exception):
    """Raised for a problem that cannot be expressed as a workspace."""


def answers(answer: Callable[[ProbeRequest], Any]) -> Callable[[Any], Any]:
    """Return the function `probe`, which decodes a request, calls `answer`, and encodes the result.

    If `answer` raises `NotTakenError`, the encoded result says so. Other exceptions propagate.
    """

    def probe(request: Any) -> Any:
        torch.set_num_threads(1)
        try:
            found = answer(json.loads(bytes(request)))
        except NotTakenError as error:
            found = {"not_taken": str(error)}
        data = found if isinstance(found, bytes) else json.dumps(found).encode()
        return np.frombuffer(data, np.uint8).copy()

    return probe
