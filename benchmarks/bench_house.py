"""Count what the house weighs, and fail beyond its bounds: lines, files, docstrings, imports.

All is read from the sources, except the files that the README's one-op run enters in the main
process, which are counted in a real run (``--no-run`` leaves that out). ``--issue 13`` applies the
bounds of the second step.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "gpuemu_flow"

BOUNDS = {
    "lines with a token": (72_000, 60_000),
    "files": (450, 350),
    "docstring lines": (12_000, 12_000),
    "hand-written JSON converters": (20, 20),
    "imports inside of functions": (120, 120),
    "top-level packages": (18, 18),
    "representations of a case": (6, 4),
    "files entered by a one-op run": (None, 100),
}
"""The bound of each figure after the first step, and after the second; None without one."""

NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip
CONVERTER = re.compile(
    r"_?((to|from|as|of)_(json|dict|plain|document)|\w+_(to|from)_(json|dict)|\w+_as_json)"
)
CASE_FIELDS = {
    "seed", "dtype", "strategy", "layout", "layouts", "shape", "shapes", "dims", "shape_class",
}  # fmt: skip
"""A class with at least three of these as fields, and a seed or an index, describes a case."""
MANY = {"cases", "count", "iterations"}
"""Fields of a class that describes how many cases are drawn, and no single one."""

ONE_OP = {
    "gpuemu.toml": """\
[project]
name = "mine"

[[ops]]
name = "swish"
op = "scripts/swish.py:swish"
reference = "scripts/swish_ref.py:swish"
input_names = ["x"]
dtypes = ["float32", "float16"]
""",
    "scripts/swish.py": """\
import numpy as np


def swish(x):
    half = x.astype(np.float32) / 2
    return (half + half * np.tanh(half)).astype(x.dtype)
""",
    "scripts/swish_ref.py": """\
import numpy as np


def swish(x):
    return x / (1 + np.exp(-x))
""",
}
"""The README's op."""

COUNTING = """\
import os
import sys
import threading

entered = set()
leave = os._exit


def note(frame, event, argument):
    entered.add(frame.f_code.co_filename)


def end(code=0):
    sys.setprofile(None)
    with open("entered", "w") as file:
        file.write("\\n".join(sorted(name for name in entered if "/gpuemu_flow/" in name)))
    sys.stdout.flush()
    leave(code)


from gpuemu_flow.front import main

os._exit = end  # by which the command leaves
sys.argv = ["gpuemu-flow", "run"]
os.register_at_fork(after_in_child=lambda: (sys.setprofile(None), setattr(os, "_exit", leave)))
threading.setprofile(note)
sys.setprofile(note)
try:
    code = main()
except SystemExit as ended:
    code = ended.code
end(code if isinstance(code, int) else 0)
"""


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def docstring_lines(tree: ast.AST) -> set[int]:
    """Lines of docstrings, those below attributes too."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                lines.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return lines


def token_lines(text: str) -> set[int]:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def converters(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if function and CONVERTER.fullmatch(node.name):
            yield node.name


def late_imports(tree: ast.AST) -> int:
    found = {
        (inner.lineno, inner.col_offset)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    }
    return len(found)


def case_classes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            fields = {
                statement.target.id
                for statement in node.body
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            }
            one = fields & {"seed", "index"} and not fields & MANY
            if one and len(fields & CASE_FIELDS) > 2 and "op" not in fields:
                yield node.name


def entered_files() -> list[str]:
    """Files of ours in which the README's one-op run calls a function, in its main process."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in ONE_OP.items():
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        Path(folder, "counting.py").write_text(COUNTING)
        done = subprocess.run(
            [sys.executable, "counting.py"], cwd=folder, capture_output=True, text=True, check=False
        )
        entered = Path(folder, "entered")
        if done.returncode or not entered.exists():
            sys.exit(f"the one-op run failed:\n{done.stdout}{done.stderr}")
        return entered.read_text().splitlines()


def measure(run: bool) -> tuple[dict[str, int], dict[str, list[str]]]:
    figures = dict.fromkeys(BOUNDS, 0)
    names: dict[str, list[str]] = {"representations of a case": [], "converters": []}
    for path in sources():
        text = path.read_text()
        tree = ast.parse(text)
        documented = docstring_lines(tree)
        figures["files"] += 1
        figures["docstring lines"] += len(documented)
        figures["lines with a token"] += len(token_lines(text) - documented)
        figures["imports inside of functions"] += late_imports(tree)
        place = str(path.relative_to(PACKAGE))
        names["converters"] += [f"{place}:{name}" for name in converters(tree)]
        names["representations of a case"] += [f"{place}:{name}" for name in case_classes(tree)]
    figures["hand-written JSON converters"] = len(names["converters"])
    figures["representations of a case"] = len(names["representations of a case"])
    figures["top-level packages"] = len(
        [folder for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists()]
    )
    if run:
        names["entered"] = entered_files()
        figures["files entered by a one-op run"] = len(names["entered"])
    else:
        del figures["files entered by a one-op run"]
    return figures, names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--issue", type=int, choices=(12, 13), default=12, help="whose bounds")
    parser.add_argument("--no-run", action="store_true", help="read the sources only")
    parser.add_argument("--names", action="store_true", help="print what was counted by name")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    figures, names = measure(run=not options.no_run)
    bounds = {name: pair[options.issue - 12] for name, pair in BOUNDS.items() if name in figures}
    beyond = [name for name, bound in bounds.items() if bound is not None and figures[name] > bound]
    if options.json:
        print(json.dumps({"figures": figures, "bounds": bounds, "beyond": beyond, "names": names}))
        return bool(beyond)
    for name, value in figures.items():
        bound = "" if bounds[name] is None else f"at most {bounds[name]:,}"
        print(f"{name:34} {value:>9,}  {bound:18} {'BEYOND' if name in beyond else ''}".rstrip())
    if options.names:
        for name, found in names.items():
            print(f"\n{name}:", *found, sep="\n  ")
    return bool(beyond)


if __name__ == "__main__":
    sys.exit(main())
