"""The client for asyncio: the methods of `Client` as coroutines."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from gpuemu_flow.client.api import Client
from gpuemu_flow.client.errors import ClientError
from gpuemu_flow.client.identity import REQUEST_ID, new_id

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 64
"""Largest number of calls at a time. Each call waits in a thread for its answer."""


def _awaited(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Turn a method of `Client` into a coroutine function with its signature and documentation."""

    def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._run(functools.partial(method, self._client, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


class AsyncClient:
    """A connection to the daemon of a workspace, for asyncio; an asynchronous context manager.

    Parameters and methods are those of `Client`, but the methods are awaited. If a long call is
    cancelled, its work in the daemon ends, too. Callables (`run_op`, `on_progress`) are called in
    other threads.
    """

    def __init__(
        self,
        socket_path: str | Path | None = None,
        timeout_ms: int | None = None,
        *,
        autostart: bool = True,
        workspace: str | Path | None = None,
    ) -> None:
        self._client = Client(socket_path, timeout_ms, autostart=autostart, workspace=workspace)
        self._make_threads()

    def _make_threads(self) -> None:
        self._process = os.getpid()
        self._threads = ThreadPoolExecutor(THREADS, "gpuemu-client")

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls in progress fail."""
        self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._process != os.getpid():  # a fork leaves the threads behind
            self._make_threads()
        request_id = new_id()
        context = contextvars.copy_context()
        context.run(REQUEST_ID.set, request_id)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, context.run, work)
        except asyncio.CancelledError:
            with suppress(ClientError, RuntimeError):
                self._threads.submit(self._client.give_up, request_id)
            raise

    ping = _awaited(Client.ping)
    validate_op = _awaited(Client.validate_op)
    submit_output = _awaited(Client.submit_output)
    submit_outputs = _awaited(Client.submit_outputs)
    get_test_case = _awaited(Client.get_test_case)
    get_test_batch = _awaited(Client.get_test_batch)
    fuzz_op_client_side = _awaited(Client.fuzz_op_client_side)
    fuzz_op = _awaited(Client.fuzz_op)
    reproduce = _awaited(Client.reproduce)
    minimize = _awaited(Client.minimize)
    get_result = _awaited(Client.get_result)
    list_results = _awaited(Client.list_results)
    list_failures = _awaited(Client.list_failures)
    store_baseline = _awaited(Client.store_baseline)
    compare_baseline = _awaited(Client.compare_baseline)
    lint_kernel = _awaited(Client.lint_kernel)
    store_artifact = _awaited(Client.store_artifact)
    get_artifact = _awaited(Client.get_artifact)
    list_artifacts = _awaited(Client.list_artifacts)
    store_artifact_baseline = _awaited(Client.store_artifact_baseline)
    diff_artifact_baseline = _awaited(Client.diff_artifact_baseline)
    run_ci = _awaited(Client.run_ci)
    get_ci_summary = _awaited(Client.get_ci_summary)
    shutdown = _awaited(Client.shutdown)
