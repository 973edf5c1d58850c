"""Files of other collections are hostile: read as text, and refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuemu_flow.services.problems.flashinfer import (
    axes_of,
    find_flashinfer,
    rules_of_axes,
)
from gpuemu_flow.services.problems.gpumode import YamlError, find_gpumode, read_yaml
from gpuemu_flow.services.problems.probing import ProbeError

REFERENCE = (
    "def generate_input(size, seed): ...\ndef ref_kernel(data): ...\n"
    "check_implementation = make_match_reference(ref_kernel, rtol=1e-2)\n"
)
BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
DEFINITION: dict[str, Any] = {
    "name": "d",
    "axes": {"B": {"type": "var"}, "E": {"type": "var"}, "T": {"type": "var"},
             "N": {"type": "const", "value": 4}},
    "constraints": ["E == B + 1", "T == indptr[-1].item()", "T <= 8 * B"],
    "inputs": {"x": {"shape": ["T"], "dtype": "float32"},
               "indptr": {"shape": ["E"], "dtype": "int32"}},
    "outputs": {"out": {"shape": ["B"], "dtype": "float32"}},
    "reference": "def run(x, indptr): ...",
}  # fmt: skip
SOLUTION: dict[str, Any] = {
    "name": "s",
    "definition": "d",
    "spec": {"language": "python", "entry_point": "main.py::run"},
    "sources": [{"path": "main.py", "content": "def run(): ..."}],
}


@pytest.mark.parametrize(
    "text",
    [BOMB, "a: !!python/object/apply:os.system [x]", "[" * 5000, "a: [", "\x00", "- " * 3000,
     "a: 9" + "9" * 5000, "? [a, b]\n: 1\n? {}\n: 2", "x" * (2 << 20), "&a [*a]"],
)  # fmt: skip
def test_yaml_that_is_no_plain_data_is_refused(text: str) -> None:
    pytest.importorskip("yaml", reason="no PyYAML")
    with pytest.raises(YamlError):
        read_yaml(text.encode())


def task(folder: Path, text: str = "tests:\n  - {size: 4, seed: 1}\n") -> Path:
    place = folder / "group" / "problem"
    place.mkdir(parents=True)
    (place / "task.yml").write_text(text)
    (place / "reference.py").write_text(REFERENCE)
    return place


def test_a_task_is_read(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="no PyYAML")
    place = task(tmp_path)
    (place / "good.py").write_text("def custom_kernel(data): ...")
    (place / "cuda.py").write_text(
        "from torch.utils.cpp_extension import load_inline\nload_inline('x')\n"
        "def custom_kernel(data): ...\n"
    )
    tasks, left = find_gpumode(tmp_path)
    assert [one.name for one in tasks[0].source.candidates] == ["cuda", "good"]
    assert tasks[0].tests == ({"size": 4},)
    assert tasks[0].tolerance == {"rtol": 1e-2, "atol": 1e-8}
    assert left == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("lang: cu\n", "GPU-only"),
        ("multi_gpu: true\n", "several devices"),
        ("[]", "no mapping"),
        ("tests: 7", "no list"),
        ("tests: [{'a b': 1}]", "argument"),
        ("tests: [{a: {b: 1}}]", "argument"),
        ("files: [{name: reference.py, source: ../../../etc/passwd}]", "outside of its group"),
        ("files: [{name: ../x.py, source: reference.py}]", "names a file"),
        ("files: [{name: utils.py, source: ../utils.py}]", "missing"),
        ("files: []", "no reference"),
        (BOMB, "alias"),
    ],
)
def test_a_hostile_task_is_left_out(tmp_path: Path, text: str, reason: str) -> None:
    pytest.importorskip("yaml", reason="no PyYAML")
    task(tmp_path, text)
    tasks, left = find_gpumode(tmp_path)
    assert tasks == []
    assert reason in left[0].reason


def written(folder: Path, *objects: Any) -> Path:
    for at, content in enumerate(objects):
        (folder / f"{at}.json").write_text(json.dumps(content))
    return folder


def test_constraints_become_dims_and_offsets(tmp_path: Path) -> None:
    definitions, left = find_flashinfer(written(tmp_path, DEFINITION, SOLUTION))
    assert left == []
    axes = axes_of(definitions[0])
    assert (axes.free, axes.derived) == (("B", "T"), {"E": "B + 1"})
    assert (axes.offsets, axes.kept) == ({"indptr": "T"}, ["T <= 8 * B"])
    assert rules_of_axes(definitions[0], axes) == {"B": ("E", 1, -1, 1)}
    assert [one.name for one in definitions[0].solutions] == ["s"]


@pytest.mark.parametrize(
    "text", ["__import__('os')", "B", "B ==", "B == B ** E", "B == len(x)", "(" * 500, "B < E < T"]
)
def test_a_constraint_that_is_not_read_is_an_error(tmp_path: Path, text: str) -> None:
    changed = {**DEFINITION, "constraints": [text]}
    definitions, _ = find_flashinfer(written(tmp_path, changed))
    with pytest.raises(ProbeError, match="not read"):
        axes_of(definitions[0])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("axes", []),
        ("axes", {"a b": {"type": "var"}}),
        ("axes", {"B": {"type": "const", "value": True}}),
        ("axes", {"B": 7}),
        ("inputs", {"x": {"shape": ["Z"], "dtype": "float32"}}),
        ("inputs", {"x": {"shape": [7], "dtype": "float32"}}),
        ("inputs", {"x": {"shape": "B", "dtype": "float32"}}),
        ("inputs", {"x": {"shape": ["B"], "dtype": "float4_e2m1"}}),
        ("inputs", {"x": {"shape": ["B"], "dtype": ["float32"]}}),
        ("inputs", {'x"]': {"shape": ["B"], "dtype": "float32"}}),
        ("outputs", {}),
        ("constraints", "E == B"),
        ("reference", 7),
        ("name", None),
    ],
)
def test_a_hostile_definition_is_left_out(tmp_path: Path, key: str, value: object) -> None:
    definitions, left = find_flashinfer(written(tmp_path, {**DEFINITION, key: value}))
    assert definitions == []
    assert len(left) == 1


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("spec", {"language": "cuda", "entry_point": "main.cu::run"}, "load_inline"),
        ("spec", {"language": "python", "entry_point": "other.py::run"}, "entry point"),
        ("spec", 7, "spec"),
        ("sources", [{"path": "../main.py", "content": ""}], "path"),
        ("sources", [{"path": "/main.py", "content": ""}], "path"),
        ("sources", [{"path": "main.py", "content": 7}], "content"),
        ("sources", {}, "sources"),
        ("definition", "other", "no definition"),
    ],
)
def test_a_hostile_solution_is_left_out(
    tmp_path: Path, key: str, value: object, reason: str
) -> None:
    definitions, left = find_flashinfer(written(tmp_path, DEFINITION, {**SOLUTION, key: value}))
    assert definitions[0].solutions == []
    assert reason in left[0].reason


def test_json_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    (tmp_path / "text.json").write_text("{")
    definitions, left = find_flashinfer(tmp_path)
    assert (definitions, len(left)) == ([], 3)
