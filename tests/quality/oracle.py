"""The tool's own machinery, pointed at planted bugs and at correct variants: what does it find?"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cases.plan import iterate_cases
from gpuemu_flow.fuzz.case_queue import checks_for
from gpuemu_flow.fuzz.subjects import OpSubject, dtypes_of, op_names, op_subject
from gpuemu_flow.judge.case_evaluator import SESSIONS_PER_EVALUATOR, EvaluatedCase, open_evaluator
from gpuemu_flow.judge.subject import FULL_CHECKS
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.workers.pool import Pool

REPOSITORY = Path(__file__).resolve().parents[2]
RUN_CASES = 24
BAD = (Verdict.FAILED, Verdict.ERROR)


def copy_workspace(folder: Path, source: Path = REPOSITORY) -> Path:
    """A copy of a workspace, the repository's own by default."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "gpuemu.toml", folder)
    shutil.copytree(
        source / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__")
    )
    return folder


def keep_only(folder: Path, op: str) -> None:
    """Take the other ops out of a copy's configuration: to read them all takes longer than to try
    one."""
    path = folder / "gpuemu.toml"
    head, *tables = path.read_text(encoding="utf-8").split("[[ops]]")
    (own,) = [table for table in tables if f'\nname = "{op}"\n' in table]
    head = re.sub(r"(?m)^\[targets\]\n(?:(?!\[).*\n)*", "", head)
    path.write_text(head + "[[ops]]" + own.partition("[[kernels]]")[0], encoding="utf-8")


def all_subjects(folder: Path, ops: Sequence[str] = ()) -> dict[str, list[OpSubject]]:
    """Ops of a workspace, all by default, each in all of its dtypes."""
    workspace = Workspace(folder, environ={"HOME": str(folder)})
    workspace.cache.create()
    found = {
        op: [op_subject(workspace, op, dtype) for dtype in dtypes_of(workspace, op)]
        for op in ops or op_names(workspace)
    }
    workspace.cache.close()
    return found


def subjects(folder: Path, op: str) -> list[OpSubject]:
    """An op of a workspace in all of its dtypes."""
    return all_subjects(folder, (op,))[op]


@dataclass(frozen=True)
class Finding:
    """The first case that did not pass, or none; and how many cases were tried."""

    tried: int
    evaluated: EvaluatedCase | None = None

    @property
    def killed(self) -> bool:
        """True if a case failed."""
        return self.evaluated is not None


def designed(subject: OpSubject, seed: int) -> Iterator[Any]:
    """The cases of a default run, as ``run`` plans them, with the checks that it makes."""
    cases = iterate_cases(
        subject.schema,
        seed=seed,
        dtype=subject.subject.dtype,
        strategies=subject.strategies,
        layouts=subject.layouts,
    )
    for case in islice(cases, RUN_CASES):
        yield case, FULL_CHECKS


def fuzzed(count: int) -> Callable[[OpSubject, int], Iterator[Any]]:
    """The cases of ``fuzz -n count`` that fall to one dtype of several."""

    def cases(subject: OpSubject, seed: int) -> Iterator[Any]:
        stream = iterate_cases(
            subject.schema,
            seed=seed,
            dtype=subject.subject.dtype,
            strategies=subject.strategies,
            layouts=subject.layouts,
        )
        for number, case in enumerate(islice(stream, count)):
            yield case, checks_for(number)

    return cases


def search(
    pool: Pool,
    op_subjects: list[OpSubject],
    cases: Callable[[OpSubject, int], Iterator[Any]] = designed,
    seed: int = 42,
    **compare: Any,
) -> Finding:
    """Try cases until one fails.

    Keyword arguments replace entries of the op's ``compare`` configuration.
    """
    tried = 0
    for item in op_subjects:
        subject = replace(item.subject, compare=replace(item.subject.compare, **compare))
        with open_evaluator(pool, subject) as evaluator:
            for case, checks in cases(item, seed):
                tried += 1
                evaluated = evaluator.judge(case, checks)
                if evaluated.result.verdict in BAD:
                    return Finding(tried, evaluated)
    return Finding(tried)


def search_all(
    folder: Path,
    variants: list[tuple[str, str, Callable[[Path], object]]],
    cases: Callable[[OpSubject, int], Iterator[Any]] = designed,
    seed: int = 42,
    source: Path = REPOSITORY,
    *,
    dtypes: Mapping[str, Sequence[str]] | None = None,
    **compare: Any,
) -> dict[str, Finding]:
    """`search` for each (id, op, function that changes a workspace copy), two at a time.

    Each is tried in all dtypes of its op, or in those that `dtypes` has for its id.
    """

    def one(number: int, name: str, op: str, change: Callable[[Path], object]) -> Finding:
        copy = copy_workspace(folder / f"copy{number}", source)
        change(copy)
        keep_only(copy, op)
        chosen = subjects(copy, op)
        if dtypes is not None:
            chosen = [each for each in chosen if each.subject.dtype in dtypes[name]]
        finding = search(pool, chosen, cases, seed, **compare)
        shutil.rmtree(copy)
        return finding

    with (
        Pool(2 * SESSIONS_PER_EVALUATOR) as pool,
        ThreadPoolExecutor(2) as threads,
    ):
        jobs = {
            name: threads.submit(one, n, name, op, change)
            for n, (name, op, change) in enumerate(variants)
        }
        return {name: job.result() for name, job in jobs.items()}
