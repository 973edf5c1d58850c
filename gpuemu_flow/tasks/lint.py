"""Stage ``lint``: measure a kernel, and judge it by its policy.

Reads the build's manifest, with the digests of PTX and cubin, but never the source. A measurement
depends only on the bytes of PTX and cubin, and is stored in the action cache. So a changed limit is
checked without parsing again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field, fields
from typing import Any

from gpuemu_flow.artifacts.lint import Linter, LintResult, kernel_json
from gpuemu_flow.artifacts.measure import Artifact, Measurement, measure
from gpuemu_flow.artifacts.metrics import KnownLaunch
from gpuemu_flow.artifacts.policy import KernelPolicy
from gpuemu_flow.artifacts.ptxas import PtxasReport
from gpuemu_flow.artifacts.sass import MachineCode
from gpuemu_flow.artifacts.view import VIEW_VERSION, KernelView
from gpuemu_flow.errors import Problem
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.cache import JsonStore
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import (
    StageContext,
    StageResult,
    TaskSpec,
    read_manifest,
    write_manifest,
)
from gpuemu_flow.tasks.build_kernel import read_artifact
from gpuemu_flow.tasks.params import LintParams, params_of
from gpuemu_flow.types import Json, Verdict
from gpuemu_flow.verdicts import decide

STAGE = stages.LINT
VERSION = stages.VERSIONS[STAGE]


@dataclass
class Linted:
    """The kernels of one artifact, their lint results, and all problems found.

    Attributes
    ----------
    views : list of KernelView
    results : list of LintResult
        One for each of `views`.
    problems : list of Problem
    """

    views: list[KernelView] = field(default_factory=list)
    results: list[LintResult] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """Return the verdict on the artifact.

        This is ``failed`` if a kernel failed; else ``error`` if there is no kernel or an error was
        found; else ``passed`` if all kernels passed; else ``inconclusive``.
        """
        if any(result.verdict is Verdict.FAILED for result in self.results):
            return Verdict.FAILED
        if not self.results or any(not problem.warning for problem in self.problems):
            return Verdict.ERROR
        judged = all(result.verdict is Verdict.PASSED for result in self.results)
        return decide(failed=False, compared=len(self.results) if judged else 0)

    def to_json(self) -> list[dict[str, Json]]:
        """Return, for each kernel, the JSON that ``lint`` and ``artifacts`` show."""
        pairs = zip(self.views, self.results, strict=True)
        return [kernel_json(view, result) for view, result in pairs]


def run(spec: TaskSpec, context: StageContext) -> StageResult:
    """Lint the artifacts of one build."""
    params = params_of(LintParams, spec.params)
    (source,) = spec.inputs
    build = read_manifest(context.cache.folder / source.path, stages.BUILD)
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
        "problems": [asdict(problem) for problem in problems],
    }
    executed = True
    target = context.cache.folder / spec.target
    if not build["skipped"]:
        policy = policy_from_json(params.policy)
        linted = Linted(problems=[*problems])
        if build["ptx"] or build["cubin"]:
            measured, executed = _measured(spec, build, context)
            linted.problems += measured.problems
            chosen = choose(measured.kernels, params.entry)
            lint_views(chosen, policy, linted, allowances=build["allowances"])
        content.update(
            verdict=linted.verdict.value,
            kernels=linted.to_json(),
            metrics=[view.metrics.to_json() for view in linted.views],
            problems=[asdict(problem) for problem in linted.problems],
        )
    return StageResult(
        write_manifest(target, content),
        executed=executed,
        values={"verdict": content["verdict"], "parsed": executed},
    )


def lint_views(
    views: Iterable[KernelView],
    policy: KernelPolicy,
    linted: Linted,
    allowances: Mapping[str, Mapping[str, str]],
) -> None:
    """Lint kernels, and add the views, results and problems to `linted`.

    Parameters
    ----------
    views : iterable of KernelView
        The measured kernels.
    policy : KernelPolicy
    linted : Linted
    allowances : mapping
        Result of `build_kernel.allowances`.
    """

    def read_source(name: str) -> bytes | None:
        return _comment_lines(allowances.get(name))

    linter = Linter(policy, read_source)
    for view in views:
        result = linter.lint(view)
        linted.views.append(view)
        linted.results.append(result)
        linted.problems += result.problems


def choose(views: Sequence[KernelView], name: str) -> list[KernelView]:
    """Return the views of the kernel called `name`; if there are none, return all views."""
    own = [view for view in views if view.name == name]
    return own or list(views)


def _comment_lines(comments: Mapping[str, str] | None) -> bytes | None:
    """Rebuild a source file with only the lines in `comments`, each at its old line number.

    All other lines are empty. Return None if there are no comments.

    Parameters
    ----------
    comments : mapping of str to str, or None
        The texts of one file, by line number, as `build_kernel.allowances` returns them.
    """
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
        ptxas=PtxasReport(unmet_bounds=dict(build["unmet_bounds"])),
        sass=None if build["sass"] is None else MachineCode(**build["sass"]),
        assembly={
            arch: PtxasReport(problems=[Problem("ptxas-error", text)] if text else [])
            for arch, text in build["assembly"].items()
        },
    )
    found = measure(artifact, {"": KnownLaunch(**launch)})
    save_measurement(store, key, found)
    return found, True


def measure_key(identity: Json) -> str:
    """Return the action key of a measurement. It does not depend on limits."""
    return digest_json(["measure", VIEW_VERSION, identity])


def load_measurement(store: JsonStore, key: str) -> Measurement | None:
    """Return a measurement from the action cache; None if it is missing or invalid."""
    data = store.get(key)
    try:
        if data is None:
            return None
        return Measurement(
            [KernelView.from_json(view) for view in data["views"]],
            [Problem(**problem) for problem in data["problems"]],
        )
    except (KeyError, TypeError, ValueError):
        return None


def save_measurement(store: JsonStore, key: str, found: Measurement) -> None:
    """Store a measurement."""
    store.put(
        key,
        {
            "views": [view.to_json() for view in found.kernels],
            "problems": [asdict(problem) for problem in found.problems],
        },
    )


def policy_from_json(data: Mapping[str, Json]) -> KernelPolicy:
    """Rebuild a policy from its JSON; raise KeyError or TypeError if the JSON is invalid."""
    values: dict[str, Any] = {}
    for item in fields(KernelPolicy):
        value = data[item.name]
        if item.name == "explicit":
            value = frozenset(value)
        elif isinstance(value, list):
            value = tuple(value)
        values[item.name] = value
    return KernelPolicy(**values)
