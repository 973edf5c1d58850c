"""Sentences are made and shown, never searched, split or compared: what they say is data."""

from __future__ import annotations

import ast

import pytest
from import_graph import ROOT, every_node

from gpuemu_flow.reports.text import MAX_WRITTEN, note_lines
from gpuemu_flow.types import CheckResult, Verdict

SENTENCES = frozenset(
    ("message", "messages", "hint", "reason", "reasons", "note", "notes", "sentence", "problems",
     "said", "told", "why")
)  # fmt: skip
"""Names of attributes and variables that hold sentences for people."""

METHODS = frozenset(
    ("split", "rsplit", "partition", "rpartition", "startswith", "endswith", "removeprefix",
     "removesuffix", "find", "rfind", "index", "replace")
)  # fmt: skip
"""Methods of a text that look into it; ``splitlines`` only lays it out."""

READERS = {
    "artifacts/cubin.py": "a note of an ELF file is no sentence",
    "config/report.py": "the key that a message names is shown as the template's; nothing is read",
    "emulator/described.py": "what was said there is a table",
    "runners/worker.py": "a message of a worker is a JSON object",
    "wire/launch.py": "a message of a daemon is a JSON object",
}


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        return _name(node.args[0]) if node.args else ""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def parsed(text: str) -> list[int]:
    """Find the lines that look into a sentence."""
    found = []
    for node in every_node(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called, words = node.func, [_name(argument) for argument in node.args[:2]]
            own = called.attr in METHODS and _name(called.value) in SENTENCES
            by_pattern = called.attr in ("search", "match", "fullmatch", "findall", "finditer")
            if own or (by_pattern and SENTENCES & set(words)):
                found.append(node.lineno)
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            value = getattr(node.left, "value", None)
            text_in = isinstance(node.left, ast.JoinedStr) or isinstance(value, str)
            many = _name(node.comparators[0]).endswith("s")
            if text_in and not many and _name(node.comparators[0]) in SENTENCES:
                found.append(node.lineno)
    return found


def test_no_module_looks_into_a_sentence() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for path in sorted(ROOT.rglob("*.py"))
        if (lines := parsed(path.read_text(encoding="utf-8")))
    }
    assert {name: lines for name, lines in found.items() if name not in READERS} == {}
    assert set(READERS) <= set(found)


@pytest.mark.parametrize(
    "line",
    [
        "a, b = failure.message.split(': ')", "note.startswith(STDERR)", "'NaN' in reason",
        "re.search(r'x', problem.hint)", "_PLACE.match(str(message))", "notes[0].partition(':')",
        "f'{op}: ' in message",
    ],
)  # fmt: skip
def test_looking_into_a_sentence_is_seen(line: str) -> None:
    assert parsed(line) == [1]


def test_what_a_program_wrote_is_told_from_a_note_of_ours() -> None:
    written = "\n".join(["stderr:", *map(str, range(20))])
    result = CheckResult(Verdict.ERROR, notes=("stderr: ours",), stderr=written)
    assert note_lines(result) == ["stderr: ours", *(f"| {n}" for n in range(20 - MAX_WRITTEN, 20))]
    again = CheckResult.from_json(result.to_json())
    assert (again.notes, again.stderr) == (result.notes, written)
    assert result.to_json()["notes"] == ["stderr: ours", f"stderr:\n{written}"]
