"""Stage ``code``: digest the part of a build that can affect an op's results.

Reads a build's result and its PTX. Writes the digest of the PTX without comments and line
information. Thus an edited comment does not change this result, and no op runs again.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from gpuemu_flow.lint.ptx.model import plain_ptx
from gpuemu_flow.model.errors import Problem, RunnerError
from gpuemu_flow.model.types import Json
from gpuemu_flow.store.keys import digest_bytes
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import StageContext, StageResult, TaskSpec, read_result
from gpuemu_flow.tasks.build_kernel import read_artifact

STAGE = stages.CODE
VERSION = stages.VERSIONS[STAGE]


def run(spec: TaskSpec, context: StageContext) -> StageResult:
    """Write the digest of the code that a build made. Raises RunnerError: ``kernel-not-built`` if
    the build gave no PTX."""
    (source,) = spec.inputs
    build = read_result(context.cache, source.task, stages.BUILD)
    ptx = read_artifact(build["ptx"], context)
    if ptx is None:
        raise RunnerError(_why(spec.subject, build))
    content = {"stage": STAGE, "version": VERSION, "ptx": digest_bytes(plain_ptx(ptx).text)}
    return StageResult(content)


def _why(kernel: str, build: Mapping[str, Json]) -> Problem:
    """Return, in one line, the reason why a build gave no PTX."""
    for problem in build["problems"]:
        if not problem["warning"]:
            first = Problem(**problem)
            message = f"{kernel} does not compile: {first.message}"
            return replace(first, slug="kernel-not-built", message=message)
    hint = build["skipped"] or "an op runs PTX: a cubin alone cannot be executed"
    return Problem("kernel-not-built", f"the build of {kernel} gave no PTX", hint)
