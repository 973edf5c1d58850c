"""State that all handlers use: workspace, loaded programs, results, and handed-out cases."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress

from gpuemu_flow import __version__
from gpuemu_flow.config.model_ops import OpConfig
from gpuemu_flow.daemon.cases import IssuedCaseStore
from gpuemu_flow.daemon.jobs import WorkerPool
from gpuemu_flow.daemon.references import References
from gpuemu_flow.daemon.reload import Configured, Reloading
from gpuemu_flow.daemon.replies import RequestError
from gpuemu_flow.errors import FlowError, UsageError
from gpuemu_flow.fuzz.case_source import PlannedCases
from gpuemu_flow.fuzz.results_folder import results_folder
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.store.artifacts import ArtifactStore
from gpuemu_flow.store.cache import JsonStore
from gpuemu_flow.store.failures import FailureStore
from gpuemu_flow.store.results import ResultStore
from gpuemu_flow.types import Json
from gpuemu_flow.wire import PROTOCOL_VERSION
from gpuemu_flow.wire.exchange import Exchange

log = logging.getLogger("gpuemu_flow.daemon")

CLOSE_SECONDS = 2.0
RECIPES_BYTES = 64 << 20
"""Largest size of the stored recipes of handed-out cases. The least recently used are dropped."""


class Service:
    """The state of the daemon, without its sockets."""

    def __init__(self, configured: Reloading, pool: Pool, exchange: Exchange | None = None) -> None:
        self._configured = configured
        self.exchange = exchange
        workspace = configured.current().workspace
        config = workspace.config
        self._config_name = workspace.config_path.name
        self.cache = workspace.cache
        self.references = References(pool, config.execution.max_parallel_refs)
        self.results = ResultStore(
            self.cache,
            results_folder(config, self.cache),
            max_results=config.storage.max_results,
            retention_days=config.storage.retention_days,
        )
        self.artifacts = ArtifactStore(self.cache)
        self.baselines_lock = threading.Lock()
        self.failures = FailureStore(self.cache)
        self.failures_lock = threading.Lock()
        self._recipes = JsonStore(
            self.cache.folder / "wire-issued",
            self.cache.set_aside,
            size_limit=RECIPES_BYTES,
            evict=True,
        )
        self.issued = IssuedCaseStore(self._recipes)
        self.planned = PlannedCases()
        self.fuzz_threads = max(1, min(config.execution.max_parallel_refs, os.cpu_count() or 1))
        self._pruner = WorkerPool("prune", 1)
        self.stop = threading.Event()
        self._started = time.monotonic()

    def configured(self) -> Configured:
        """Return the configuration in force."""
        return self._configured.current()

    def op(self, name: str) -> tuple[Configured, OpConfig]:
        """Return an op and the configuration that it belongs to.

        Raises RequestError: ``ConfigError`` if the op is unknown and the present configuration
        files are invalid. Raises UsageError: ``unknown-op``.
        """
        configured = self._configured.current()
        try:
            return configured, configured.subjects.op(name)
        except UsageError as error:
            wrong = self._configured.error
            if wrong is not None:
                raise RequestError("ConfigError", f"{error}\n{wrong}") from None
            raise

    def prune_results(self) -> None:
        """Start to delete results above the limit, in the background."""
        if self.results.is_due:
            self._pruner.submit(self._prune)

    def _prune(self) -> None:
        try:
            self.results.prune()
        except FlowError as error:  # the next start of a daemon deletes the rest
            log.warning("old results cannot be deleted: %s", error)

    def pong(self, in_progress: int) -> dict[str, Json]:
        """Return the answer to a ping, without waiting for anything."""
        reply = {
            "type": "Pong",
            "version": __version__,
            "protocol_version": PROTOCOL_VERSION,
            "uptime_secs": int(time.monotonic() - self._started),
            "server": "gpuemu-flow",
            "in_progress": in_progress,
            "workspace": str(self._configured.root),
            "config": str(self._configured.root / self._config_name),
            "exchange": None if self.exchange is None else str(self.exchange.folder),
        }
        error = self._configured.error
        if error is not None:
            reply["config_error"] = str(error)
        return reply

    def close(self) -> None:
        """Close all stores and end all programs."""
        self.references.close()
        self._pruner.close(CLOSE_SECONDS)
        with suppress(FlowError):
            self.results.close()
            self.artifacts.close()
            self._recipes.close()
            self.cache.close()
