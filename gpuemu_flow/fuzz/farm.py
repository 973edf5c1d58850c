"""Interface between a fuzz run and the machines that judge its cases, in batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Protocol

from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.fuzz.case_queue import QueuedCase
from gpuemu_flow.fuzz.subjects import OpSubject
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.discovered import Discovered
from gpuemu_flow.types import Case, CheckResult


@dataclass(frozen=True)
class CaseBatch:
    """Cases of one op and dtype that a worker judges one after the other."""

    which: int
    cases: tuple[QueuedCase, ...]

    def halves(self) -> tuple[CaseBatch, CaseBatch] | None:
        """Divide the cases into two batches; return None if there is only one case."""
        middle = len(self.cases) // 2
        if not middle:
            return None
        return CaseBatch(self.which, self.cases[:middle]), CaseBatch(
            self.which, self.cases[middle:]
        )


@dataclass(frozen=True)
class RemoteVerdict:
    """A worker's verdict on one case."""

    result: CheckResult
    made: Case | None = None


@dataclass(frozen=True)
class BatchReply:
    """A worker's reply to a batch."""

    worker: str
    verdicts: tuple[RemoteVerdict, ...]
    key: str
    names: Discovered = field(default_factory=Discovered)
    parts: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class Farm(Protocol):
    """Workers that judge the cases of one op. Not thread-safe."""

    @property
    def capacity(self) -> int:
        """Return the number of batches that keep all workers busy."""

    @property
    def outstanding(self) -> int:
        """Return the number of batches without a reply."""

    def submit(self, batch: CaseBatch, known: Collection[str]) -> None:
        """Send a batch of cases."""

    def replies(self, timeout: float) -> list[tuple[CaseBatch, BatchReply | None]]:
        """Wait at most `timeout` seconds for replies, and return those that have arrived.

        A batch whose worker died is divided and sent again. The reply is None for a batch of one
        case that killed every worker that received it.

        Raises FlowError: ``cluster-lost``, ``cluster-no-workers``, ``cluster-worker-differs`` and
        other errors that end the run.
        """


class Cluster(Protocol):
    """Machines that judge cases."""

    def open_farm(
        self, workspace: Workspace, op: str, subjects: Sequence[OpSubject], *, alone: bool
    ) -> AbstractContextManager[Farm]:
        """Return a context in which workers judge the cases of one op."""
