"""Fuzzes right ops and prints how many cases failed: what the oracle must never do.

    python tests/quality/false_alarms.py [--cases 2000] [--seeds 1,2,3] [--seconds 600] [--controls]
        [--contracts] [--ops softmax,matmul] [--jobs 2] [--log sweep.jsonl] [--count-code DIGEST]
        [--json]

The ops of both workspaces in each of their dtypes, and with ``--controls`` their other right
implementations: `--cases` of each in each dtype with each seed. With ``--contracts`` the right
implementations of the ops that need contracts (see `contract_sets`) in their place; their dtypes
share `--cases`. The cases are those of ``fuzz``, judged as it judges them. With ``--log`` each
finished part is appended to a file, with the digest of the code that judged it, and what the file
has from that code, or one that ``--count-code`` names, is counted and not judged again: a sweep
that was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from contract_sets import Chosen, contract_ops, write_workspace
from controls import CONTROLS, install
from oracle import REPOSITORY, all_subjects, copy_workspace, subjects

from gpuemu_flow.build.files import FileTable, own_code_digest
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cases.plan import iterate_cases
from gpuemu_flow.fuzz.subjects import OpSubject, op_names
from gpuemu_flow.judge.case_evaluator import (
    SESSIONS_PER_EVALUATOR,
    EvaluatedCase,
    open_evaluator,
)
from gpuemu_flow.model import verdicts
from gpuemu_flow.model.types import Case, Verdict
from gpuemu_flow.workers.pool import Pool
from gpuemu_flow.workers.supervise import BatchSize

PLAIN = Path(__file__).parent / "plain_ops"


@dataclass
class Tally:
    """Counts of verdicts and the cases that did not pass.

    Attributes
    ----------
    verdicts : dict of str to int
    unjudged, tenth : int
        Cases with elements that have no verdict, and with more than a tenth of them.
    share : float
        The largest share of its tolerance that a passing case used, at `nearest`.
    failures, inconclusive : list of str
        Each such case: the implementation, the case, and the first thing said of it.
    """

    verdicts: Counter[str] = field(default_factory=Counter)
    unjudged: int = 0
    tenth: int = 0
    share: float = 0.0
    nearest: str = ""
    failures: list[str] = field(default_factory=list)
    inconclusive: list[str] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """All of them."""
        return sum(self.verdicts.values())

    def add(self, name: str, evaluated: EvaluatedCase) -> None:
        """Count one more case of an implementation."""
        result = evaluated.result
        where = f"{name} {_words(evaluated.case)}"
        self.verdicts[result.verdict.value] += 1
        if result.stats is not None:
            self.unjudged += bool(result.stats.num_no_verdict)
            self.tenth += result.stats.num_no_verdict > result.stats.count / 10
            used = result.stats.tolerance_used or 0.0
            if used > self.share and not result.failures:
                self.share, self.nearest = used, where
        if result.failures:
            self.failures.append(f"{where}: {result.failures[0].message}")
        elif result.verdict is not Verdict.PASSED:
            self.inconclusive.append(f"{where}: {'; '.join(result.notes[:1])}")

    def merge(self, other: Tally) -> None:
        """Count those of another tally, too."""
        self.verdicts.update(other.verdicts)
        self.unjudged += other.unjudged
        self.tenth += other.tenth
        if other.share > self.share:
            self.share, self.nearest = other.share, other.nearest
        self.failures += other.failures
        self.inconclusive += other.inconclusive


@dataclass(frozen=True)
class Part:
    """So many cases of one implementation in one dtype, with one seed."""

    name: str
    seed: int
    cases: int
    subject: OpSubject = field(compare=False)

    @property
    def key(self) -> tuple[str, int, int]:
        """The key of this part in a log."""
        return f"{self.name}:{self.subject.subject.dtype}", self.seed, self.cases


def _words(case: Case) -> str:
    inputs = " ".join(
        f"{spec.name}{list(spec.shape)}:{spec.strategy}:{spec.layout}" for spec in case.inputs
    )
    return f"seed {case.seed} {inputs}"


def right_ops(
    folder: Path, *, controls: bool, ops: frozenset[str]
) -> Iterator[tuple[str, list[OpSubject]]]:
    """Each right implementation by name, in all its dtypes."""
    for source in (REPOSITORY, PLAIN):
        copy = copy_workspace(folder / source.name, source)
        for op in op_names(Workspace(source)):
            if not ops or op in ops:
                yield op, subjects(copy, op)
    for number, control in enumerate(CONTROLS if controls else ()):
        if ops and control.op not in ops:
            continue
        copy = copy_workspace(folder / f"control{number}")
        install(control, copy)
        yield f"{control.op}/{control.name}", subjects(copy, control.op)


def contract_subjects(
    folder: Path, chosen: Sequence[Chosen]
) -> Iterator[tuple[str, list[OpSubject]]]:
    """Each of some implementations of the ops that need contracts, in all its dtypes."""
    write_workspace(folder / "contracts", chosen)
    yield from all_subjects(folder / "contracts").items()


def parts_of(found: Sequence[tuple[str, list[OpSubject]]], seed: int, cases: int) -> list[Part]:
    """So many cases of each implementation with one seed, shared by its dtypes."""
    return [Part(name, seed, cases // len(items), item) for name, items in found for item in items]


def batches(cases: Iterator[Case]) -> Iterator[list[Case]]:
    """As many cases at a time as `fuzz` gives its programs at most, however slow they are.

    Nobody waits for the next line, and on a busy machine it is the messages that take the time.
    """
    batch: list[Case] = []
    nbytes = 0
    for case in cases:
        size = case.nbytes
        if len(batch) == BatchSize.MAX_CASES or nbytes + size > BatchSize.MAX_BYTES:
            if batch:
                yield batch
            batch, nbytes = [], 0
        batch.append(case)
        nbytes += size
    if batch:
        yield batch


def judge(pool: Pool, part: Part, over: Callable[[], bool]) -> Tally | None:
    """Judge the cases of one part; None when the time is over before it is done."""
    tally = Tally()
    item = part.subject
    stream = iterate_cases(
        item.schema,
        seed=part.seed,
        dtype=item.subject.dtype,
        strategies=item.strategies,
        layouts=item.layouts,
    )
    name = f"{part.name}:{item.subject.dtype}"
    whole = verdicts.Tally()
    with open_evaluator(pool, item.subject) as evaluator:
        for batch in batches(islice(stream, part.cases)):
            if over():
                return None
            for evaluated in evaluator.judge_all(batch):
                tally.add(name, evaluated)
                whole.add(evaluated.result)
    if whole.leans:
        tally.failures.append(f"{name} seed {part.seed}: {whole.leans}")
    return tally


def read_log(path: Path | None, codes: set[str]) -> dict[tuple[str, int, int], Tally]:
    """Read from a log the tally of each part whose code has one of these digests."""
    found = {}
    for line in path.read_text().splitlines() if path is not None and path.exists() else ():
        record = json.loads(line)
        if record["code"] in codes:
            tally = Tally(**{**record["tally"], "verdicts": Counter(record["tally"]["verdicts"])})
            found[record["name"], record["seed"], record["cases"]] = tally
    return found


class Sweep:
    """All parts, those of a log among them."""

    def __init__(self, asked: argparse.Namespace, code: str) -> None:
        self.total = Tally()
        self.seconds: Counter[str] = Counter()
        self._asked = asked
        self._code = code
        self._begin = time.monotonic()

    def over(self) -> bool:
        """Tell whether the time is over."""
        return time.monotonic() - self._begin > self._asked.seconds

    def run(self, parts: list[Part]) -> int:
        """Judge what the log lacks; returns how many parts are done then."""
        asked = self._asked
        known = read_log(asked.log, {self._code, *asked.count_code})
        for part in parts:
            if part.key in known:
                self.total.merge(known[part.key])
        left = [part for part in parts if part.key not in known]
        done = len(parts) - len(left)
        begun = self.total.cases
        sessions = asked.jobs * SESSIONS_PER_EVALUATOR
        with Pool(sessions) as pool, ThreadPoolExecutor(asked.jobs) as e:
            jobs = {e.submit(self._one, pool, part): part for part in left}
            for job in as_completed(jobs):
                tally, seconds = job.result()
                if tally is None:
                    continue
                done += 1
                self._keep(jobs[job], tally, seconds)
                rate = (self.total.cases - begun) / (time.monotonic() - self._begin)
                self._tell(f"{done} of {len(parts)} parts, {rate:.0f} cases a second", tally)
        return done

    def _one(self, pool: Pool, part: Part) -> tuple[Tally | None, float]:
        begin = time.monotonic()
        tally = None if self.over() else judge(pool, part, self.over)
        return tally, time.monotonic() - begin

    def _keep(self, part: Part, tally: Tally, seconds: float) -> None:
        self.total.merge(tally)
        self.seconds[part.key[0]] += seconds
        if self._asked.log is None:
            return
        name, seed, cases = part.key
        record = {"name": name, "seed": seed, "cases": cases, "code": self._code}
        with self._asked.log.open("a") as log:
            log.write(json.dumps({**record, "seconds": seconds, "tally": vars(tally)}) + "\n")

    def _tell(self, progress: str, latest: Tally) -> None:
        """A line of progress, and the failures that are new."""
        lines = [f"{self.total.cases} cases: {dict(self.total.verdicts)}; {progress}"]
        print(*lines, *latest.failures, *latest.inconclusive, sep="\n", file=sys.stderr, flush=True)


def main() -> None:
    """Fuzz until all is done or the time is over, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seeds", type=lambda text: [int(n) for n in text.split(",")], default=[1])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--controls", action="store_true")
    parser.add_argument("--contracts", action="store_true")
    parser.add_argument("--ops", type=lambda text: frozenset(text.split(",")), default=frozenset())
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--count-code", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # One seed after the other, so that a sweep that is ended has seen every implementation.
        if asked.contracts:
            wanted = [op for op in contract_ops() if not asked.ops or op.stem in asked.ops]
            chosen = [(op, name) for op in wanted for name in op.functions("right_")]
            found = list(contract_subjects(Path(folder), chosen))
            parts = [part for seed in asked.seeds for part in parts_of(found, seed, asked.cases)]
        else:
            found = list(right_ops(Path(folder), controls=asked.controls, ops=asked.ops))
            parts = [
                Part(name, seed, asked.cases, item)
                for seed in asked.seeds
                for name, op_subjects in found
                for item in op_subjects
            ]
        code = own_code_digest(FileTable(Path(folder)))
        sweep = Sweep(asked, code)
        done = sweep.run(parts)
    _print(sweep, done, len(parts), code, as_json=asked.json)


def _print(sweep: Sweep, done: int, of: int, code: str, *, as_json: bool) -> None:
    total = sweep.total
    if as_json:
        summary: dict[str, Any] = {"cases": total.cases, "parts": done, "of": of, "code": code}
        slowest = dict(sweep.seconds.most_common(10))
        print(json.dumps({**summary, **vars(total), "seconds": slowest}, indent=2))
        return
    print(f"{total.cases} cases: {dict(total.verdicts)}")
    print(f"{done} of {of} parts (an implementation, a dtype, a seed) looked at, by code {code}")
    print(
        f"{total.unjudged} with elements that have no verdict, {total.tenth} with a tenth of them"
    )
    print(f"largest share of a tolerance: {total.share:.3f}, {total.nearest}")
    print(*total.failures, *total.inconclusive, sep="\n")


if __name__ == "__main__":
    main()
