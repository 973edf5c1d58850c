"""Stage ``lint``: measure a kernel, and judge it by its policy.

Reads the build's result, with the digests of PTX and cubin, but never the source. A measurement
depends only on the bytes of PTX and cubin, and is stored in the action cache. So a changed limit is
checked without parsing again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, ValidationError, field, to_builtins

from gpuemu_flow.lint.kernel import VIEW_VERSION, KernelPolicy, KernelRecord, KernelView
from gpuemu_flow.lint.measure import Artifact, KnownLaunch, Linter, Measurement, measure
from gpuemu_flow.lint.toolchain import MachineCode
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.types import Json, Verdict
from gpuemu_flow.model.verdicts import decide
from gpuemu_flow.store.cache import JsonStore
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import (
    LintParams,
    StageContext,
    StageResult,
    TaskSpec,
    params_of,
    read_result,
)
from gpuemu_flow.tasks.build_kernel import read_artifact

STAGE = stages.LINT
VERSION = stages.VERSIONS[STAGE]


class Linted(Struct):
    """The kernels of one artifact, a record for each of them, and all problems found."""

    views: list[KernelView] = field(default_factory=list)
    records: list[KernelRecord] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """Return the verdict on the artifact. This is ``failed`` if a kernel failed; else ``error``
        if there is no kernel or an error was found; else ``passed`` if all kernels passed; else
        ``inconclusive``."""
        if any(record.verdict is Verdict.FAILED for record in self.records):
            return Verdict.FAILED
        if not self.records or any(not problem.warning for problem in self.problems):
            return Verdict.ERROR
        judged = all(record.verdict is Verdict.PASSED for record in self.records)
        return decide(failed=False, compared=len(self.records) if judged else 0)


def run(spec: TaskSpec, context: StageContext) -> StageResult:
    """Lint the artifacts of one build."""
    params = params_of(LintParams, spec.params)
    (source,) = spec.inputs
    build = read_result(context.cache, source.task, stages.BUILD)
    problems = [Problem(**problem) for problem in build["problems"]]
    content: dict[str, Json] = {
        "stage": STAGE,
        "version": VERSION,
        "kernel": spec.subject,
        "arch": params.arch,
        "skipped": build["skipped"],
        "verdict": Verdict.SKIPPED.value,
        "kernels": [],
        "metrics": [],
        "problems": to_builtins(problems, enc_hook=str),
    }
    executed = True
    if not build["skipped"]:
        policy = convert(params.policy, KernelPolicy)
        linted = Linted(problems=[*problems])
        if build["ptx"] or build["cubin"]:
            measured, executed = _measured(spec, build, context)
            linted.problems += measured.problems
            chosen = choose(measured.kernels, params.entry)
            lint_views(chosen, policy, linted, allowances=build["allowances"])
        content.update(
            verdict=linted.verdict.value,
            kernels=to_builtins(linted.records),
            metrics=to_builtins([view.metrics for view in linted.views]),
            problems=to_builtins(linted.problems, enc_hook=str),
        )
    return StageResult(
        content,
        executed=executed,
        values={"verdict": content["verdict"], "parsed": executed},
    )


def lint_views(
    views: Iterable[KernelView],
    policy: KernelPolicy,
    linted: Linted,
    allowances: Mapping[str, Mapping[str, str]],
) -> None:
    """Lint kernels, and add them and the problems to `linted`. `allowances` is the result of
    `build_kernel.allowances`."""

    def read_source(name: str) -> bytes | None:
        return _comment_lines(allowances.get(name))

    linter = Linter(policy, read_source)
    for view in views:
        linted.views.append(view)
        linted.records.append(linter.lint(view))
    linted.problems += linter.problems


def choose(views: Sequence[KernelView], name: str) -> list[KernelView]:
    """Return the views of the kernel called `name`; if there are none, return all views."""
    own = [view for view in views if view.name == name]
    return own or list(views)


def _comment_lines(comments: Mapping[str, str] | None) -> bytes | None:
    """Rebuild a source file with only the lines in `comments`, each at its old line number. All
    other lines are empty. Return None if there are no comments."""
    if not comments:
        return None
    lines = [""] * max(int(number) for number in comments)
    for number, text in comments.items():
        lines[int(number) - 1] = text
    return "\n".join(lines).encode("latin-1", "replace")


def _measured(
    spec: TaskSpec, build: Mapping[str, Any], context: StageContext
) -> tuple[Measurement, bool]:
    """Return the measurement of a build, and True if it was not in the cache."""
    params = params_of(LintParams, spec.params)
    launch = dict(build["launch"] or {})
    if params.threads:
        launch["threads"] = params.threads
    if params.dynamic_shared_bytes is not None:
        launch["dynamic_shared_bytes"] = params.dynamic_shared_bytes
    ptx, cubin = build["ptx"], build["cubin"]
    identity = {
        "ptx": ptx and [ptx["digest"], ptx["name"]],
        "cubin": cubin and [cubin["digest"], cubin["name"]],
        "arch": params.arch,
        "launch": launch,
        "unmet_bounds": build["unmet_bounds"],
        "assembly": build["assembly"],
        "sass": build["sass"],
    }
    store = context.cache.actions
    key = measure_key(identity)
    known = None if context.force else load_measurement(store, key)
    if known is not None:
        return known, False
    shown = ptx or cubin
    artifact = Artifact(
        shown["name"],
        ptx=read_artifact(ptx, context),
        cubin=read_artifact(cubin, context),
        arch=params.arch,
        sass=None if build["sass"] is None else convert(build["sass"], MachineCode),
        unmet_bounds=build["unmet_bounds"],
        assembly=build["assembly"],
    )
    found = measure(artifact, {"": KnownLaunch(**launch)})
    save_measurement(store, key, found)
    return found, True


def measure_key(identity: Json) -> str:
    """Return the action key of a measurement. It does not depend on limits."""
    return digest_json(["measure", VIEW_VERSION, identity])


def load_measurement(store: JsonStore, key: str) -> Measurement | None:
    """Return a measurement from the action cache; None if it is missing or invalid."""
    try:
        return convert(store.get(key), Measurement)
    except ValidationError:
        return None


def save_measurement(store: JsonStore, key: str, found: Measurement) -> None:
    """Store a measurement."""
    store.put(key, to_builtins(found))
