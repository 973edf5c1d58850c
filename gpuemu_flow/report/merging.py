"""Merge the reports of a workspace's shards into one report."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import msgspec
from jsonschema import Draft7Validator
from jsonschema.exceptions import best_match
from msgspec.structs import replace

from gpuemu_flow.judge import results
from gpuemu_flow.judge.results import RunReport, TaskCounts
from gpuemu_flow.lint.diff import KernelDiff
from gpuemu_flow.lint.kernel import KernelRecord
from gpuemu_flow.model.decoding import builtin, known
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.types import Json
from gpuemu_flow.report import document
from gpuemu_flow.report.document import Report, ShardPart
from gpuemu_flow.store.baselines import Baseline
from gpuemu_flow.store.failures import FailureRecord

MAX_BYTES = 512 << 20
_AGAIN = "write it again with `gpuemu-flow ci --shard I/N -o FILE.json`"
_ALIKE = "merge shards of one commit, run with the same words and options"

# Names in annotations of these modules, which other commands need not load.
vars(results).update(KernelRecord=KernelRecord)
vars(document).update(KernelDiff=KernelDiff, Baseline=Baseline, FailureRecord=FailureRecord)


def merged_report(paths: Sequence[Path]) -> Report:
    """Read the JSON reports of all shards, also in folders at any depth, and return the report of
    the whole workspace. Raises UsageError: ``merge-unreadable``; ``merge-mismatch`` if the reports
    are not shards of one workspace, or were made with other options; ``merge-incomplete`` if a
    shard or an op is missing."""
    found: dict[int, tuple[Path, ShardPart, Report]] = {}
    for path in paths:
        listed = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        for each in listed:
            for part, report in _read(each, strict=not path.is_dir()):
                if part.index in found:
                    message = f"{found[part.index][0]} and {each} are both shard {part.index}"
                    raise UsageError(Problem("merge-mismatch", message, "give each shard once"))
                found[part.index] = (each, part, report)
    _check_alike(list(found.values()))
    return _joined([found[index][2] for index in sorted(found)])


def _read(path: Path, *, strict: bool) -> Iterator[tuple[ShardPart, Report]]:
    """Yield the shard that a file holds. Other JSON is passed over, unless `strict`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise _unreadable(path, f"it has more than {MAX_BYTES >> 20} MiB")
        content = json.loads(data)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except (ValueError, RecursionError):
        raise _unreadable(path, "it is no JSON") from None
    if not isinstance(content, dict) or "shard" not in content:
        if strict:
            raise _unreadable(path, "it is no report of a shard")
        return
    wrong = best_match(_validator().iter_errors(content["shard"]))
    if wrong is not None:
        place = wrong.json_path.replace("$", "shard", 1)
        raise _unreadable(path, f"it is damaged: {place}: {wrong.message[:300]}")
    encoded = content["shard"].pop("report")
    part = ShardPart(**content["shard"])
    try:
        report = msgspec.msgpack.Decoder(known(Report)).decode(base64.b64decode(encoded))
    except (ValueError, msgspec.MsgspecError) as error:
        reason = f"it is damaged, or of another version of gpuemu-flow: {error}"
        raise _unreadable(path, reason[:500]) from None
    if part.index > part.count or report.exit_code != content.get("exit_code"):
        raise _unreadable(path, "it is damaged: its parts contradict each other")
    yield part, report


def encoded(report: Report) -> str:
    """Return a report as the text that `merged_report` reads; figures of a baseline are left out,
    because each shard compares what it ran."""
    whole = replace(report, baseline=None, shard=None)
    return base64.b64encode(msgspec.msgpack.encode(whole, enc_hook=builtin)).decode()


@lru_cache
def _validator() -> Draft7Validator:
    text = (files("gpuemu_flow") / "schemas" / "report.schema.json").read_text("utf-8")
    definitions = json.loads(text)["definitions"]
    return Draft7Validator({"$ref": "#/definitions/shard", "definitions": definitions})


def _unreadable(path: Path, reason: str) -> UsageError:
    return UsageError(Problem("merge-unreadable", reason, _AGAIN, file=str(path)))


def _check_alike(found: Sequence[tuple[Path, ShardPart, Report]]) -> None:
    if not found:
        message = "there is no report of a shard in what --merge names"
        hint = "`gpuemu-flow ci --shard 1/2 -o shard-1.json` writes one"
        raise UsageError(Problem("merge-incomplete", message, hint))
    (first_path, first, _), *others = found
    facts = _facts(first)
    for path, part, _ in others:
        for name, value in _facts(part).items():
            if value != facts.get(name):
                message = f"{first_path} and {path} differ in: {name}"
                raise UsageError(Problem("merge-mismatch", message[:500], _ALIKE))
    hint = "what they would have found is not known, so that there is no verdict on the whole"
    missing = sorted({*range(1, first.count + 1)} - {part.index for _, part, _ in found})
    if missing:
        shown = ", ".join(f"{index}/{first.count}" for index in missing[:20])
        message = f"the reports of these shards are missing: {shown}"
        raise UsageError(Problem("merge-incomplete", message, hint))
    if any(report.run.interrupted for *_, report in found):
        return  # the exit code says that results are missing
    told = {result.op for *_, report in found for result in report.run.results}
    told |= {kernel.kernel for *_, report in found for kernel in report.run.kernels}
    lost = sorted(set(first.selected) - told)
    if lost:
        message = f"no report has a result of {', '.join(lost[:3])[:400]}"
        raise UsageError(Problem("merge-incomplete", message, hint))


def _facts(part: ShardPart) -> dict[str, Json]:
    """Return what must be equal in all shards, by the name that a message calls it."""
    return {"number of shards": part.count, **part.options, "selected ops": list(part.selected)}


def _joined(reports: Sequence[Report]) -> Report:
    runs = [report.run for report in reports]
    seeds = {run.drawn_seed for run in runs}
    counts = (
        tuple(getattr(run.tasks, name) for run in runs) for name in TaskCounts.__struct_fields__
    )
    run = RunReport(
        tasks=TaskCounts(*map(sum, counts)),
        executed=tuple(dict.fromkeys(name for run in runs for name in run.executed)),
        results=tuple(sorted((r for run in runs for r in run.results), key=lambda r: r.op)),
        problems=tuple(dict.fromkeys(problem for run in runs for problem in run.problems)),
        changes=tuple(change for run in runs for change in run.changes),
        duration_s=max(run.duration_s for run in runs),
        interrupted=any(run.interrupted for run in runs),
        kernels=tuple(sorted((k for run in runs for k in run.kernels), key=lambda k: k.kernel)),
        drawn_seed=seeds.pop() if len(seeds) == 1 else None,
        build_only=all(run.build_only or run.nothing_due for run in runs),
        nothing_due=all(run.nothing_due for run in runs),
        minima={key: shown for run in runs for key, shown in run.minima.items()},
        known={key: known for run in runs for key, known in run.known.items()},
    )
    cases = sorted((case for report in reports for case in report.cases), key=lambda c: c.op)
    return replace(
        reports[0],
        run=run,
        created=max(report.created for report in reports),
        cases=tuple(cases),
        places={op: place for report in reports for op, place in report.places.items()},
        kernel_places={k: p for report in reports for k, p in report.kernel_places.items()},
        recorded=tuple(dict.fromkeys(each for report in reports for each in report.recorded)),
        regressions=tuple(worse for report in reports for worse in report.regressions),
        timed_out=any(report.timed_out for report in reports),
        pictures={key: p for report in reports for key, p in report.pictures.items()},
    )
