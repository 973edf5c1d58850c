"""Plant random one-line faults in the package, one at a time, and count those that the tests find.

Each fault is made in a copy of the checkout with an environment of its own, so that workers, fork
servers and daemons load the faulty package too. A first run with probes tells which test files
reach which fault; then a copy runs these with ``-x``, and all tests where they find nothing. A
survivor is printed as a diff: it asks for a test, or for the reason why nothing can show it.

Run it from a checkout whose package is installed editable in a virtual environment::

    python benchmarks/bench_suite.py --count 100 --seed 1 --jobs 2
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib.util
import json
import os
import queue
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "gpuemu_flow"
FLOOR = 0.92
SPECIFIC = 8
"""So many files that reach a fault are tried first, one after the other: they find most faults."""
ROOMS = {
    "judging": ("judge", "judging", "numerics"),
    "cases": ("cases", "fuzz"),
    "build": ("build", "tasks", "engine", "graph", "inputs", "selection"),
    "store": ("store",),
    "workers": ("workers", "runners"),
}
"""Each room with the packages that hold it; those that the checkout does not have are left out."""
TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One changed line of one file."""

    room: str
    path: str
    line: int
    kind: str
    before: str
    after: str
    probed: str

    def apply(self, text: str) -> str:
        """Return the file's text with the fault in it."""
        lines = text.splitlines(keepends=True)
        assert lines[self.line - 1] == self.before, "the file is another one"
        lines[self.line - 1] = self.after
        return "".join(lines)

    def diff(self) -> str:
        """Return the change as people read it."""
        changes = difflib.unified_diff([self.before], [self.after], n=0)
        return f"{self.path}:{self.line} ({self.kind})\n" + "".join(list(changes)[3:])


@dataclass(frozen=True)
class Trial:
    """What the tests said of a fault."""

    fault: Fault
    found: bool
    by: str
    seconds: float


class _Places(ast.NodeVisitor):
    """The faults that one file has room for, as (node, replacement, kind)."""

    def __init__(self) -> None:
        self.found: list[tuple[ast.expr | ast.Return, str, str]] = []

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip text that is put together: messages."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arguments(self, node: ast.arguments) -> None:
        for default in [*node.defaults, *(value for value in node.kw_defaults if value)]:
            self.visit(default)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if any("overload" in ast.unparse(one) for one in node.decorator_list):
            return
        self.visit(node.args)
        self._all(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._all(node.body)

    def _all(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.visit(statement)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Skip: an assert that fails has found a fault, and one that cannot fail shows none."""

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test) or "__name__" in ast.unparse(node.test):
            return self._all(node.orelse)
        self.found.append((node.test, "False", "branch dropped"))
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            turned = ast.Compare(node.left, [TURNED[type(node.ops[0])]()], node.comparators)
            self.found.append((node, f"({ast.unparse(turned)})", "comparison turned"))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        swapped = ast.unparse(ast.BoolOp(other, node.values))
        self.found.append((node, f"({swapped})", "boolean operator swapped"))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.found.append((node, repr(not value), "constant moved"))
        elif isinstance(value, int):
            self.found.append((node, repr(value + 1), "constant moved"))
        elif isinstance(value, float):
            moved = value * 2 if value * 2 != value else 1.0
            self.found.append((node, repr(moved), "constant moved"))

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":  # of zip: an assert
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        arguments = node.args
        plain = not any(isinstance(argument, ast.Starred) for argument in arguments)
        alike = isinstance(node.func, ast.Name) and node.func.id in ("max", "min")
        if len(arguments) >= 2 and plain and not alike:
            at = len(arguments) - 2
            exchanged = [*arguments[:at], arguments[at + 1], arguments[at]]
            if ast.dump(arguments[at]) != ast.dump(arguments[at + 1]):
                text = ast.unparse(ast.Call(node.func, exchanged, node.keywords))
                self.found.append((node, text, "argument exchanged"))
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        falsy = isinstance(node.value, ast.Constant) and not node.value.value
        if node.value is not None and not falsy:  # most callers take None for False
            self.found.append((node, "return None", "return value dropped"))
        self.generic_visit(node)


def faults_of(room: str, path: Path) -> list[Fault]:
    """Return all one-line faults that a file has room for."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    places = _Places()
    places.visit(ast.parse(text))
    made = []
    for node, new, kind in places.found:
        if node.lineno != node.end_lineno:
            continue
        before = lines[node.lineno - 1]
        raw = before.encode()
        first, last = raw[: node.col_offset].decode(), raw[node.end_col_offset :].decode()
        old = raw[node.col_offset : node.end_col_offset].decode()
        probed = (
            f"return (PROBE and ({old[7:]}))"
            if isinstance(node, ast.Return)
            else f"(PROBE and ({old}))"
        )
        name = path.relative_to(ROOT).as_posix()
        texts = (first + new + last, first + probed + last)
        made.append(Fault(room, name, node.lineno, kind, before, *texts))
    return made


def is_change(fault: Fault) -> bool:
    """Return whether the faulty file is Python, and another program than before."""
    text = (ROOT / fault.path).read_text(encoding="utf-8")
    try:
        return ast.dump(ast.parse(fault.apply(text))) != ast.dump(ast.parse(text))
    except SyntaxError:
        return False


def can_run(path: Path) -> bool:
    """Return whether a file runs here: not one for a framework that is not installed."""
    needed = [name for name in ("torch", "triton", "jax", "tensorflow") if name in path.stem]
    return all(importlib.util.find_spec(name) for name in needed)


def draw(count: int, seed: int, rooms: list[str]) -> list[Fault]:
    """Return as many faults of each room, the kinds within a room equally often if it has all."""
    rng = random.Random(seed)
    pools: dict[str, dict[str, list[Fault]]] = {}
    for room in rooms:
        kinds: dict[str, list[Fault]] = {}
        for package in ROOMS[room]:
            for path in sorted((ROOT / PACKAGE / package).rglob("*.py")):
                for fault in faults_of(room, path) if can_run(path) else ():
                    kinds.setdefault(fault.kind, []).append(fault)
        if kinds:
            pools[room] = kinds
    drawn: list[Fault] = []
    names = sorted(pools)
    while len(drawn) < count:
        kinds = pools[names[len(drawn) % len(names)]]
        fault = rng.choice(kinds[rng.choice(sorted(kinds))])
        if fault not in drawn and is_change(fault):
            drawn.append(fault)
    return drawn


def make_copy(folder: Path) -> Path:
    """Copy the checkout and its environment, and return the copy's interpreter."""
    if sys.prefix == sys.base_prefix:
        raise SystemExit("run this with the interpreter of a virtual environment")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        source, copy = ROOT / name, folder / name
        if not os.path.lexists(source):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy, follow_symlinks=False)
    env = folder / ".venv"
    shutil.copytree(sys.prefix, env, symlinks=True, copy_function=_link)
    ours = 0
    site = [*env.glob("lib/python*/site-packages/__editable__*"), *env.glob("lib/*/*/*.pth")]
    for path in {*site, *env.glob("bin/*")}:
        if not path.is_file() or path.is_symlink():
            continue
        data = path.read_bytes()
        moved = data.replace(sys.prefix.encode(), str(env).encode()) if b"\0" not in data else data
        if path in site:
            moved = moved.replace(str(ROOT).encode(), str(folder).encode())
            ours += moved != data
        if moved != data:
            mode = path.stat().st_mode
            path.unlink()  # a link to the checkout's own
            path.write_bytes(moved)
            path.chmod(mode)
    python = env / "bin/python"
    code = f"import {PACKAGE}; print({PACKAGE}.__file__)"
    loaded = subprocess.run(
        [python, "-c", code], cwd="/", env=_environment(folder), capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    if not ours or not Path(loaded).is_relative_to(folder):
        raise SystemExit(f"the copy loads {loaded.strip()}: install the package with pip -e first")
    return python


def _link(source: str, copy: str) -> None:
    try:
        os.link(source, copy)
    except OSError:
        shutil.copy2(source, copy)


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    temporary = folder.with_name(f"{folder.name}.tmp")
    temporary.mkdir(exist_ok=True)
    return {**kept, "TMPDIR": str(temporary)}


_FAILED = ("FAILED ", "ERROR ")
PROBES = """import mmap, os, struct, time

def _last():
    name = os.environ.get("_".join(("PYTEST", "XDIST", "WORKER")), "none")
    try:
        return mmap.mmap(os.open(f"{folder}/{{name}}", os.O_RDWR), 0)
    except OSError:  # walled in
        return mmap.mmap(-1, {size})

last = _last()

def at(number):
    struct.pack_into("q", last, 8 * number, time.monotonic_ns())
    return True
"""
PLUGIN = """import json, os, time
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    begun = time.monotonic_ns()
    result = yield
    names = {{"none", os.environ.get("PYTEST_XDIST_WORKER", "none")}}
    maps = [memoryview(open(f"{folder}/{{name}}", "rb").read()).cast("q") for name in names]
    reached = [n for n in range({size} // 8) if any(last[n] >= begun for last in maps)]
    with open("{folder}/log", "a") as file:
        took = (time.monotonic_ns() - begun) / 1e9
        file.write(json.dumps([item.location[0], took, reached]) + "\\n")
    return result
"""


def reaching(
    faults: list[Fault], folder: Path, python: Path, suite: list[str], limit: float
) -> tuple[list[list[str]], list[str]]:
    """Run the tests with a probe in each faulty line; return who reaches it, and tests that fail.

    Per fault the test files that do, first those that are quick and reach few others: none of a
    line that runs when its module is loaded.
    """
    marks, size = folder / PACKAGE / "marks", 8 * len(faults)  # no input of an op, as all there
    marks.mkdir()
    for name in ("none", *(f"gw{n}" for n in range(os.cpu_count() or 1))):
        (marks / name).write_bytes(bytes(size))
    (folder / PACKAGE / "probes.py").write_text(PROBES.format(folder=marks, size=size))
    (folder / "probing.py").write_text(PLUGIN.format(folder=marks, size=size))
    lines: dict[str, list[str]] = {}
    numbers: dict[tuple[str, int], int] = {}
    for number, fault in enumerate(faults):
        if numbers.setdefault((fault.path, fault.line), number) == number:
            text = (folder / fault.path).read_text(encoding="utf-8")
            call = f'__import__("{PACKAGE}.probes", fromlist=["at"]).at({number})'
            changed = lines.setdefault(fault.path, text.splitlines(keepends=True))
            changed[fault.line - 1] = fault.probed.replace("PROBE", call)
    words = ["-p", "probing", "-rfE", *suite]
    with contextlib.ExitStack() as stack:
        for name, changed in lines.items():
            stack.enter_context(_changed(folder / name, "".join(changed)))
        code, output = run_tests(folder, python, words, limit, stop=False)
    if code not in (0, 1):
        raise SystemExit(f"the tests cannot run without a fault\n{output[-4000:]}")
    log = [json.loads(line) for line in (marks / "log").read_text().splitlines()]
    shutil.rmtree(marks)
    (folder / PACKAGE / "probes.py").unlink()
    seconds: dict[str, float] = {}
    found: list[set[str]] = [set() for _ in faults]
    for name, took, reached in log:
        seconds[name] = seconds.get(name, 0) + took
        for number in reached:
            found[number].add(name)
    of = [found[numbers[fault.path, fault.line]] for fault in faults]
    failing = [line.split(" - ")[0] for line in output.splitlines() if line.startswith(_FAILED)]
    lines_of = {name: sum(name in names for names in found) for name in seconds}
    return (
        [sorted(names, key=lambda name: seconds[name] * lines_of[name]) for names in of],
        [name.partition(" ")[2] for name in failing],
    )


def run_tests(
    folder: Path, python: Path, words: list[str], limit: float, stop: bool = True
) -> tuple[int, str]:
    """Run pytest in a copy; return its code, or -1 at the limit, and its last lines."""
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    command += ["-x"] if stop else []
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=_environment(folder), stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            _end_all(folder, process)
        out.seek(0)
        return code, out.read()


def _end_all(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """End the tests and whatever they left behind: programs of the copy's environment."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(f"{folder}/".encode()):
                os.kill(int(path.parent.name), signal.SIGKILL)
    temporary = Path(_environment(folder)["TMPDIR"])
    shutil.rmtree(temporary, ignore_errors=True)


def _said_by(output: str) -> str:
    # the reason tells a wrong answer from one that came late
    named = [line for line in output.splitlines() if line.startswith(("E  ", *_FAILED))]
    return "\n".join(named[-6:]) or output.strip().rpartition("\n")[2]


@contextlib.contextmanager
def _changed(path: Path, text: str) -> Iterator[None]:
    """Give a file another text for a while; bytecode of it is not taken for the file's own then."""
    times, before = path.stat(), path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(before, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def attempt(
    fault: Fault, folder: Path, python: Path, parts: list[list[str]], limit: float
) -> Trial:
    """Plant a fault in a copy, run the tests there, and take it out again."""
    begun = time.monotonic()
    path = folder / fault.path
    with _changed(path, fault.apply(path.read_text(encoding="utf-8"))):
        for words in parts:
            code, output = run_tests(folder, python, words, limit)
            if code not in (0, 5):
                by = "time limit" if code == -1 else _said_by(output)
                return Trial(fault, True, by, time.monotonic() - begun)
    return Trial(fault, False, "", time.monotonic() - begun)


@contextlib.contextmanager
def copies(jobs: int) -> Iterator[queue.Queue[tuple[Path, Path]]]:
    """Make the copies, and remove them at the end."""
    with tempfile.TemporaryDirectory(prefix="suite-") as together:
        free: queue.Queue[tuple[Path, Path]] = queue.Queue()
        for number in range(jobs):
            folder = Path(together).resolve() / f"copy{number}"
            free.put((folder, make_copy(folder)))
        yield free


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="faults (100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+", help="try these of the drawn faults, from 0")
    parser.add_argument("--jobs", type=int, default=1, help="copies at a time")
    parser.add_argument("--tests", default="", help="arguments of pytest, as one word")
    parser.add_argument("--rooms", nargs="+", choices=sorted(ROOMS), default=sorted(ROOMS))
    parser.add_argument("--limit", type=float, help="seconds for one run (4 × the clean one + 60)")
    parser.add_argument("--show", action="store_true", help="print the faults; run nothing")
    parser.add_argument("--near", action="store_true", help="run only tests that reach the fault")
    parser.add_argument(
        "--log", type=Path, help="add each trial to this file; those that it holds are not repeated"
    )
    return parser.parse_args(words)


def main() -> int:
    options = parse()
    faults = draw(options.count, options.seed, options.rooms)
    faults = [faults[n] for n in options.only or range(len(faults))]
    if options.show:
        print("\n".join(fault.diff() for fault in faults))
        return 0
    suite = shlex.split(options.tests)
    log = options.log.read_text().splitlines() if options.log and options.log.exists() else []
    known = [json.loads(line) for line in log]
    trials = [Trial(Fault(**one.pop("fault")), **one) for one in known[1:]]
    trials = [trial for trial in trials if trial.fault in faults]

    def record(one: object) -> None:
        if options.log:
            with options.log.open("a") as file:
                file.write(json.dumps(one) + "\n")

    with copies(options.jobs) as free:
        if not known:
            place = free.get()
            begun = time.monotonic()
            reach, failing = reaching(faults, *place, suite, options.limit or 3600.0)
            free.put(place)
            known = [{"seconds": time.monotonic() - begun, "reach": reach, "failing": failing}]
            record(known[0])
        print(f"without a fault: {known[0]['seconds']:.0f} s; failing, left out:", flush=True)
        print("\n".join(known[0]["failing"]), flush=True)
        limit = options.limit or 4 * known[0]["seconds"] + 60
        sound = [f"--deselect={name}" for name in known[0]["failing"]]
        lock = threading.Lock()

        def one(fault: Fault) -> Trial:
            place = free.get()
            files = known[0]["reach"][faults.index(fault)]
            first, more = files[:SPECIFIC], files[SPECIFIC:]
            parts = [["-n", "0", *first, *sound]] if first else []
            parts += [[*suite, *more, *sound]] if more else []
            parts += [[*suite, *sound]] if not options.near else []
            try:
                trial = attempt(fault, *place, parts, limit)
            finally:
                free.put(place)
            with lock:
                said = f"found     {trial.by}" if trial.found else "SURVIVED"
                print(f"{said}  [{trial.seconds:.0f} s]\n{fault.diff()}", flush=True)
                record(asdict(trial))
            return trial

        tried = {trial.fault for trial in trials}
        with ThreadPoolExecutor(options.jobs) as pool:
            trials += pool.map(one, [fault for fault in faults if fault not in tried])
    survivors = [trial for trial in trials if not trial.found]
    found = len(trials) - len(survivors)
    print(
        f"\nfound {found} of {len(trials)} faults; the survivors:"
        if survivors
        else f"\nfound all {found}"
    )
    print("\n".join(trial.fault.diff() for trial in survivors))
    return 0 if found >= FLOOR * len(trials) else 1


if __name__ == "__main__":
    sys.exit(main())
