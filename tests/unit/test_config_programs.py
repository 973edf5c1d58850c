"""Every way to name a program, and the workspace's fence round them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from config_workspace import ConfigWorkspace

from gpuemu_flow.config.model import ProgramRef
from gpuemu_flow.model.errors import Problem


@pytest.fixture
def workspace(tmp_path: Path) -> ConfigWorkspace:
    return ConfigWorkspace(tmp_path)


def text_of(reference: object, project: str = "") -> str:
    value = json.dumps(reference) if not isinstance(reference, dict) else inline(reference)
    return f'[project]\nname = "x"\n{project}\n[[ops]]\nname = "f"\nreference = {value}\n'


def inline(table: dict[str, object]) -> str:
    return "{ " + ", ".join(f"{k} = {json.dumps(v)}" for k, v in table.items()) + " }"


def ref_of(reference: object, workspace: ConfigWorkspace, project: str = "") -> ProgramRef:
    return workspace.load(text_of(reference, project)).op("f").reference


def problem_of(reference: object, workspace: ConfigWorkspace, project: str = "") -> Problem:
    problems = workspace.check(text_of(reference, project))
    assert len(problems) == 1, problems
    assert problems[0].line == 6
    return problems[0]


@pytest.mark.parametrize(
    "text", ["scripts/gelu.py", "python scripts/gelu.py", "python3  scripts/gelu.py",
             "python3.11 scripts/gelu.py", " scripts/../scripts/gelu.py", "./scripts/gelu.py"],
)  # fmt: skip
def test_scripts(text: str, workspace: ConfigWorkspace) -> None:
    ref = ref_of(text, workspace)
    path = workspace.root / "scripts/gelu.py"
    assert (ref.kind, ref.path, ref.relative, ref.text) == (
        "script", path, "scripts/gelu.py", text.strip(),
    )  # fmt: skip
    assert ref.files == (path,)
    assert (ref.file, ref.line) == ("gpuemu.toml", 6)


def test_functions_of_files_and_modules(workspace: ConfigWorkspace) -> None:
    ref = ref_of("scripts/gelu.py:tanh_form", workspace)
    assert (ref.kind, ref.path, ref.module, ref.function) == (
        "callable", workspace.root / "scripts/gelu.py", "", "tanh_form",
    )  # fmt: skip
    ref = ref_of("my_ops.softmax:Softmax.forward", workspace)
    assert (ref.kind, ref.path, ref.module, ref.function) == (
        "callable", workspace.root / "my_ops/softmax.py", "my_ops.softmax", "Softmax.forward",
    )  # fmt: skip
    ref = ref_of("my_ops:softmax", workspace)
    assert ref.path == workspace.root / "my_ops/__init__.py"
    ref = ref_of("scipy.special:softmax", workspace)
    assert (ref.path, ref.relative, ref.files) == (None, "", ())


def test_a_file_name_with_spaces(workspace: ConfigWorkspace) -> None:
    path = workspace.write("", "scripts/my gelu.py")
    assert ref_of("scripts/my gelu.py", workspace).path == path
    assert ref_of("scripts/my gelu.py:gelu", workspace).path == path


def test_executables_and_their_arguments(workspace: ConfigWorkspace) -> None:
    program = workspace.root / "bin/reference"
    ref = ref_of("bin/reference", workspace)
    assert (ref.kind, ref.path, ref.argv) == ("command", program, (str(program),))
    assert ref.portable_argv == ("bin/reference",)
    ref = ref_of(["./bin/reference", "--table", "scripts/gelu.py", ""], workspace)
    assert ref.argv == (str(program), "--table", "scripts/gelu.py", "")
    assert ref.files == (program, workspace.root / "scripts/gelu.py")
    ref = ref_of(["node", "scripts/gelu.py", "-c"], workspace)
    assert (ref.path, ref.argv) == (
        workspace.root / "scripts/gelu.py", ("node", "scripts/gelu.py", "-c"),
    )  # fmt: skip


def test_kinds_spelled_out_mean_the_same_as_the_short_forms(workspace: ConfigWorkspace) -> None:
    pairs: list[tuple[dict[str, object], object]] = [
        ({"kind": "script", "path": "scripts/gelu.py"}, "scripts/gelu.py"),
        ({"kind": "callable", "path": "scripts/gelu.py", "function": "f"}, "scripts/gelu.py:f"),
        ({"kind": "callable", "module": "my_ops", "function": "f"}, "my_ops:f"),
        ({"kind": "command", "argv": ["bin/reference", "x"]}, ["bin/reference", "x"]),
    ]
    for table, short in pairs:
        assert ref_of(table, workspace) == ref_of(short, workspace)


def test_an_unknown_kind_names_the_known_ones(workspace: ConfigWorkspace) -> None:
    problem = problem_of({"kind": "sass", "path": "scripts/gelu.py"}, workspace)
    assert problem.slug == "config-unknown-kind"
    assert problem.hint == "known: callable, command, cuda, jax, numpy, ptx, script, torch, triton"


def test_a_missing_script_names_the_one_beside_it(workspace: ConfigWorkspace) -> None:
    problem = problem_of("scripts/sofmax.py", workspace)
    assert problem.slug == "config-path-missing"
    assert problem.hint == "did you mean 'scripts/softmax.py'?"


def test_arguments_in_a_string_are_answered_with_the_list_to_write(
    workspace: ConfigWorkspace,
) -> None:
    problem = problem_of("bin/reference --mode 'a b'", workspace)
    assert problem.slug == "config-path-missing"
    assert problem.hint == 'for arguments write ["bin/reference", "--mode", "a b"]'


def test_absolute_paths_inside_are_fine(workspace: ConfigWorkspace) -> None:
    ref = ref_of(f"{workspace.root}/scripts/gelu.py", workspace)
    assert ref.relative == "scripts/gelu.py"


@pytest.mark.parametrize(
    "text", ["/etc/passwd", "../outside.py", "scripts/../../outside.py:f", "{root}-twin/x.py",
             "python ../outside.py"],
)  # fmt: skip
def test_paths_outside_are_errors_that_name_the_key(text: str, workspace: ConfigWorkspace) -> None:
    problem = problem_of(text.replace("{root}", str(workspace.root)), workspace)
    assert problem.slug == "config-path-outside"
    assert "allow_outside = true under [project]" in problem.hint


def test_links_that_lead_outside_count_as_outside(workspace: ConfigWorkspace) -> None:
    outside = workspace.root.parent / "outside.py"
    outside.touch()
    (workspace.root / "scripts/link.py").symlink_to(outside)
    (workspace.root / "linked").symlink_to(workspace.root.parent)
    for text in ("scripts/link.py", "linked/outside.py:f", ["linked/outside.py"]):
        problem = problem_of(text, workspace)
        assert problem.slug == "config-path-outside"
        assert "through a link" in problem.message
    (workspace.root / "scripts/inner.py").symlink_to(workspace.root / "scripts/gelu.py")
    inner = ref_of("scripts/inner.py", workspace)
    assert inner.relative == "scripts/inner.py", "or nobody sees that it leads elsewhere"
    asked = problem_of("scripts/link.py", workspace, "allow_outside = true")
    assert asked.slug == "config-outside-not-granted"
    workspace.environ["GPUEMU_ALLOW_OUTSIDE"] = "1"
    allowed = ref_of("scripts/link.py", workspace, "allow_outside = true")
    assert allowed.path == workspace.root / "scripts/link.py"
    assert allowed.path.resolve() == outside


def test_a_link_in_a_circle_is_a_clear_error(workspace: ConfigWorkspace) -> None:
    (workspace.root / "a.py").symlink_to(workspace.root / "b.py")
    (workspace.root / "b.py").symlink_to(workspace.root / "a.py")
    assert problem_of("a.py", workspace).slug == "config-path-missing"


def test_a_workspace_reached_through_a_link(workspace: ConfigWorkspace) -> None:
    workspace.write(text_of("scripts/gelu.py"))
    link = workspace.root.parent / "link"
    link.symlink_to(workspace.root)
    text = text_of(f"{link}/scripts/gelu.py")
    assert ref_of("scripts/gelu.py", workspace) == ref_of("scripts/gelu.py", workspace)
    assert workspace.check(text) == []


def test_globs_of_depends_become_relative_to_the_root(workspace: ConfigWorkspace) -> None:
    globs = ["scripts/lib/*.py", f"{workspace.root}/x/**/y.h", "./my_ops/../bin/*", "scripts"]
    op = workspace.load(text_of("bin/reference") + f"depends = {json.dumps(globs)}\n").op("f")
    assert op.depends == ("scripts/lib/*.py", "x/**/y.h", "bin/*", "scripts")
