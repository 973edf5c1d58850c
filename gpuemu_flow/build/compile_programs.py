"""Convert the programs of ops to the descriptions from which runners run them."""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path

import msgspec
from msgspec.structs import replace

from gpuemu_flow.build.forbidden_files import ForbiddenFiles
from gpuemu_flow.build.sources import SourceIndex
from gpuemu_flow.config.model import Config, OpConfig, ProgramRef, gradients_of, groups_of, masks_of
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.types import SCALAR, Json
from gpuemu_flow.store.cache import artifact_path
from gpuemu_flow.store.keys import digest_bytes
from gpuemu_flow.store.private_files import user_cache_folder
from gpuemu_flow.tasks.base import TaskSpec
from gpuemu_flow.tasks.params import CodeParams, params_of
from gpuemu_flow.workers.api import EMULATED, Gradients, Program
from gpuemu_flow.workers.imports import FRAMEWORKS
from gpuemu_flow.workers.sandbox.fence import Fence, OffLimits


class ProgramCompiler:
    """Converts the programs of a configuration's ops to descriptions for runners."""

    def __init__(
        self,
        config: Config,
        cache_folder: Path,
        sources: SourceIndex,
        fence: Fence,
        forbidden: ForbiddenFiles,
    ) -> None:
        self._config = config
        self._cache_folder = cache_folder
        self._sources = sources
        self._fence = fence
        self._forbidden = forbidden

    def program(
        self,
        op: OpConfig,
        ref: ProgramRef,
        off_limits: OffLimits,
        code: TaskSpec | None,
        *,
        fenced: bool,
    ) -> dict[str, Json]:
        """Return the description of a program for runners: the JSON of a `Program`.

        It contains limits and absolute paths, which are no part of action keys.
        """
        executable, *arguments = ref.argv or ("",)
        has_file = (
            ref.path is not None and not ref.module and not (ref.kind == "command" and executable)
        )
        path = str(ref.path) if has_file else executable
        if code is not None:
            arch = params_of(CodeParams, code.params).arch
            path = str(artifact_path(self._cache_folder, code.subject, arch, "ptx"))
        emulated = ref.kind in EMULATED
        sandbox = None
        if fenced:
            own = self._forbidden.own(op, ref)
            sandbox = self._fence.around(off_limits, path, emulated=emulated, own=own)
        gpu = self._gpu_folder(ref)
        if sandbox is not None and any(map(self._gpu_folder, (ref, op.reference, *op.compares))):
            mine = (gpu,) if gpu else ()
            sandbox = replace(
                sandbox,
                hidden=(*sandbox.hidden, self._builds),
                shown=(*sandbox.shown, *mine),
                writable=(*sandbox.writable, *mine),
            )
        if emulated or ref.kind == "cuda-host":
            arguments.append(json.dumps({t.name: t.dims for t in op.schema.inputs}))
        program = Program(
            ref.kind,
            root=str(self._config.root),
            # A dotted module is imported by its name, as relative imports inside it need.
            path=path,
            module=ref.module,
            function=ref.function,
            argv=tuple(arguments),
            loads="" if ref.loads is None else str(ref.loads),
            input_names=op.input_names,
            output_names=tuple(tensor.name for tensor in op.schema.outputs),
            kwargs=dict(op.kwargs),
            env=dict(op.env),
            env_names=op.env_names,
            timeout=op.timeout,
            timeout_grows=op.timeout_grows,
            memory_limit=op.memory_limit,
            isolation=op.isolation,
            python=self._config.execution.python_path or "",
            mutates=op.mutates,
            leaves=tuple(
                name
                for name in op.in_place
                if fenced or name not in {tensor.name for tensor in op.schema.outputs}
            ),
            scalars={
                t.name: list(t.rule.choices) or None
                for t in op.schema.inputs
                if t.rule is not None and t.rule.kind == SCALAR
            },
            optional=tuple(t.name for t in op.schema.inputs if t.rule and t.rule.optional),
            groups=groups_of(op),
            deterministic=op.deterministic,
            masks=masks_of(op),
            gradients=convert({**gradients_of(op), "plain": fenced}, Gradients)
            if op.gradients
            else None,
            # Only for the op: a reference may be the library that is forbidden to the op.
            require_kernel=fenced and op.require_kernel,
            forbid=op.forbid if fenced else (),
            framework=self._framework(ref),
            gpu_folder=gpu,
            sandbox=sandbox,
        )
        settings: dict[str, Json] = msgspec.to_builtins(program)
        return settings

    def generators(self, op: OpConfig, program: ProgramRef) -> dict[str, Json]:
        """Return the descriptions of the functions that generate the op's inputs, by their labels.

        They are in a dict under the key ``generators``, which is missing if there are none. The
        restrictions of the op apply to these functions, too.
        """
        if not op.generators:
            return {}
        off_limits = self._forbidden.off_limits(op, program, *op.generators.values())
        made = {
            label: self.program(
                replace(op, kwargs={}, outputs=(), gradients=()), ref, off_limits, None, fenced=True
            )
            for label, ref in op.generators.items()
        }
        return {"generators": made}

    @cached_property
    def _builds(self) -> str:
        return str(user_cache_folder(os.environ) / "cuda" / "ops")

    def _gpu_folder(self, ref: ProgramRef) -> str:
        """Return the folder for what a program with CUDA host code builds; empty for others."""
        if ref.kind != "cuda-host":
            elsewhere = self._config.execution.python_path
            if ref.kind not in ("torch", "callable") or elsewhere:
                return ""
            starts = [*ref.files, *((ref.loads,) if ref.loads else ())]
            found = self._sources.module_file(ref.module) if ref.module else None
            starts += [found] if found is not None else []
            if not any(map(self._sources.uses_cuda, starts)):
                return ""
        place = f"{self._config.root}\0{ref.loads or ref.path or ref.module}"
        return f"{self._builds}/{digest_bytes(place.encode())[:32]}"

    def _framework(self, ref: ProgramRef) -> str:
        """Return the name of a framework that the program or its modules import; empty if none.

        See `preloadable` for its use.
        """
        starts = [] if ref.kernel else [*ref.files]
        found = self._sources.module_file(ref.module) if ref.module else None
        starts += [found] if found is not None else []
        packages = {ref.kind}.union(*(self._sources.closure(start).packages for start in starts))
        return next((name for name in FRAMEWORKS if name in packages), "")
