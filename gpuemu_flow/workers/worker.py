"""A worker process: load one program, and run the cases that the coordinator requests.

The process is forked from the fork server, or it is a fresh interpreter, started by
``python -m gpuemu_flow.workers.worker``.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.model.decoding import convert, known, plain
from gpuemu_flow.model.let_through import keep_user_cache
from gpuemu_flow.model.types import Failure, Json
from gpuemu_flow.workers import jobs, limits, script
from gpuemu_flow.workers.api import (
    EMULATED,
    MAX_OUTPUTS,
    OpError,
    Outcome,
    Program,
    RunError,
    Slot,
    end_of,
)
from gpuemu_flow.workers.arena import Arena
from gpuemu_flow.workers.arguments import begin_call
from gpuemu_flow.workers.callable import CallableRunner
from gpuemu_flow.workers.channel import ChannelClosedError, FrameReader, Watch, send
from gpuemu_flow.workers.diagnose import CUT_OFF, explain, print_traceback
from gpuemu_flow.workers.imports import enter_workspace, set_source_transform
from gpuemu_flow.workers.limits import limit_file_size, output_limit
from gpuemu_flow.workers.notices import Observer
from gpuemu_flow.workers.script import CommandRunner, StandardStreams, keep_high
from gpuemu_flow.workers.tensors import MAX_OUTPUT_BYTES, demand_bools

_OWN_RUNNERS = {
    "torch": ("torch_runner", "TorchRunner"),
    "jax": ("jax_runner", "JaxRunner"),
    "triton": ("triton_runner", "TritonRunner"),
    **dict.fromkeys(EMULATED, ("emulated", "EmulatedRunner")),
    "cuda-host": ("gpu", "HostFunctionRunner"),
}
_WITH_GPU = {"torch": ("gpu", "ExtensionRunner"), "callable": ("gpu", "HostCallable")}
"""Module and class of each runner that only some programs need, by kind of program."""
_SHIM = Path(__file__).with_name("shim.py")


class Descriptors(Struct, frozen=True):
    """A worker's file descriptors: its socket, status page, standard error, records and notices."""

    channel: int
    status: int
    stderr: int
    report: int
    notices: int = -1  # socket over which the fork server gets the tracing descriptor

    def numbers(self) -> tuple[int, ...]:
        """Return all descriptors, in the constructor's order."""
        return self.channel, self.status, self.stderr, self.report, self.notices


def _runner(program: Program, streams: StandardStreams) -> Runner:
    """Return the runner for a program's kind; raise OpError or the program's own exception."""
    if program.kind == "command":
        return CommandRunner(program, streams, [program.path, *program.argv])
    own_runners = {**_OWN_RUNNERS, **(_WITH_GPU if program.gpu_folder else {})}
    if program.kind in own_runners:
        module, name = own_runners[program.kind]
        own = getattr(importlib.import_module(f"gpuemu_flow.workers.{module}"), name)
        made: Runner = own(program)
        return made
    function = program.function
    if program.kind == "script":
        function = script.function_in_script(program)
    if program.python:
        return CommandRunner(program, streams, _foreign_command(program, function))
    if function:
        return CallableRunner(replace(program, function=function))
    return script.ScriptRunner(program, streams)


def _foreign_command(program: Program, function: str) -> list[str]:
    """Build the command that runs a program in another interpreter, which may lack this package."""
    inherited = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (program.root, inherited)))
    if not function:
        return [program.python, program.path, *program.argv]
    os.environ["GPUEMU_KWARGS"] = json.dumps(dict(program.kwargs))
    outputs = ",".join(program.output_names)
    return [program.python, str(_SHIM), program.path, program.module, function, outputs]


def _enter(program: Program) -> None:
    """Set this process up for the workspace, and for the emulated GPU if the program uses it."""
    enter_workspace(program)
    if program.gpu_folder:  # before limits: its memory is large, but empty
        importlib.import_module("gpuemu_flow.workers.gpu").start_gpu(program)


class Worker:
    """Serves one session until the coordinator closes its end of the socket."""

    def __init__(self, given: Descriptors) -> None:
        channel = keep_high(given.channel)
        self._status = keep_high(given.status)
        self._stderr = keep_high(given.stderr)
        self._sock = socket.socket(fileno=channel)
        self._reader = FrameReader(self._sock, max_fds=2)
        self._streams = StandardStreams(self._stderr)
        self._streams.quiet()
        self._streams.watch()
        self._watch = Watch(self._status)
        self._program: Program | None = None
        self._executor: CaseExecutor | None = None
        self._runner: Runner | None = None
        self._arena: Arena | None = None
        self._peer: Arena | None = None
        self._service: jobs.WorkerService | None = None
        self._service_context: jobs.ServiceContext | None = None
        self._observer = Observer(keep_high(given.report), keep_high(given.notices))
        self._pid = os.getpid()

    def _next(self) -> dict[str, Json]:
        message = self._reader.read()
        if message is None:
            raise ChannelClosedError("the socket does not block")
        return message

    def serve(self) -> NoReturn:
        """Answer messages; end the process at the end of the session."""
        code = 0
        try:
            while True:
                answer = self._answer(self._next())
                if os.getpid() != self._pid:
                    os._exit(0)  # a fork that the program made came back here too
                try:
                    send(self._sock, answer)
                except ChannelClosedError:
                    code = CUT_OFF
                    break
                if self._service is not None and self._service_context is not None:
                    self._service.go_on(self._service_context)
        except ChannelClosedError:
            pass
        except BaseException as error:  # the program broke our own machinery
            print_traceback(error)
            code = 1
        finally:
            os._exit(code)

    def _answer(self, message: Mapping[str, Json]) -> dict[str, Json]:
        answers = {
            "load": self._load,
            "calls": self._calls,
            "serve": self._serve,
            "job": self._job,
        }
        return answers[message["type"]](message)

    @property
    def _ready(self) -> CaseExecutor:
        assert self._executor is not None  # noqa: S101 - the coordinator loads first
        return self._executor

    @property
    def _shared(self) -> Arena:
        assert self._arena is not None  # noqa: S101 - comes with the first call
        return self._arena

    def _failed(self, error: BaseException, *, doing: str = "") -> RunError:
        assert self._program is not None  # noqa: S101 - set before anything can fail
        if not isinstance(error, OpError):
            print_traceback(error, self._program.root)
        hint = self._executor.hint if self._executor else ""
        explained = explain(error, self._program, doing=doing, hint=hint)
        stdout, stderr = self._streams.stdout_tail(), self._streams.stderr_tail()
        return replace(explained, stdout_tail=stdout, stderr_tail=stderr)

    def _load(self, message: Mapping[str, Json]) -> dict[str, Json]:
        program = self._program = convert(message["program"], Program)
        try:
            _enter(program)
            limits.limit_file_size(limits.MIN_OUTPUT_LIMIT)
            if program.shadow:
                set_source_transform(jobs.shadow_bytes)
            extra = program.memory_limit
            limits.limit_memory(None if extra is None else extra + limits.LOAD_ALLOWANCE)
            self._watch.preparing()
            self._observer.begin()
            runner = _runner(program, self._streams)
            limits.limit_memory(extra)
            limits.limit_file_size(None)
            self._runner = runner
            self._executor = CaseExecutor(program, runner, self._watch)
        except BaseException as error:  # modules may raise anything
            return {
                "type": "loaded",
                "error": msgspec.to_builtins(self._failed(error, doing="loading")),
            }
        return {"type": "loaded", "error": None}

    def _job(self, message: Mapping[str, Json]) -> dict[str, Json]:
        """Run one of this package's functions, which gets an `Evaluator` of the program."""
        program = self._program = convert(message["program"], Program)
        evaluator = jobs.Evaluator(
            program, lambda p: _runner(p, self._streams), self._watch, self._runner
        )
        try:
            if self._runner is None:
                _enter(program)
                self._observer.begin()
            limits.limit_file_size(limits.MIN_OUTPUT_LIMIT)
            limits.lift_memory_limit()
            np.random.seed(0)  # as in a worker that has run no case
            result = jobs.run_job(message["target"], message["payload"], evaluator)
        except BaseException as error:
            failed = msgspec.to_builtins(self._failed(error, doing="evaluating"))
            return {"type": "job", "serial": message["serial"], "error": failed}
        return {"type": "job", "serial": message["serial"], "error": None, "result": result}

    def _take_arenas(self, message: Mapping[str, Json]) -> None:
        """Keep the shared memory whose descriptors came with a message."""
        fds, self._reader.fds = self._reader.fds, []
        for name, fd in zip(("own", "peer") if "own" in message else ("peer",), fds, strict=False):
            arena = Arena(keep_high(fd))
            if name == "own":
                self._arena = arena
            else:
                if self._peer is not None:
                    self._peer.close()
                self._peer = arena

    def _serve(self, message: Mapping[str, Json]) -> dict[str, Json]:
        """Pass a request to its service, which the first request of a session makes."""
        assert self._program is not None  # noqa: S101
        serial, index = int(message["serial"]), int(message["index"])
        self._take_arenas(message)
        try:
            if self._service_context is None or self._service_context.peer is not self._peer:
                self._service_context = self._make_service_context(self._program, self._shared)
            if "setup" in message or self._service is None:
                self._service = jobs.make_service(message["target"], message["setup"])
            result = self._service.answer(message["method"], message, self._service_context)
        except BaseException as error:  # programs may raise anything
            return _reply(serial, Outcome(index, ok=False, error=self._failed(error)))
        return {"type": "served", "serial": serial, "result": result}

    def _make_service_context(self, program: Program, own: Arena) -> jobs.ServiceContext:
        evaluate = (
            self._service_context.evaluate
            if self._service_context is not None
            else jobs.Evaluator(
                program, lambda p: _runner(p, self._streams), self._watch, self._runner
            )
        )
        return jobs.ServiceContext(self._run, evaluate, own, self._peer)

    def _run(self, arrays: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
        """Return the program's outputs; see `jobs.ServiceContext`."""
        self._streams.forget()
        return self._ready.call(arrays, seed).outputs

    def _begin(self, message: Mapping[str, Json]) -> int:
        self._streams.forget()
        return int(message["serial"])

    def _calls(self, message: Mapping[str, Json]) -> dict[str, Json]:
        """Make several calls, but stop at the first that fails; return the results before it.

        A call that may fail has no result then.
        """
        serial = self._begin(message)
        self._take_arenas(message)
        calls: list[_Call] = []
        done: list[dict[str, Json] | None] = []
        position = int(message["reserved"])
        error = None
        try:
            calls = self._expected(message)
        except BaseException as raised:  # programs may raise anything
            error = self._failed(raised)
        for number, (slots, dtype, call) in enumerate(calls if error is None else ()):
            self._watch.place = number
            self._streams.forget()
            try:
                if "before" in call:
                    self._shared.move(*call["before"])
                begin_call(dtype)
                written, called = self._call_on(slots, call, position)
                if "after" in call:
                    self._shared.move(*call["after"])
            except BaseException as raised:  # programs may raise anything
                if call.get("may_fail"):
                    done.append(None)
                    continue
                error = self._failed(raised)
                break
            done.append(called)
            position = max(position, end_of(written))
        failed = msgspec.to_builtins(error)
        return {"type": "called-all", "serial": serial, "items": done, "error": failed}

    def _expected(self, message: Mapping[str, Json]) -> list[_Call]:
        """Return the calls of a message; announce them to a runner that can make them together."""
        self._watch.place = 0
        calls: list[_Call] = []
        for item in message["items"]:
            slots = convert(item["slots"], dict[str, Slot])
            calls += [(slots, item["float"], call) for call in item["calls"]]
        expect = getattr(self._runner, "expect", None)
        if expect is not None:
            self._watch.preparing()
            expect([self._shared.views(slots) for slots, _, _ in calls])
        return calls

    def _call_on(
        self, slots: Mapping[str, Slot], call: Mapping[str, Json], start: int
    ) -> tuple[dict[str, Slot], dict[str, Json]]:
        """Make one call; nothing of it is in memory when the next one begins, but its answer."""
        arrays = self._shared.views(slots)
        fill = int(call.get("fill", limits.NO_FILL))
        executed = self._ready.call(arrays, int(call["seed"]), fill)
        written = self._shared.write(executed.outputs, start=start)
        return written, _called(written, executed)


_Call = tuple[dict[str, Slot], str, dict[str, Json]]
"""Where the inputs of a call are, the float dtype of its case, and what the message says of it."""


def _called(written: Mapping[str, Slot], executed: Executed) -> dict[str, Json]:
    """Return the answer to a call whose outputs are in shared memory."""
    return {
        "printed": executed.printed,
        "slots": msgspec.to_builtins(written),
        "violations": plain(executed.violations),
        "seconds": executed.seconds,
    }


def _reply(serial: int, outcome: Outcome) -> dict[str, Json]:
    return {"type": "outcome", "serial": serial, "outcome": outcome.to_json()}


def become_worker(given: Descriptors, *, parent: int) -> NoReturn:
    """Turn a process that was just forked or started into a worker. This does not return."""
    limits.die_with_parent(parent)
    limits.no_core_dumps()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    limits.close_all_but({0, 1, 2, *given.numbers()})
    gc.enable()
    script.own_process()
    limits.tune()
    Worker(given).serve()


def main() -> NoReturn:
    """Start a worker in a fresh interpreter.

    Arguments are the numbers of its descriptors, the parent's process id and the user's cache
    folder.
    """
    *numbers, parent = (int(text) for text in sys.argv[1:7])
    keep_user_cache(sys.argv[7])
    np.random.seed(0)  # loads numpy.random, which is lazy, before a program runs
    become_worker(Descriptors(*numbers), parent=parent)


for _each in (Program, dict[str, Slot]):
    known(_each)  # takes milliseconds: once here, before processes are forked


# Run one case: make inputs, call and watch the program, collect outputs.


Arrays = Mapping[str, np.ndarray]


class Runner(Protocol):
    """Interface of the runners, each of which calls one kind of program."""

    @property
    def hint(self) -> str:
        """Return a hint that may explain an exception of the program, or an empty string."""

    def call(self, inputs: Arrays, watch: Watch) -> dict[str, np.ndarray]:
        """Return the outputs by name; raise OpError, or whatever the program raises."""

    def violations(self) -> Sequence[Failure]:
        """Return the violations that the runner itself saw in the latest call."""


class Executed(Struct, frozen=True):
    """Outputs of a call, with the runner's findings, the duration, and printed text."""

    outputs: dict[str, np.ndarray]
    violations: tuple[Failure, ...]
    seconds: float
    printed: str = ""


def _reseed(seed: int) -> None:
    """Seed the global generators, so that results do not depend on the order of cases."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # the legacy generator is the point


def _folder_now() -> str | None:
    """Return the current folder; None if it no longer exists."""
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return None


class _Surroundings:
    """Process-wide settings that a program may change, restored after each call."""

    def __init__(self) -> None:
        self._cwd = os.getcwd()  # noqa: PTH109
        self._path = list(sys.path)
        self._errors = np.geterr()
        self._recursion = sys.getrecursionlimit()

    def put_back(self) -> None:
        if _folder_now() != self._cwd:  # this costs a tenth of `chdir`
            os.chdir(self._cwd)
        sys.path[:] = self._path
        if np.geterr() != self._errors:
            np.seterr(**self._errors)
        sys.setrecursionlimit(self._recursion)


class CaseExecutor:
    """Runs cases of one program in this process."""

    def __init__(self, program: Program, runner: Runner, watch: Watch) -> None:
        self._program = program
        self._runner = runner
        self._watch = watch
        self._surroundings = _Surroundings()
        self._pid = os.getpid()

    @property
    def hint(self) -> str:
        """Return the runner's hint; see `Runner.hint`."""
        return self._runner.hint

    def _call(self, arrays: Arrays, seed: int) -> dict[str, np.ndarray]:
        _reseed(seed)
        limit_file_size(output_limit(sum(array.nbytes for array in arrays.values())))
        try:
            outputs = self._runner.call(arrays, self._watch)
        finally:
            if os.getpid() != self._pid:
                os._exit(0)  # a fork that the program made came back here too
            limit_file_size(None)
            self._surroundings.put_back()
        _check_outputs(outputs)
        return outputs

    def call(self, arrays: Arrays, seed: int, fill: int = limits.NO_FILL) -> Executed:
        """Run the program on inputs in memory. Raises OpError: The outputs are unusable. Raises
        BaseException: Whatever the program raises."""
        filled = fill != limits.NO_FILL and limits.perturb(fill)
        try:
            outputs = self._call(arrays, seed)
        finally:
            if filled:
                limits.perturb(limits.NO_FILL)
        violations = tuple(self._runner.violations())
        printed = getattr(self._runner, "printed", "")
        return Executed(outputs, violations, self._watch.seconds, printed)


def _check_outputs(outputs: Arrays) -> None:
    if len(outputs) > MAX_OUTPUTS:
        raise OpError(RunError("op-output-junk", f"{len(outputs)} outputs are over {MAX_OUTPUTS}"))
    demand_bools(outputs)
    total = sum(array.nbytes for array in outputs.values())
    if total > MAX_OUTPUT_BYTES:
        raise OpError(RunError("op-output-shape", f"{total} bytes of outputs are over the limit"))


if __name__ == "__main__":
    main()
