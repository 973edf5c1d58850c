"""Targets: what they stand for, and what they may name."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_workspace import DATA, SOFTMAX, ConfigWorkspace


@pytest.fixture
def workspace(tmp_path: Path) -> ConfigWorkspace:
    return ConfigWorkspace(tmp_path)


def test_targets_within_targets_are_expanded_each_member_once(workspace: ConfigWorkspace) -> None:
    config = workspace.load((DATA / "valid" / "ours.toml").read_text())
    assert config.targets == {
        "precommit": ("matmul", "compare:matmul:bfloat16", "lint"),
        "nightly": (
            "matmul", "compare:matmul:bfloat16", "lint", "all", "compare",
            "diff:aten::softmax/dim-1", "lint:triton_add:sm_90",
        ),
        "empty": (),
    }  # fmt: skip


def test_a_chain_of_many_targets_is_followed_without_recursion(workspace: ConfigWorkspace) -> None:
    chain = "".join(f't{i} = ["t{i + 1}", "t{i + 1}"]\n' for i in range(3000))
    config = workspace.load(f'{SOFTMAX}[targets]\n{chain}t3000 = ["softmax", "all"]\n')
    assert config.targets["t0"] == ("softmax", "all")
    circle = f'{SOFTMAX}[targets]\n{chain}t3000 = ["t0"]\n'
    assert [slug for _, slug in workspace.errors(circle)] == ["config-target-cycle"]


def test_targets_that_stand_for_too_much_are_an_error(workspace: ConfigWorkspace) -> None:
    ops = "".join(f'[[ops]]\nname = "op{i}"\nreference = "bin/reference"\n' for i in range(1100))
    chain = "".join(f't{i} = ["t{i + 1}", "op{i}"]\n' for i in range(1100))
    text = f'[project]\nname = "x"\n[targets]\n{chain}t1100 = []\n{ops}'
    assert workspace.errors(text) == [(3, "config-too-large")]


def test_a_target_may_name_an_op_that_has_errors_of_its_own(workspace: ConfigWorkspace) -> None:
    text = SOFTMAX.replace("ref_softmax", "missing")
    target = '[targets]\na = ["softmax", "compare:softmax:float32"]\n'
    assert [slug for _, slug in workspace.errors(text + target)] == ["config-path-missing"]


@pytest.mark.parametrize(
    ("member", "hint"),
    [
        ("sofmax", "did you mean 'softmax'?"),
        ("compare:sofmax:float32", "did you mean 'softmax'?"),
        ("compare:softmax:float16", "its dtypes: float32"),
        ("lint:softmax", "its stages: generate, op, reference, compare, diff"),
        ("xyzzy", ""),
    ],
)
def test_hints(member: str, hint: str, workspace: ConfigWorkspace) -> None:
    problems = workspace.check(f'{SOFTMAX}[targets]\na = ["{member}"]\n')
    assert [(p.slug, p.line, p.hint) for p in problems] == [("config-target-unknown", 9, hint)]


def test_a_circle_is_shown(workspace: ConfigWorkspace) -> None:
    problems = workspace.check(f'{SOFTMAX}[targets]\na = ["b"]\nb = ["a"]\nc = ["a", "all"]\n')
    assert [(p.slug, p.line) for p in problems] == [("config-target-cycle", 10)]
    assert "a → b → a" in problems[0].message


def test_targets_of_two_files_are_merged(workspace: ConfigWorkspace) -> None:
    workspace.write_home(
        ".config/gpuemu/config.toml", '[targets]\nmine = ["all"]\nboth = ["nothing-here"]\n'
    )
    config = workspace.load(f'{SOFTMAX}[targets]\nboth = ["mine", "softmax"]\n')
    assert config.targets == {"mine": ("all",), "both": ("all", "softmax")}
    problems = workspace.check(SOFTMAX)
    assert [(p.file, p.line) for p in problems] == [("~/.config/gpuemu/config.toml", 3)]
