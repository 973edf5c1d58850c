"""Fuzz what reads bytes of strangers, guided by coverage: by atheris where it is installed.

    python tests/fuzz_parsers.py TARGET [--seconds 300] [--keep]

What a reader raises and may not is printed with the input and written to ``tests/corpus/parsers``,
where the suite tries it from then on. ``--keep`` also writes the inputs that reached something new.
Without atheris a small loop of our own does the same: it mutates what reached new lines.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

if "--atheris" in sys.argv[1:]:
    import atheris

    # As they are imported: to instrument all that is loaded, numpy too, takes a minute.
    with atheris.instrument_imports(include=["gpuemu_flow"]):
        import parser_targets  # noqa: F401 - the next line takes names of it

from parser_targets import CORPUS, LARGEST, TARGETS, Target, corpus  # noqa: E402

PACKAGE = str(Path(__file__).parents[1] / "gpuemu_flow")
WORDS = (b"0", b"-1", b"9" * 30, b"\x00", b"\xff", b'"', b"[", b"{", b"}", b"]", b"\n", b"'", b"\\",
         b"null", b"1e999", b"nan", b"\xed\xa0\x80", b"[" * 500, b"..", b"=", b"#")  # fmt: skip


def write_crasher(name: str, data: bytes) -> Path:
    """Write an input to the corpus under the digest of its bytes."""
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path


def crashed_at(error: BaseException) -> str:
    """Name an error by its type and the innermost line, so that each cause is told once."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} {place.filename}:{place.lineno}"


class Coverage:
    """Collects the lines of the package that one call reaches."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()
        self._new = False

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        place = frame.f_code.co_filename, frame.f_lineno
        if place not in self.seen:
            self.seen.add(place)
            self._new = True
        return self._trace

    def reached_more(self, target: Target, data: bytes) -> bool:
        """Try an input, and tell whether it reached a line that none before it did."""
        self._new = False
        sys.settrace(self._trace)
        try:
            target.try_on(data)
        finally:
            sys.settrace(None)
        return self._new


def mutated(pool: list[bytes], chance: random.Random) -> bytes:
    """Return an input made of those of the pool."""
    data = bytearray(chance.choice(pool))
    for _ in range(1 << chance.randrange(4)):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((0, 1, 1, 2, 8)))
        kind = chance.random()
        if kind < 0.4:
            data[at:end] = chance.choice(WORDS)
        elif kind < 0.7:
            data[at:end] = chance.randbytes(chance.randrange(3))
        else:
            other = chance.choice(pool)
            start = chance.randrange(len(other) + 1)
            data[at:end] = other[start : start + chance.randrange(1, 40)]
    return bytes(data[:LARGEST])


def fuzz_here(name: str, seconds: float, seed: int) -> tuple[int, dict[str, bytes], list[bytes]]:
    """Fuzz without atheris; return the number of inputs, crashers by place, and what was new."""
    target, chance, coverage = TARGETS[name], random.Random(seed), Coverage()
    pool = [*target.seeds, *(path.read_bytes() for path in corpus(name))]
    crashers: dict[str, bytes] = {}
    tried, end, begun = 0, time.monotonic() + seconds, len(pool)
    for data in list(pool):
        coverage.reached_more(target, data)
    while time.monotonic() < end:
        data = mutated(pool, chance)
        tried += 1
        try:
            if coverage.reached_more(target, data):
                pool.append(data)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            crashers.setdefault(crashed_at(error), data)
    return tried, crashers, pool[begun:]


def fuzz_with_atheris(name: str, seconds: float) -> None:
    """Fuzz with atheris, which ends the process when the time is up or an input takes a minute.

    A crasher is written when it is found, the first of each place, and the search goes on.
    """
    target = TARGETS[name]
    begin = Path(tempfile.mkdtemp(prefix="gpuemu-fuzz-"))  # it adds what reaches something new
    for number, data in enumerate((*target.seeds, *(path.read_bytes() for path in corpus(name)))):
        (begin / str(number)).write_bytes(data)

    known: set[str] = set()

    def one(data: bytes) -> None:
        try:
            target.try_on(data)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            place = crashed_at(error)
            if place not in known:
                known.add(place)
                sys.stdout.write(f"{place}\n  {data[:200]!r}\n  {write_crasher(name, data)}\n")
                sys.stdout.flush()

    words = [
        sys.argv[0],
        f"-max_total_time={seconds:.0f}",
        f"-max_len={LARGEST}",
        "-timeout=60",
        "-print_final_stats=1",
        f"-artifact_prefix={begin}/",
        str(begin),
    ]
    atheris.Setup([*words, "-verbosity=0"], one)
    atheris.Fuzz()


def main() -> int:
    """Fuzz one target, and tell whether nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--atheris", action="store_true", help="use it; else the loop of our own")
    given = parser.parse_args()
    if given.atheris:
        fuzz_with_atheris(given.target, given.seconds)
        return 0
    threading.stack_size(64 << 20)
    tried, crashers, new = fuzz_here(given.target, given.seconds, given.seed)
    for place, data in crashers.items():
        sys.stdout.write(f"{place}\n  {data[:200]!r}\n  {write_crasher(given.target, data)}\n")
    for data in new if given.keep else ():
        write_crasher(given.target, data)
    sys.stdout.write(f"{given.target}: {tried} inputs, {len(new)} new, {len(crashers)} crashers\n")
    return int(bool(crashers))


if __name__ == "__main__":
    sys.exit(main())
