"""The client: a method for every call of protocol v1, and for calls that gpuemu-flow adds."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import gpuemu_flow
from gpuemu_flow.client import calls
from gpuemu_flow.client.calls import Call, Reply, elements_changed
from gpuemu_flow.client.connection import PING, Calling, Connection, OnProgress
from gpuemu_flow.client.results import (
    REQUEST_ID,
    BaselineComparison,
    CiSummary,
    ClientError,
    FuzzResults,
    MinimizeResult,
    ReproduceResult,
    TestCase,
    ValidationResult,
    about_me,
    new_id,
    raised_result,
    summed,
)
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.in_place import with_changed_inputs
from gpuemu_flow.model.types import Json

RunOp = Callable[[dict[str, Any]], Any]

BATCH = 16  # cases that client-side fuzzing asks for at a time
SUBMITTED_AT_ONCE = 5000  # cases; a daemon takes twice as many in one request
REMEMBERED_CASES = 256


class IssuedCases:
    """The newest cases of a client, by op and seed.

    Thread-safe without a lock, which could remain held after a fork: each step is one operation of
    a dict.
    """

    def __init__(self) -> None:
        self._cases: OrderedDict[tuple[str, int], TestCase] = OrderedDict()

    def remember(self, op_name: str, cases: Sequence[TestCase]) -> None:
        """Store cases, and drop the oldest cases above the limit."""
        for case in cases:
            self._cases[op_name, case.seed] = case
            if len(self._cases) > REMEMBERED_CASES:
                self._cases.popitem(last=False)

    def inputs_of(self, op_name: str, seed: int) -> dict[str, Any]:
        """Return the inputs of a case; raise ``client-unknown-case`` if it is not stored."""
        case = self._cases.get((op_name, seed))
        if case is None:
            raise ClientError(
                Problem(
                    "client-unknown-case",
                    f"this client was given no case of {op_name} with the seed {seed} lately",
                    "give the inputs too: submit_output(op, inputs, output, seed)",
                )
            )
        return case.inputs


def try_op(
    op_name: str,
    case: TestCase,
    function: RunOp,
    kwargs: Mapping[str, Json],
    client: Mapping[str, Json],
) -> tuple[Call[ValidationResult], ValidationResult | None]:
    """Run an op on copies of a case's inputs, and return the call that submits its output.

    If the op raised an exception, the call submits that, and the second value is the result to use
    in case the daemon refuses the call: not all daemons accept exceptions.
    """
    # Submit the original inputs, even if the op changes its arrays.
    given = case.fresh_inputs()
    arrays = dict(given)
    about: dict[str, Any] = {"seed": case.seed, "client": client}
    try:
        output = function(given)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        call = calls.raised(op_name, case.inputs, text, kwargs, **about)
        return call, raised_result(op_name, case.seed, text)
    output = with_changed_inputs(output, arrays, case.outputs, case.mutates)
    about["modified"] = elements_changed(case.inputs, arrays)
    return calls.validate(op_name, case.inputs, output, kwargs, dtype=None, **about), None


_STRATEGIES = {
    "binary-search-dims": "BinarySearchDims",
    "binary-search-values": "BinarySearchValues",
    "all": "All",
}


def _ci_summary(reply: Reply) -> CiSummary:
    return CiSummary.from_dict(reply.fields)


class Client(Calling):
    """A connection to the daemon of a workspace. Thread-safe; a context manager.

    Parameters
    ----------
    socket_path : str or Path, optional
        Socket of the daemon; by default ``GPUEMU_SOCKET``, else that of the workspace's daemon.
    timeout_ms : int, optional
        Time limit of a call in milliseconds. By default it is 30 s, plus 1 s for each megabyte of
        tensors that are sent; it is an hour for calls that run programs many times.
    autostart : bool
        Start a daemon for the workspace when none runs.
    workspace : str or Path, optional
        A folder of the workspace, or its configuration file; by default the current folder.

    Raises
    ------
    ClientError
        Raised by calls, not by the constructor; its `problems` say how to fix the error.
    """

    def __init__(
        self,
        socket_path: str | Path | None = None,
        timeout_ms: int | None = None,
        *,
        autostart: bool = True,
        workspace: str | Path | None = None,
    ) -> None:
        self._connection = Connection(socket_path, workspace=workspace, autostart=autostart)
        self.timeout_ms = timeout_ms
        self._cases = IssuedCases()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def socket_path(self) -> str:
        """Return the path of the daemon's socket, whether it exists or not."""
        return str(self._connection.socket_path)

    def close(self) -> None:
        """Close the connection; calls in progress fail. A later call opens it again."""
        self._connection.close()

    def ping(self) -> dict[str, Json]:
        """Return ``version``, ``protocol_version``, ``uptime_secs``, ``workspace``, ``config``."""
        return self._do(PING)

    def validate_op(
        self,
        /,
        op_name: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        output: Any = None,
        dtype: str | None = None,
        seed: int | None = None,
        **kwargs: Json,
    ) -> ValidationResult:
        """Judge an output by what the op's reference computes from the same inputs.

        Parameters
        ----------
        op_name : str
            The op's name in ``gpuemu.toml``. It may also be passed as ``op=``.
        inputs : mapping of name to tensor
            Arrays of numpy, PyTorch, JAX or TensorFlow, as they were before the op ran.
        output : tensor, or mapping of name to tensor
            The op's output, or all outputs by name.
        seed : int, optional
            Seed of a case that the daemon handed out: the call then works as `submit_output`.
        dtype : str, optional
            Convert all tensors to this dtype, such as ``bfloat16``, before they are sent.
        **kwargs
            ``atol``, ``rtol`` and ``precision`` replace the configured settings for this call.
            All other arguments are passed to the reference.
        """
        name = calls.op_name_of(op_name, kwargs)
        client = about_me()
        return self._do(
            calls.validate(
                name, inputs or {}, output, kwargs, seed=seed, dtype=dtype, client=client
            )
        )

    def submit_output(
        self,
        /,
        op_name: str | None = None,
        inputs: Any = None,
        output: Any = None,
        seed: int | None = None,
        **kwargs: Json,
    ) -> ValidationResult:
        """Judge an output for a case that the daemon handed out.

        If this client received the case, the seed may replace the inputs, as in
        ``submit_output(op, seed, output)`` or ``submit_output(op, seed=seed, output=output)``.

        Parameters
        ----------
        op_name, inputs, output, kwargs
            See `validate_op`.
        seed : int
            The case's seed.
        """
        name = calls.op_name_of(op_name, kwargs)
        if seed is None and isinstance(inputs, int):
            seed, inputs = inputs, None
        if seed is None:
            raise ClientError(Problem("client-no-seed", "submit_output needs the seed of the case"))
        if inputs is None:
            inputs = self._cases.inputs_of(name, seed)
        client = about_me()
        return self._do(
            calls.validate(name, inputs, output, kwargs, seed=seed, dtype=None, client=client)
        )

    def submit_outputs(
        self,
        /,
        op_name: str,
        cases: Iterable[TestCase | int],
        outputs: Iterable[Any],
        **kwargs: Json,
    ) -> list[ValidationResult]:
        """Judge the outputs for several cases together, which is much faster than one by one.

        All results are stored before the call returns. Up to 5,000 cases are sent in one request;
        if one of them cannot be judged at all, no result of that request is stored.

        Parameters
        ----------
        op_name : str
        cases : iterable of TestCase or int
            Cases from `get_test_batch`, or the seeds of cases that this client received.
        outputs : iterable of tensors, or of mappings of name to tensor
            One item for each case.
        **kwargs
            See `validate_op`.

        Returns
        -------
        list of ValidationResult
            One result for each case, in the order of `cases`.

        Raises
        ------
        ClientError
            ``client-outputs-count`` if there are more or fewer outputs than cases,
            ``client-not-a-case`` for an item that is neither a case nor a seed.
        """
        pairs = calls.one_per_case(op_name, cases, outputs)
        client = about_me()
        submitted = [
            (case, self._cases.inputs_of(op_name, case), output)
            if isinstance(case, int)
            else (case.seed, case.inputs, output)
            for case, output in pairs
        ]
        results: list[ValidationResult] = []
        # Also without a case: whether there is such an op, the daemon alone knows.
        for start in range(0, max(1, len(submitted)), SUBMITTED_AT_ONCE):
            some = submitted[start : start + SUBMITTED_AT_ONCE]
            request_id = new_id()
            call = calls.submit_outputs(op_name, some, kwargs, client=client, request_id=request_id)
            found = self._do_long(call)
            results += found
        return results

    def get_test_case(
        self,
        op_name: str,
        seed: int | None = None,
        *,
        op_schema: Mapping[str, Json] | None = None,
        dtypes: Sequence[str] | None = None,
    ) -> TestCase:
        """Return the first of the cases that `get_test_batch` returns for the same arguments."""
        config = calls.case_config(calls.seed_or_new(seed), dtypes, op_schema)
        case = self._do(calls.get_test_case(op_name, config, own_dtypes=dtypes is None))
        self._cases.remember(op_name, [case])
        return case

    def get_test_batch(
        self,
        op_name: str,
        count: int | Sequence[int] = 10,
        seed: int | None = None,
        op_schema: Mapping[str, Json] | None = None,
        dtypes: Sequence[str] | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> list[TestCase]:
        """Return `count` cases, all made from one seed, or one case for each of `seeds`.

        Parameters
        ----------
        op_name : str
            The op's name in ``gpuemu.toml``.
        count : int
            Number of cases.
        seed : int, optional
            Equal seeds give equal cases. By default it is taken from the clock.
        op_schema : mapping, optional
            A description of the op's inputs, used in place of the one in ``gpuemu.toml``.
        dtypes : sequence of str, optional
            Dtypes that replace the op's own.
        seeds : sequence of int, optional
            For each of these seeds, its first case is returned. May also be passed as `count`.
        """
        if not isinstance(count, int):
            seeds = count
        if seeds is not None:
            return [
                self.get_test_case(op_name, s, op_schema=op_schema, dtypes=dtypes) for s in seeds
            ]
        assert isinstance(count, int)  # noqa: S101 - for the type checker
        config = calls.case_config(calls.seed_or_new(seed), dtypes, op_schema)
        call = calls.get_test_batch(
            op_name, config, start=0, count=count, own_dtypes=dtypes is None
        )
        cases = self._do(call)
        self._cases.remember(op_name, cases)
        return cases

    def fuzz_op_client_side(
        self,
        /,
        op_name: str,
        run_op: RunOp | None = None,
        iterations: int = 100,
        seed: int | None = None,
        fail_fast: bool = False,
        op_schema: Mapping[str, Json] | None = None,
        dtypes: Sequence[str] | None = None,
        *,
        op_fn: RunOp | None = None,
        on_progress: OnProgress | None = None,
        **kwargs: Json,
    ) -> FuzzResults:
        """Run an op in this process on many cases, and have the daemon judge its outputs.

        An op that changes an input fails, whatever it returns, unless the op's `mutates` in
        ``gpuemu.toml`` names this input.

        Parameters
        ----------
        op_name, seed, op_schema, dtypes
            See `get_test_batch`.
        run_op, op_fn : callable
            The op, passed under either name. It is called with a dict of inputs by name. It returns
            the output, a dict of outputs by name, or None if it wrote all outputs to inputs that
            `mutates` names.
        iterations : int
            Number of cases. They are fetched in small batches.
        fail_fast : bool
            Stop at the first failure.
        on_progress : callable, optional
            Called with the number of finished cases and the number of all cases.
        **kwargs
            See `validate_op`.
        """
        function = run_op or op_fn
        if function is None:
            raise ClientError(Problem("client-no-op", "fuzz_op_client_side needs run_op"))
        client = about_me(function)
        master = calls.seed_or_new(seed)
        config = calls.case_config(master, dtypes, op_schema)
        done: list[ValidationResult] = []
        for start in range(0, iterations, BATCH):
            count = min(BATCH, iterations - start)
            call = calls.get_test_batch(
                op_name, config, start=start, count=count, own_dtypes=dtypes is None
            )
            for case in self._do(call):
                done.append(self._try(op_name, case, function, kwargs, client))
                if on_progress is not None:
                    on_progress(len(done), iterations)
                if fail_fast and not done[-1].passed:
                    return summed(master, done)
        return summed(master, done)

    def _try(
        self,
        op_name: str,
        case: TestCase,
        function: RunOp,
        kwargs: Mapping[str, Json],
        client: Mapping[str, Json],
    ) -> ValidationResult:
        """Run one case; report exceptions of the op as failures, and raise errors of the daemon."""
        call, instead = try_op(op_name, case, function, kwargs, client)
        try:
            return self._do(call)
        except ClientError:
            if instead is None:
                raise
            return instead

    def fuzz_op(
        self,
        op_name: str,
        *given: Any,
        seed: int | None = None,
        iterations: int = 100,
        fail_fast: bool = False,
        batch_sizes: Sequence[int] | None = None,
        seq_lengths: Sequence[int] | None = None,
        hidden_dims: Sequence[int] | None = None,
        dtypes: Sequence[str] | None = None,
        layouts: Sequence[str] | None = None,
        op_schema: Mapping[str, Json] | None = None,
        time_limit: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> FuzzResults:
        """Have the daemon run an op on many cases and judge its outputs.

        Parameters
        ----------
        op_name, seed, op_schema, dtypes
            See `get_test_batch`.
        given
            `seed` and the following by position, as in gpuemu 0.1.0. Its page has `iterations`
            first, so one or two numbers that could be either are refused.
        iterations : int
            Number of cases.
        fail_fast : bool
            Stop at the first failure.
        batch_sizes, seq_lengths, hidden_dims : sequence of int, optional
            Sizes of the inputs' three dims, as in gpuemu 0.1.0. They replace the op's own schema.
        layouts : sequence of str, optional
            Memory layouts that replace the op's own.
        time_limit : float, optional
            Time limit in seconds. When it has passed, the results so far are returned.
        on_progress : callable, optional
            Called from time to time with the number of finished cases and the number of all cases.
        """
        if given:
            options: dict[str, Any] = {
                "seed": seed, "iterations": iterations, "fail_fast": fail_fast,
                "batch_sizes": batch_sizes, "seq_lengths": seq_lengths,
                "hidden_dims": hidden_dims, "dtypes": dtypes, "layouts": layouts,
                "op_schema": op_schema, "time_limit": time_limit, "on_progress": on_progress,
            }  # fmt: skip
            return self.fuzz_op(op_name, **{**options, **calls.named_by_position(op_name, given)})
        shapes = {
            name: tuple(given or calls.FUZZ_SHAPES[name])
            for name, given in (
                ("batch_sizes", batch_sizes),
                ("seq_lengths", seq_lengths),
                ("hidden_dims", hidden_dims),
            )
        }
        config = calls.fuzz_config(
            calls.seed_or_new(seed),
            shapes,
            edge_cases=([1], [1, 1], [1, 1, 1]),
            dtypes=dtypes,
            layouts=layouts or ("contiguous", "strided", "transposed"),
            op_schema=op_schema,
        )
        request = {
            **calls.about_cases(
                "FuzzOp",
                op_name,
                config,
                own_cases=not (batch_sizes or seq_lengths or hidden_dims or layouts),
                own_dtypes=dtypes is None,
            ),
            "iterations": iterations,
            "fail_fast": fail_fast,
            "request_id": new_id(),
        }
        if time_limit is not None:
            request["time_limit_s"] = max(1, round(time_limit))
        call = Call(request, "FuzzResults", lambda reply: FuzzResults.from_dict(reply.fields))
        return self._do_long(call, on_progress)

    def reproduce(self, seed: int | str, *, rerun: bool = False) -> ReproduceResult:
        """Return a failure, by seed or id, with its inputs; if `rerun`, first run the op again."""

        def read(reply: Reply) -> ReproduceResult:
            current = reply.fields.get("current")
            return ReproduceResult(
                calls.the_result(reply),
                reply.tensors(reply.fields["inputs"], "inputs"),
                reply.fields.get("still_fails"),
                None if current is None else ValidationResult.from_dict(current),
            )

        request = {"type": "Reproduce", **calls.failure_fields(seed), "exchange": True}
        request |= {"rerun": True} if rerun else {}
        return self._do(Call(request, "ReproduceResult", read))

    def minimize(
        self,
        seed: int | str,
        strategy: str | None = None,
        max_iters: int = 100,
        *,
        run_op: RunOp | None = None,
    ) -> MinimizeResult:
        """Search for the smallest case that fails in the same way as a recorded failure.

        Parameters
        ----------
        seed : int or str
            The failure's seed, or its id.
        strategy : str, optional
            ``binary-search-dims`` (the default), ``binary-search-values`` or ``all``.
        max_iters : int
            Largest number of runs of the op.
        run_op : callable, optional
            An op that only this process can run, as in `fuzz_op_client_side`.
        """
        wanted = strategy or "binary-search-dims"
        if run_op is not None:
            return self._minimize_own(seed, run_op, wanted, max_iters)
        request = {
            "type": "Minimize",
            **calls.failure_fields(seed),
            "strategy": _STRATEGIES.get(wanted, wanted),
            "max_iters": max_iters,
            "request_id": new_id(),
        }
        return self._do_long(
            Call(request, "MinimizeResult", lambda reply: MinimizeResult.from_dict(reply.fields))
        )

    def _minimize_own(
        self, seed: int | str, run_op: RunOp, strategy: str, max_iters: int
    ) -> MinimizeResult:
        minimise: Any = gpuemu_flow.__getattr__("minimise_own")  # loads what judges here
        folder = Path(self.ping()["workspace"])
        found = minimise(folder, seed, run_op, strategy=strategy, budget=max_iters)
        smallest = found.minimized or found.original
        return MinimizeResult(
            original_seed=found.original.seed,
            minimized_seed=smallest.seed,
            minimized_shape=list(smallest.shape),
            result=self.reproduce(smallest.id).result,
            still_fails=found.minimized is not None,
            steps=found.steps,
            one_minimal=found.one_minimal,
        )

    def get_result(self, seed: int) -> ValidationResult | None:
        """Return the newest result of the case with this seed; None if there is none."""
        try:
            return self._do(
                Call({"type": "GetResult", "seed": seed}, "ValidationResult", calls.the_result)
            )
        except ClientError as error:
            if error.code == "NotFound":
                return None
            raise

    def list_results(self, limit: int = 100) -> list[ValidationResult]:
        """Return the stored results, newest first, at most `limit`."""
        return self._do(Call({"type": "ListResults", "limit": limit}, "Results", calls.the_results))

    def list_failures(self, limit: int = 20) -> list[ValidationResult]:
        """Return the recorded failures, newest first, at most `limit`."""
        return self._do(
            Call({"type": "ListFailures", "limit": limit}, "Results", calls.the_results)
        )

    def store_baseline(self, tag: str) -> None:
        """Store the newest submitted results as the baseline `tag`."""
        self._do(Call({"type": "StoreBaseline", "tag": tag}, "Ok", calls.nothing))

    def compare_baseline(self, tag: str) -> BaselineComparison:
        """Compare the newest submitted results with the baseline `tag`."""
        return self._do(
            Call(
                {"type": "CompareBaseline", "tag": tag},
                "BaselineComparison",
                lambda reply: BaselineComparison.from_dict(reply.fields),
            )
        )

    def lint_kernel(
        self, ptx_content: str, kernel_name: str | None = None
    ) -> list[dict[str, Json]]:
        """Lint the kernels of a PTX text, or only `kernel_name`; return one dict per kernel."""
        request = {"type": "LintKernel", "kernel_name": kernel_name, "ptx_content": ptx_content}
        return self._do(Call(request, "LintResults", lambda reply: list(reply.fields["results"])))

    def store_artifact(self, kernel_name: str, metrics: Mapping[str, Json]) -> None:
        """Store a kernel's metrics."""
        request = {"type": "StoreArtifact", "kernel_name": kernel_name, "metrics": dict(metrics)}
        self._do(Call(request, "Ok", calls.nothing))

    def get_artifact(self, kernel_name: str) -> dict[str, Json]:
        """Return the newest metrics of a kernel."""
        request = {"type": "GetArtifact", "kernel_name": kernel_name}
        return self._do(Call(request, "ArtifactMetricsResult", calls.the_fields))

    def list_artifacts(self) -> list[dict[str, Json]]:
        """Return the newest metrics of every kernel."""
        return self._do(
            Call(
                {"type": "ListArtifacts"},
                "ArtifactList",
                lambda reply: list(reply.fields["artifacts"]),
            )
        )

    def store_artifact_baseline(self, tag: str) -> None:
        """Store the newest metrics of all kernels as the baseline `tag`."""
        self._do(Call({"type": "StoreArtifactBaseline", "tag": tag}, "Ok", calls.nothing))

    def diff_artifact_baseline(self, tag: str) -> dict[str, Json]:
        """Compare the newest metrics of all kernels with the baseline `tag`."""
        return self._do(
            Call({"type": "DiffArtifactBaseline", "tag": tag}, "ArtifactDiffs", calls.the_fields)
        )

    def run_ci(
        self, quick: bool = False, baseline: str | None = None, parallel_jobs: int = 0
    ) -> CiSummary:
        """Check the whole workspace as the command ``gpuemu-flow ci`` does."""
        options = {"quick": quick, "parallel_jobs": parallel_jobs, "baseline": baseline}
        request = {"type": "RunCi", **options, "request_id": new_id()}
        return self._do_long(Call(request, "CiRunComplete", _ci_summary))

    def get_ci_summary(self) -> CiSummary:
        """Return the result of the last `run_ci`."""
        return self._do(Call({"type": "GetCiSummary"}, "CiRunComplete", _ci_summary))

    def shutdown(self) -> None:
        """Shut the daemon down, for all of its clients."""
        self._do(Call({"type": "Shutdown"}, "Ok", calls.nothing))


GpuemuClient = Client
"""The client under the name that the internals page documents."""


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
