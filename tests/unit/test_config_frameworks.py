"""The kinds torch, jax and numpy in a configuration, and the framework as a kind by default."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from config_workspace import ConfigWorkspace
from for_each import for_each

from gpuemu_flow.config.model import OpConfig, to_slice


@pytest.fixture
def workspace(tmp_path: Path) -> ConfigWorkspace:
    made = ConfigWorkspace(tmp_path)
    (made.root / "t.py").write_text("import torch\ndef f(x): return x\ndef g(x): return x\n")
    (made.root / "j.py").write_text("def f(x):\n    from jax import numpy\n    return x\n")
    (made.root / "n.py").write_text("import numpy as np\ndef f(x): return x\n")
    return made


def text_of(op: str, reference: str = '"n.py:f"', keys: str = "", project: str = "") -> str:
    return (
        f'[project]\nname = "x"\n{project}\n[[ops]]\nname = "f"\n'
        f"reference = {reference}\nop = {op}\n{keys}\n"
    )


def op_of(workspace: ConfigWorkspace, *arguments: str, **more: str) -> OpConfig:
    return workspace.load(text_of(*arguments, **more)).op("f")


def kinds(workspace: ConfigWorkspace, *arguments: str, **more: str) -> tuple[str, str]:
    op = op_of(workspace, *arguments, **more)
    assert op.op is not None
    return op.op.kind, op.reference.kind


@for_each("kind", ["torch", "jax", "numpy"])
@for_each("place", ['file = "t.py"', 'path = "t.py"', 'module = "t"'])
def test_the_kinds(kind: str, place: str, workspace: ConfigWorkspace) -> None:
    op = op_of(workspace, f'{{ kind = "{kind}", {place}, function = "f" }}')
    assert op.op is not None and op.skip_reason == ""
    assert (op.op.kind, op.op.path, op.op.function) == (kind, workspace.root / "t.py", "f")


@pytest.mark.parametrize(
    "written", ['module_class = "M"', 'module = "M"', 'module_class = "M", init = {}, seed = 0']
)
def test_a_module_is_written_in_two_ways(written: str, workspace: ConfigWorkspace) -> None:
    (workspace.root / "m.py").write_text("class M: ...\n")
    op = op_of(workspace, f'{{ kind = "torch", file = "m.py", {written} }}')
    assert op.op is not None and op.op.function == "M"
    made = json.loads(op.op.argv[1])
    assert (made["init"], made["seed"] or 0, made["shared"]) == ({}, 0, False)


def test_what_makes_a_module_is_part_of_the_key(workspace: ConfigWorkspace) -> None:
    (workspace.root / "m.py").write_text("class M: ...\nclass R: ...\n")
    (workspace.root / "r.py").write_text("class R: ...\n")
    seen = set()
    for more in ("", ", init = { w = 4 }", ", init = { w = 5 }", ", init = [4]", ", seed = 1"):
        op = op_of(workspace, f'{{ kind = "torch", file = "m.py", module_class = "M"{more} }}')
        seen.add(json.dumps(to_slice(op)["op"], sort_keys=True))
    assert len(seen) == 5


def test_two_modules_share_the_seed_of_either(workspace: ConfigWorkspace) -> None:
    for name in ("m", "r"):
        (workspace.root / f"{name}.py").write_text("class M: ...\n")
    program = '{{ kind = "torch", file = "{}.py", module_class = "M"{} }}'
    for mine, other in ((", seed = 7", ""), ("", ", seed = 7"), (", seed = 7", ", seed = 7")):
        op = op_of(workspace, program.format("m", mine), program.format("r", other))
        assert op.op is not None
        for ref in (op.op, op.reference):
            made = json.loads(ref.argv[1])
            assert (made["seed"], made["shared"]) == (7, True)


@for_each(
    ("project", "keys", "expected"),
    [
        ("", "", ("callable", "callable")),
        ('framework = "pytorch"', "", ("torch", "callable")),
        ('framework = "torch"', "", ("torch", "callable")),
        ('framework = "numpy"', "", ("callable", "numpy")),
        ('framework = "jax"', "", ("callable", "callable")),
        ('framework = "tensorflow"', "", ("callable", "callable")),
        ("", 'framework = "pytorch"', ("torch", "callable")),
        ("", 'frameworks = ["pytorch", "numpy"]', ("torch", "numpy")),
        ('framework = "pytorch"', 'framework = "numpy"', ("callable", "numpy")),
    ],
)
def test_the_framework_is_the_kind_of_functions_that_import_it(
    project: str, keys: str, expected: tuple[str, str], workspace: ConfigWorkspace
) -> None:
    assert kinds(workspace, '"t.py:f"', project=project, keys=keys) == expected


def test_a_written_kind_goes_over_the_framework(workspace: ConfigWorkspace) -> None:
    written = '{ kind = "callable", path = "t.py", function = "f" }'
    assert kinds(workspace, written, project='framework = "pytorch"')[0] == "callable"


def test_an_import_that_comes_later_changes_the_configuration(workspace: ConfigWorkspace) -> None:
    config = workspace.load(text_of('"j.py:f"', project='framework = "jax"'))
    program = config.op("f").op
    assert program is not None and program.kind == "jax"
    assert workspace.root / "j.py" in {file.path for file in config.files}


@pytest.mark.parametrize(("value", "argv"), [("true", "compiled"), ("false", "stepwise")])
def test_what_xla_compiles(value: str, argv: str, workspace: ConfigWorkspace) -> None:
    program = '{ kind = "jax", file = "j.py", function = "f" }'
    op = op_of(workspace, program, keys=f"xla_compatible = {value}")
    assert op.op is not None and op.op.argv == ("", argv) and op.reference.argv == ()


@for_each(
    ("op", "slug", "words"),
    [
        ('{ kind = "torch", file = "t.py" }', "config-missing-key", "'function'"),
        ('{ kind = "torch", function = "f" }', "config-missing-key", "'module'"),
        ('{ kind = "jax", file = "t.py", module_class = "M" }', "config-missing-key", "'function'"),
        ('{ kind = "torch", file = "none.py", function = "f" }', "config-path-missing", "none.py"),
        ('{ kind = "torch", file = "../x.py", function = "f" }', "config-path-outside", "x.py"),
        ('{ kind = "numpy", file = "t.py", function = "a b" }', "config-value", "a b"),
        ('{ kind = "torch", file = "t.py", function = "ff" }', "config-no-function", "ff"),
        ('{ kind = "torch", file = "t.py", module_class = "Q" }', "config-no-function", "Q"),
        ('{ kind = "torch", file = "t.py", module_class = "f", init = 1 }', "config-value", "init"),
        ('{ kind = "torch", file = "t.py", module_class = "f", seed = -1 }', "config-value",
         "seed"),
        ('{ kind = "torch", file = "t.py", function = "f", seed = 1 }', "config-unread-key",
         "seed has no effect"),
        ('{ kind = "numpy", file = "t.py", function = "f", grid = ["1"] }', "config-unread-key",
         "grid has no effect"),
    ],
)  # fmt: skip
def test_what_is_wrong(op: str, slug: str, words: str, workspace: ConfigWorkspace) -> None:
    problems = workspace.check(text_of(op))
    assert slug in [problem.slug for problem in problems]
    (problem,) = [problem for problem in problems if problem.slug == slug]
    assert words in str(problem) and problem.line == 7
