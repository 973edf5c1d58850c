"""Plant random one-line faults in the package, one at a time, and count those that the tests find.

Each fault is made in a copy of the checkout with an environment of its own, so that workers, fork
servers and daemons load the faulty package too. A copy runs the tests with ``-x``: first those near
the fault, then all. A survivor is printed as a diff: it asks for a test, or for the reason why
nothing can show it.

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
ROOMS = {
    "judging": ("judge", "judging"),
    "cases": ("cases",),
    "build": ("build", "engine", "graph", "inputs", "selection"),
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
        after = (raw[: node.col_offset] + new.encode() + raw[node.end_col_offset :]).decode()
        name = path.relative_to(ROOT).as_posix()
        made.append(Fault(room, name, node.lineno, kind, before, after))
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


def near(fault: Fault) -> list[str]:
    """Return the test files that name the module of a fault, or that module's package."""
    *_, package, module = Path(fault.path).with_suffix("").parts
    words = {module.strip("_"), f"{PACKAGE}.{package} import {module}"}
    words |= {fault.path[:-3].replace("/", ".")}
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if module in path.stem or any(word in path.read_text() for word in words - {module}):
            found.append(path.relative_to(ROOT).as_posix())
    return found


def run_tests(folder: Path, python: Path, words: list[str], limit: float) -> tuple[int, str]:
    """Run pytest in a copy; return its code, or -1 at the limit, and its last lines."""
    command = [str(python), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *words]
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
    named = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return named[0] if named else output.strip().rpartition("\n")[2]


def attempt(fault: Fault, folder: Path, python: Path, suite: list[str], limit: float) -> Trial:
    """Plant a fault in a copy, run the tests there, and take it out again."""
    begun = time.monotonic()
    path = folder / fault.path
    times = path.stat()
    text = path.read_text(encoding="utf-8")
    path.write_text(fault.apply(text), encoding="utf-8")
    try:
        parts = [["-n", "0", *files], suite] if (files := near(fault)) else [suite]
        for words in parts:
            code, output = run_tests(folder, python, words, limit)
            if code not in (0, 5):
                by = "time limit" if code == -1 else _said_by(output)
                return Trial(fault, True, by, time.monotonic() - begun)
    finally:
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
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
    parser.add_argument("--unchecked", action="store_true", help="do not run the clean copy first")
    parser.add_argument("--show", action="store_true", help="print the faults; run nothing")
    parser.add_argument("--json", type=Path, help="write all trials to this file")
    return parser.parse_args(words)


def main() -> int:
    options = parse()
    faults = draw(options.count, options.seed, options.rooms)
    faults = [faults[n] for n in options.only or range(len(faults))]
    if options.show:
        print("\n".join(fault.diff() for fault in faults))
        return 0
    suite = shlex.split(options.tests)
    with copies(options.jobs) as free:
        limit = options.limit or 3600.0
        if not options.unchecked:
            folder, python = free.get()
            begun = time.monotonic()
            code, output = run_tests(folder, python, suite, limit)
            free.put((folder, python))
            if code != 0:
                print(output[-4000:])
                raise SystemExit("the tests fail without a fault")
            limit = options.limit or 4 * (time.monotonic() - begun) + 60
            print(f"without a fault: {time.monotonic() - begun:.0f} s", flush=True)
        lock = threading.Lock()

        def one(fault: Fault) -> Trial:
            place = free.get()
            try:
                trial = attempt(fault, *place, suite, limit)
            finally:
                free.put(place)
            with lock:
                said = f"found     {trial.by}" if trial.found else "SURVIVED"
                print(f"{said}  [{trial.seconds:.0f} s]\n{fault.diff()}", flush=True)
            return trial

        with ThreadPoolExecutor(options.jobs) as pool:
            trials = list(pool.map(one, faults))
    if options.json:
        options.json.write_text(json.dumps([asdict(trial) for trial in trials], indent=1))
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
