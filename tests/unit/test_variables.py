"""Every environment variable that the program reads is on the page of the command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from import_graph import every_node

REPOSITORY = Path(__file__).resolve().parents[2]
ELSEWHERE = {
    "GPUEMU_KWARGS": "the worker's own word to a script",
    "OPENBLAS_NUM_THREADS": "the library's own, given a default",
    "TRITON_CACHE_DIR": "Triton's own, set aside and put back",
    "PYTEST_XDIST_TESTRUNUID": "pytest-xdist's word to its processes",
    "PATH": "the system's own",
    "USER": "the system's own",
    "TORCHINDUCTOR_CACHE_DIR": "PyTorch's own, given a default",
    "SUDO_UID": "sudo's own word on who runs it",
    "PYTHONPATH": "Python's own",
    "LOGNAME": "the system's own, the user's name",
    "LC_CTYPE": "the system's own, as the run had it",
    "CXX": "the compiler's own, as make knows it",
    "LD_LIBRARY_PATH": "the system's own",
    "NVCC_APPEND_FLAGS": "nvcc's own",
    "TORCH_EXTENSIONS_DIR": "PyTorch's own",
    "MAX_JOBS": "PyTorch's own, the number of compilers at once",
    "GPUEMU_ARCH": "the word of `exec` to the processes below it",
    "GPUEMU_PACKAGE": "the word of `exec` to the processes below it",
    "GPUEMU_PLANTED": "the word of `mutate` to the worker that it starts",
    "GPUEMU_BUILD": "the worker's own word to what builds its extension",
}


def read_in(tree: ast.AST) -> Iterator[str]:
    """Names that ``environ`` is asked for."""
    for node in every_node(tree):
        asked, key = None, None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            asked, key = node.func.value, node.args[0]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            asked, key = node.value, node.slice
        elif isinstance(node, ast.Compare):
            asked, key = node.comparators[0], node.left
        named = asked is not None and re.fullmatch(r"(\w+\.)?environ", ast.unparse(asked))
        if named and isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value


def test_variables_are_documented() -> None:
    page = (REPOSITORY / "docs" / "cli.md").read_text()
    table = page.partition("## Environment variables")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`([A-Z_]+)`", table))
    texts = [path.read_text() for path in (REPOSITORY / "gpuemu_flow").rglob("*.py")]
    asking = [text for text in texts if "environ" in text]
    read = {name for text in asking for name in read_in(ast.parse(text))}
    assert {"GITHUB_ACTIONS", "CI_PROJECT_DIR", "GPUEMU_CONFIG", "TERM"} <= read
    assert read - documented - set(ELSEWHERE) == set()
