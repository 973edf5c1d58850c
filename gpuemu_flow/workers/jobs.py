"""Run, in the reference's worker, functions of this package that need the reference.

A comparison under the ``auto`` tolerance evaluates the reference on perturbed inputs, and once more
with its float64 replaced by float32. Both happen in the worker process that compares. So tensors
need not be sent, and a reference that crashes or hangs ends only that worker.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import compress
from operator import is_not
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from gpuemu_flow.model.errors import Problem, RunnerError
from gpuemu_flow.model.installed import is_installed
from gpuemu_flow.model.types import Json
from gpuemu_flow.numerics.operand import Rounding, rounding_to
from gpuemu_flow.numerics.shadow import shadow_source
from gpuemu_flow.workers import imports
from gpuemu_flow.workers.api import OpError, Program
from gpuemu_flow.workers.arena import Arena
from gpuemu_flow.workers.arguments import begin_call
from gpuemu_flow.workers.channel import Watch

Arrays = Mapping[str, np.ndarray]
MakeRunner = Callable[[Program], Any]


PLAIN, SHADOW = "plain", "shadow"
_BUILT_IN = frozenset(sys.builtin_module_names)


@lru_cache(maxsize=16)
def shadow_bytes(source: bytes, wrap: str = "") -> bytes:
    """Return a module's source with float64 replaced by float32; unchanged if it has no float64.

    With `wrap`, the new source also rounds values as it computes; see
    `numerics.shadow.shadow_source`.
    """
    try:
        changed = shadow_source(source.decode(), wrap)
    except (UnicodeDecodeError, SyntaxError, ValueError, RecursionError):
        return source
    return source if changed is None else changed.encode()


_never_taken: dict[str, types.ModuleType] = {}
"""Modules that were loaded at `prepare` and belong to no workspace."""


def prepare() -> None:
    """Record that the modules loaded so far belong to no workspace.

    Processes forked from this one inherit the record. Call it only in a process that never runs a
    program's code.
    """
    for name, module in sys.modules.items():
        path = getattr(module, "__file__", None) or ""
        own = name.partition(".")[0] == __package__.partition(".")[0]
        if name != "__main__" and (own or is_installed(path) or name in _BUILT_IN):
            _never_taken[name] = module


class Evaluator:
    """Evaluates the reference, either as written or as its float32 shadow.

    The shadow is the same source with float64 replaced by float32.
    """

    def __init__(
        self, program: Program, make_runner: MakeRunner, watch: Watch, loaded: Any = None
    ) -> None:
        self.program = program
        self._make_runner = make_runner
        self._watch = watch
        self._at_home = loaded is not None
        self._runners: dict[str, Any] = {PLAIN: loaded} if loaded is not None else {}
        self._modules: dict[str, dict[str, types.ModuleType]] = {}
        self._foreign: dict[str, types.ModuleType] = {}
        self.memo: dict[str, Any] = {}  # what services found out about the program

    @property
    def has_source(self) -> bool:
        """Tell whether the program is Python source from which a shadow can be made."""
        return self.program.kind != "command" and not self.program.python

    def __call__(
        self, inputs: Arrays, *, shadow: bool = False, rounding: Rounding | None = None
    ) -> dict[str, np.ndarray]:
        """Evaluate the reference, or its shadow with optional rounding, on `inputs`.

        Raises RunnerError: ``reference-failed``, with the exception that the reference raised.
        """
        version = SHADOW if shadow else PLAIN
        if rounding is not None:
            version = "steps" if rounding.steps else "operands"
        begin_call("float32" if shadow else "float64")
        with self._world(version):
            try:
                if version not in self._runners:
                    self._runners[version] = self._make_runner(self.program)
                # Keep the memory order, since some evaluations exist to test another one.
                copies = {name: array.copy(order="K") for name, array in inputs.items()}
                with np.errstate(all="ignore"), rounding_to(rounding):
                    outputs: dict[str, np.ndarray] = self._runners[version].call(
                        copies, self._watch
                    )
            except OpError as failed:
                raise RunnerError(Problem("reference-failed", failed.error.message)) from None
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                raise RunnerError(Problem("reference-failed", text)) from None
            finally:
                self._watch.preparing()
            return outputs

    @contextmanager
    def _world(self, version: str) -> Iterator[None]:
        """Inside the context, use one version of the workspace's modules."""
        if self._at_home and version == PLAIN:
            yield
            return
        outside = self._take_modules()
        sys.modules.update(self._modules.get(version, {}))
        wrap = "" if version in (PLAIN, SHADOW) else version
        transform = partial(shadow_bytes, wrap=wrap)
        imports.set_source_transform(None if version == PLAIN else transform)
        try:
            yield
        finally:
            imports.set_source_transform(None)
            self._modules[version] = self._take_modules()
            sys.modules.update(outside)

    def _take_modules(self) -> dict[str, types.ModuleType]:
        """Remove the workspace's modules from ``sys.modules``, and return them by name."""
        below = self.program.root.rstrip(os.sep) + os.sep
        foreign, taken = self._foreign, {}
        held = dict(sys.modules)  # of hundreds, which each evaluation asks for
        others = compress(held.items(), map(is_not, map(_never_taken.get, held), held.values()))
        for name, module in others:
            if module is foreign.get(name):
                continue
            path = getattr(module, "__file__", None)
            if not path and name not in _BUILT_IN:
                continue  # it may get a path later
            if (
                path
                and path.startswith(below)
                and name != "__main__"
                and imports.is_workspace_path(path, self.program.root)
                and not name.startswith("gpuemu_flow")
            ):
                taken[name] = module
            else:
                foreign[name] = module
        for name in taken:
            del sys.modules[name]
        return taken


class ServiceContext(Struct, frozen=True):
    """The functions and memory that a service uses, in a worker that has loaded a program."""

    run: Callable[[dict[str, np.ndarray], int], dict[str, np.ndarray]]
    evaluate: Evaluator
    own: Arena
    peer: Arena | None = None


class WorkerService(Protocol):
    """An object of this package that lives in a worker and answers requests one by one."""

    def answer(self, method: str, payload: Mapping[str, Json], context: ServiceContext) -> Json:
        """Answer one request; if that is impossible, raise any exception that says why."""

    def go_on(self, context: ServiceContext) -> None:
        """Continue the work after the answer has been sent."""


def make_service(target: str, setup: Json) -> WorkerService:
    """Return ``Class(setup)`` for the target ``module:Class``.

    Raises ValueError if the target is not in this package.
    """
    module, name = _ours(target)
    service: WorkerService = getattr(importlib.import_module(module), name)(setup)
    return service


def _ours(target: str) -> tuple[str, str]:
    module, _, name = target.partition(":")
    if not module.startswith("gpuemu_flow."):
        raise ValueError(f"not a job: {target!r}")
    return module, name


def run_job(target: str, payload: Json, evaluator: Evaluator) -> Json:
    """Call ``module:function(payload, evaluator)`` of this package.

    Raises ValueError: `target` is not a function of this package.
    """
    module, name = _ours(target)
    return getattr(importlib.import_module(module), name)(payload, evaluator)
