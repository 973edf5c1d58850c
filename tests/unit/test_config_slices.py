"""The op's share of action keys: what changes a result is in it, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from config_workspace import DATA, ConfigWorkspace
from for_each import for_each

from gpuemu_flow.config.model import to_slice
from gpuemu_flow.model.types import Json

OP = """
[[ops]]
name = "{name}"
op = "scripts/softmax.py:softmax"
reference = "scripts/ref_softmax.py"
input_names = ["x"]
schema = {{ dims = {{ N = [1, 7] }}, inputs = {{ x = ["N"] }} }}
"""


@pytest.fixture
def workspace(tmp_path: Path) -> ConfigWorkspace:
    return ConfigWorkspace(tmp_path)


def slice_of(workspace: ConfigWorkspace, keys: str = "", rest: str = "", name: str = "f") -> Json:
    config = workspace.load(OP.format(name=name) + keys + "\n" + rest)
    return json.loads(json.dumps(to_slice(config.op(name), "float32"), allow_nan=False))


def changed_parts(workspace: ConfigWorkspace, keys: str, rest: str = "") -> set[str]:
    before, after = slice_of(workspace), slice_of(workspace, keys, rest)
    return {part for part in before if before[part] != after[part]}


@for_each(
    ("keys", "parts"),
    [
        ("kwargs = { a = 1 }", {"program"}),
        ('env = { A = "1" }', {"program"}),
        ("timeout = 5", {"program"}),
        ('memory_limit = "1GB"', {"program"}),
        ('isolation = "spawn"', {"program"}),
        ("cases = 5", {"cases"}),
        ('layouts = ["contiguous"]', {"cases"}),
        ('strategies = ["core"]', {"cases"}),
        ('tolerance = "table"', {"compare", "reference"}),
        ("tolerances = { float32 = 1 }", {"compare"}),
        ('nan_policy = "ignore"', {"compare"}),
        ('precision = "input"', {"compare"}),
        ('invariants = ["finite"]', {"compare"}),
        ("invariants = { shape_preserved = true }", {"compare"}),
        ('mutates = ["x"]', {"op", "compare"}),
        ("deterministic = false", {"op", "compare"}),
        ('reference_dtype = "float64"', {"reference", "compare"}),
        # Nothing that changes a result:
        ('tolerance = "auto"', set()),
        ('dtypes = ["float32", "float16"]', set()),
        ('tolerance = "auto"\ntolerances = { float16 = 1 }', set()),
        ('depends = ["scripts/*.py"]', set()),
        ("fuzz_iterations = 3", set()),
        ("# a comment\n\n\n", set()),
    ],
)
def test_which_part_a_key_affects(keys: str, parts: set[str], workspace: ConfigWorkspace) -> None:
    assert changed_parts(workspace, keys) == parts


@for_each(
    "rest",
    [
        OP.format(name="other") + "cases = 3",
        "[execution]\nparallel = 4\nmax_parallel_refs = 1",
        "[ci]\nparallel_jobs = 7",
        "[cache]\nsize_limit = '1GB'",
        "[policies]\nwarn_threshold = 0.5",
        "[daemon]\nlog_level = 'trace'",
        "[targets]\na = ['f']",
        "[project]\nname = 'renamed'",
        "[validation]\nseed = 7",
    ],
)
def test_another_part_of_the_file_affects_nothing(rest: str, workspace: ConfigWorkspace) -> None:
    assert changed_parts(workspace, "", rest) == set()


def test_defaults_written_out_are_the_same_as_defaults(workspace: ConfigWorkspace) -> None:
    keys = 'cases = 24\ntimeout = 60.0\nisolation = "fork"\nstrategies = ["stress", "core"]\n'
    assert changed_parts(workspace, keys) == set()


def test_a_renamed_op_and_a_moved_workspace_have_the_same_slice(
    workspace: ConfigWorkspace, tmp_path: Path
) -> None:
    before = slice_of(workspace)
    assert slice_of(workspace, name="renamed") == before
    text = json.dumps(before)
    assert str(tmp_path) not in text
    shutil.move(workspace.root, tmp_path / "moved")
    workspace.root = tmp_path / "moved"
    assert slice_of(workspace) == before


def test_programs_are_told_apart(workspace: ConfigWorkspace) -> None:
    config = workspace.load((DATA / "valid" / "ours.toml").read_text())
    slices = [to_slice(op) for op in config.ops]
    assert slices[2]["op"]["ref"]["argv"] == ["bin/reference", "--fast", ""]
    texts = [json.dumps(s["op"]["ref"]) for s in slices]
    assert len(set(texts)) == len(texts)
    assert not any(str(workspace.root) in json.dumps(s) for s in slices)


def test_every_value_of_kwargs_counts_in_its_type(workspace: ConfigWorkspace) -> None:
    values = ["1", "1.0", '"1"', "true", "[1]", "{ v = 1 }", "inf", "-inf", '"inf"']
    slices = [
        json.dumps(slice_of(workspace, f"kwargs = {{ v = {value} }}"), sort_keys=True)
        for value in values
    ]
    assert len(set(slices)) == len(values)
