"""The kind ``triton`` in a configuration: parsed, and what is wrong with it told."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_workspace import ConfigWorkspace
from for_each import for_each

from gpuemu_flow.config.model import OpConfig


@pytest.fixture
def workspace(tmp_path: Path) -> ConfigWorkspace:
    return ConfigWorkspace(tmp_path)


def text_of(op: str) -> str:
    reference = 'reference = "scripts/ref_gelu.py:gelu"'
    return f'[project]\nname = "x"\n[[ops]]\nname = "f"\n{reference}\nop = {op}\n'


def op_of(op: str, workspace: ConfigWorkspace) -> OpConfig:
    return workspace.load(text_of(op)).op("f")


@pytest.mark.parametrize("key", ["file", "path"])
def test_the_kind(key: str, workspace: ConfigWorkspace) -> None:
    op = op_of(f'{{ kind = "triton", {key} = "scripts/gelu.py", function = "run" }}', workspace)
    assert op.op is not None and op.skip_reason == ""
    path = workspace.root / "scripts/gelu.py"
    assert (op.op.kind, op.op.path, op.op.function) == ("triton", path, "run")
    assert (op.op.text, op.op.relative) == ("scripts/gelu.py:run", "scripts/gelu.py")
    assert op.op.files == (path,)


@pytest.mark.parametrize(
    ("imports", "mode"),
    [
        ("from triton.experimental import gluon", "compiled"),
        ("import triton.experimental.gluon.language as gl", "compiled"),
        ("import triton", ""),
    ],
)
def test_gluon_is_compiled(imports: str, mode: str, workspace: ConfigWorkspace) -> None:
    """Triton's interpreter does not know it."""
    (workspace.root / "scripts" / "gluon_op.py").write_text(f"{imports}\ndef run(x): ...\n")
    op = op_of('{ kind = "triton", file = "scripts/gluon_op.py", function = "run" }', workspace)
    assert op.op is not None and "".join(op.op.argv[1:2]) == mode


@for_each(
    ("op", "slug", "words"),
    [
        ('{ kind = "tritonn", file = "scripts/gelu.py", function = "run" }', "config-unknown-kind",
         "did you mean 'triton'"),
        ('{ kind = "sass", file = "x.cu" }', "config-unknown-kind",
         "command, cuda, jax, numpy, ptx, script, torch, triton"),
        ('{ kind = "triton", function = "run" }', "config-missing-key", "'file'"),
        ('{ kind = "triton", file = "scripts/gelu.py" }', "config-missing-key", "'function'"),
        ('{ kind = "triton", file = "scripts/none.py", function = "run" }', "config-path-missing",
         "scripts/none.py"),
        ('{ kind = "triton", file = "scripts/gelu.py", function = "a b" }', "config-value", "a b"),
        ('{ kind = "triton", file = "../../etc/x.py", function = "run" }', "config-path-outside",
         "x.py"),
    ],
)  # fmt: skip
def test_what_is_wrong(op: str, slug: str, words: str, workspace: ConfigWorkspace) -> None:
    problems = workspace.check(text_of(op))
    assert [problem.slug for problem in problems] == [slug]
    assert words in str(problems[0]) and problems[0].line == 6


def test_a_client_side_op_may_be_a_triton_function(workspace: ConfigWorkspace) -> None:
    table = '{ kind = "triton", file = "scripts/gelu.py", function = "run" }'
    op = op_of(table + '\nexecution_mode = "client_side"', workspace)
    assert op.op is not None and op.op.kind == "triton"
