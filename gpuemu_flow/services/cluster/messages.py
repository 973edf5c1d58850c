"""Messages between the coordinator and a cluster's workers: compressed MessagePack."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TypeVar

import msgspec
import numpy as np
from msgspec import Struct, field

from gpuemu_flow.config.model import Overrides
from gpuemu_flow.fuzz.case_queue import BatchVerdict, QueuedCase
from gpuemu_flow.model.decoding import known
from gpuemu_flow.model.errors import Hint, Problem
from gpuemu_flow.store.discovered import Discovered

M = TypeVar("M", bound="Message")

PROTOCOL = 2
NANNY_VARIABLES = (
    "MALLOC_TRIM_THRESHOLD_", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
)  # fmt: skip
"""Variables that dask sets in its workers. Some of them change the results of programs."""


class Message(Struct, frozen=True):
    """What is sent, together with the version of the protocol."""

    def encode(self) -> bytes:
        """Return the message; `decode` reads it."""
        return zlib.compress(msgspec.msgpack.encode((PROTOCOL, self), enc_hook=_plain), 1)

    @classmethod
    def decode(cls: type[M], message: bytes) -> M:
        """Read a message; raise ValueError if it is none, or one of another version."""
        try:
            content = zlib.decompress(message)
            version, own = msgspec.msgpack.decode(content, type=tuple[int, msgspec.Raw])
            if version == PROTOCOL:
                return msgspec.msgpack.decode(own, type=known(cls))
        except (zlib.error, msgspec.MsgspecError) as error:
            raise ValueError(f"no message of a cluster: {error}") from None
        raise ValueError(f"a message of version {version}, not {PROTOCOL}")


def _plain(value: np.generic | Hint) -> object:
    return str(value) if isinstance(value, Hint) else value.item()


class RunSetup(Struct, frozen=True):
    """Everything that a worker needs to know about a run, apart from its cases."""

    # Name of the run; workers keep warm programs until the run ends.
    run: str
    # Absolute path of the configuration, on all machines.
    config: str
    overrides: Overrides
    op: str
    dtypes: tuple[str, ...]
    # See `worker.facts`.
    facts: Mapping[str, str]
    # The coordinator's values of those `NANNY_VARIABLES` that are set.
    variables: Mapping[str, str]
    # `force` is true if no results are taken from caches, `alone` if cases are judged one by
    # one.
    force: bool = False
    alone: bool = False


class BatchRequest(Message, frozen=True):
    """Cases of one dtype that a worker is to judge."""

    setup: RunSetup
    # Index of the dtype in the setup.
    which: int
    # The cases; their keys are not sent.
    cases: tuple[QueuedCase, ...]
    # Values of `BatchAnswer.key` that the coordinator has already seen and checked. An answer
    # with one of these keys leaves `BatchAnswer.names` and `BatchAnswer.parts` empty.
    known: tuple[str, ...] = ()


class BatchAnswer(Message, frozen=True):
    """The outcome of a batch on a worker."""

    # The worker's name; see `worker.own_name`.
    worker: str
    verdicts: tuple[BatchVerdict, ...] = ()
    # See `fuzz.case_queue.BatchReply`.
    key: str = ""
    names: Discovered = field(default_factory=Discovered)
    parts: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    # The errors that prevented verdicts, if any.
    problems: tuple[Problem, ...] = ()
    # Facts that differ between worker and coordinator; if there are any, there are no verdicts.
    differs: tuple[str, ...] = ()
    # A traceback; empty if there is none.
    crash: str = ""
    # True if the run ended before the batch was judged.
    ended: bool = False
