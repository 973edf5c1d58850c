"""Data between modules has types: few reads by a constant string key outside of what parses."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from import_graph import ROOT

SERIALISING = {
    "client/calls.py": "replies of a daemon",
    "client/connection.py": "replies of a daemon",
    "config/parse_kernels.py": "tables of gpuemu.toml",
    "config/parse_ops.py": "tables of gpuemu.toml",
    "config/parse_sections.py": "tables of gpuemu.toml",
    "config/programs.py": "tables of gpuemu.toml",
    "config/tolerance_edit.py": "the text of gpuemu.toml, edited in place",
    "cases/schema.py": "schemas in gpuemu.toml and in requests",
    "artifacts/sass.py": "what nvdisasm writes",
    "emulator/described.py": "described launches in gpuemu.toml and in requests",
    "lsp/commands.py": "what commands print with --format json",
    "problems/adapters/flashinfer.py": "the description that an import wrote beside it",
    "problems/adapters/flashinfer_probe.py": "answers of an imported problem's own code",
    "problems/adapters/gpumode_probe.py": "answers of an imported problem's own code",
    "problems/adapters/kernelbench_probe.py": "answers of an imported problem's own code",
    "problems/found_gpumode.py": "task.yml of GPU MODE",
    "config/parse_rules.py": "tables of gpuemu.toml",
    "problems/found_flashinfer.py": "definitions, workloads and solutions of FlashInfer-Bench",
    "problems/adapters/gpumode.py": "the description that an import wrote beside it",
    "problems/adapters/kernelbench.py": "the description that an import wrote beside it",
    "config/load.py": "tables of gpuemu.toml",
    "problems/adapters/solution.py": "the file that an import wrote of a solution",
    "cluster/messages.py": "messages between a coordinator and workers of a cluster",
    "runners/triton_arguments.py": "what Triton's compiler notes of descriptors",
    "problems/gpuemu.py": "gpuemu.toml of gpuemu 0.1.0",
    "problems/published.py": "gpuemu.toml of gpuemu 0.1.0",
    "problems/published_corpus.py": "meta.json and op_schema.json of gpuemu 0.1.0",
    "results/shard_document.py": "JSON reports of shards",
    "problems/answers.py": "answers of an imported problem's own code",
    "reports/report_sarif.py": "SARIF documents",
    "results/from_manifests.py": "manifests of stages",
    "runners/answers.py": "messages between a run and its workers",
    "runners/codec.py": "JSON of op scripts",
    "runners/shim.py": "JSON of op scripts",
    "runners/worker.py": "messages between a run and its workers",
}
"""Modules whose purpose is to read or write a format, and that format."""

PARSERS = re.compile(r"(from|to)_(json|dict|message)|\w+_(from|to)_json|load|save")
"""Functions that turn a format into data or the reverse."""

MOST_PER_THOUSAND = 4.5


def reads(tree: ast.AST) -> int:
    """Count ``x["name"]`` and ``x.get("name")`` outside of functions that parse or write."""
    found = 0
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and PARSERS.fullmatch(node.name.lstrip("_")):
            continue
        found += _is_read(node) + reads(node)
    return found


def _is_read(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        owner, key = node.value, node.slice
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        if node.func.attr != "get":
            return False
        owner, key = node.func.value, node.args[0]
    else:
        return False
    if "environ" in ast.unparse(owner):  # the environment is no data of ours
        return False
    return isinstance(key, ast.Constant) and isinstance(key.value, str)


def counted(folder: Path) -> tuple[dict[str, int], int]:
    """Count reads by file, and all lines, outside of `SERIALISING`."""
    found, lines = {}, 0
    for path in sorted(folder.rglob("*.py")):
        name, text = path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")
        if name not in SERIALISING:
            found[name] = reads(ast.parse(text))
            lines += text.count("\n")
    return found, lines


def test_few_values_are_read_by_a_string_key() -> None:
    found, lines = counted(ROOT)
    assert lines > 50_000
    worst = sorted(((count, name) for name, count in found.items() if count), reverse=True)[:20]
    assert sum(found.values()) / lines * 1000 < MOST_PER_THOUSAND, worst


def test_each_module_that_is_left_out_exists_and_reads_by_key() -> None:
    counts = {n: reads(ast.parse((ROOT / n).read_text(encoding="utf-8"))) for n in SERIALISING}
    assert {name: count for name, count in counts.items() if count <= 3} == {}


def test_reads_are_seen() -> None:
    text = 'a["b"]\na.get("b", 0)\nx["b"] = y["c"]\na[0]\na.get(b)\nos.environ.pop("b")\n'
    assert reads(ast.parse(text)) == 3
    assert reads(ast.parse('os.environ["HOME"]\nenviron.get("HOME")\n')) == 0
    assert reads(ast.parse('def from_json(d):\n    d["a"]\ndef use(d):\n    d["a"]\n')) == 1
