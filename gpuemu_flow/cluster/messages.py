"""Messages between the coordinator and a cluster's workers: packed JSON without pickle."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import field

from gpuemu_flow.errors import Problem
from gpuemu_flow.fuzz.case_queue import QueuedCase
from gpuemu_flow.fuzz.remote_run import RemoteVerdict
from gpuemu_flow.graph.overrides import Overrides
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.discovered import Discovered
from gpuemu_flow.types import Case, CheckResult, Json

PROTOCOL = 1
NANNY_VARIABLES = (
    "MALLOC_TRIM_THRESHOLD_", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
)  # fmt: skip
"""Variables that dask sets in its workers. Some of them change the results of programs."""


@dataclass(frozen=True)
class RunSetup:
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

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON; `from_json` is its inverse."""
        return {
            **vars(self),
            "overrides": self.overrides.to_json(),
            "dtypes": list(self.dtypes),
            "facts": dict(self.facts),
            "variables": dict(self.variables),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> RunSetup:
        """Rebuild from the result of `to_json`."""
        overrides = Overrides.from_json(data["overrides"])
        return cls(**{**data, "overrides": overrides, "dtypes": tuple(data["dtypes"])})


@dataclass(frozen=True)
class BatchRequest:
    """Cases of one dtype that a worker is to judge."""

    setup: RunSetup
    # Index of the dtype in the setup.
    which: int
    # The cases; their keys are not sent.
    cases: tuple[QueuedCase, ...]
    # Values of `BatchAnswer.key` that the coordinator has already seen and checked. An answer
    # with one of these keys leaves `BatchAnswer.names` and `BatchAnswer.parts` empty.
    known: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the message; `decode` reads it."""
        return pack(
            {
                "setup": self.setup.to_json(),
                "which": self.which,
                "cases": [[queued.number, queued.case.to_json()] for queued in self.cases],
                "known": list(self.known),
            }
        )

    @classmethod
    def decode(cls, message: bytes) -> BatchRequest:
        """Read a message.

        Raises ValueError: The message is of another version.
        """
        data = unpack(message)
        queued = tuple(QueuedCase(number, Case.from_json(case)) for number, case in data["cases"])
        return cls(RunSetup.from_json(data["setup"]), data["which"], queued, tuple(data["known"]))


@dataclass(frozen=True)
class BatchAnswer:
    """The outcome of a batch on a worker."""

    # The worker's name; see `worker.own_name`.
    worker: str
    verdicts: tuple[RemoteVerdict, ...] = ()
    # See `fuzz.remote_run.BatchReply`.
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

    def encode(self) -> bytes:
        """Return the message; `decode` reads it."""
        return pack(
            {
                **vars(self),
                "verdicts": [
                    [v.result.to_json(), None if v.made is None else v.made.to_json()]
                    for v in self.verdicts
                ],
                "names": self.names.to_json(),
                "parts": dict(self.parts),
                "problems": [dict(vars(problem)) for problem in self.problems],
                "differs": list(self.differs),
            }
        )

    @classmethod
    def decode(cls, message: bytes) -> BatchAnswer:
        """Read a message.

        Raises ValueError: The message is of another version.
        """
        data = unpack(message)
        verdicts = tuple(
            RemoteVerdict(
                CheckResult.from_json(result), None if made is None else Case.from_json(made)
            )
            for result, made in data["verdicts"]
        )
        return cls(
            **{
                **data,
                "verdicts": verdicts,
                "names": Discovered.from_json(data["names"]),
                "problems": tuple(Problem(**problem) for problem in data["problems"]),
                "differs": tuple(data["differs"]),
            }
        )


def pack(content: Mapping[str, Json]) -> bytes:
    """Encode `content`, together with the version of the protocol, as a message."""
    text = json.dumps({**content, "protocol": PROTOCOL}, separators=(",", ":"))
    return zlib.compress(text.encode(), 1)


def unpack(message: bytes) -> dict[str, Json]:
    """Read what `pack` returned.

    Raises ValueError: The bytes are not a message, or are a message of another version.
    """
    try:
        data = json.loads(zlib.decompress(message))
        found = data.pop("protocol")
    except (zlib.error, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"no message of a cluster: {error}") from None
    if found != PROTOCOL:
        raise ValueError(f"a message of version {found}, not {PROTOCOL}")
    return dict(data)
