"""Test globs and paths of the configuration that match nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_workspace import ConfigWorkspace

from gpuemu_flow.model.errors import Problem

NAMED = '[project]\nname = "x"\n'
OP = '[[ops]]\nname = "f"\nreference = "bin/reference"\n'
RULE = '[[rules]]\nname = "r"\ncommand = ["true"]\noutputs = ["made/a.txt"]\n'


@pytest.fixture
def workspace(tmp_path: Path) -> ConfigWorkspace:
    return ConfigWorkspace(tmp_path)


def found(workspace: ConfigWorkspace, text: str) -> list[Problem]:
    return [p for p in workspace.check(NAMED + text) if p.slug == "config-no-match"]


def apart(workspace: ConfigWorkspace, glob: str, more: str = "") -> list[Problem]:
    return found(workspace, f'[sandbox]\napart = ["{glob}"]\n{OP}{more}')


def hidden(workspace: ConfigWorkspace, *paths: str, more: str = "") -> list[Problem]:
    listed = ", ".join(f'"{path}"' for path in paths)
    return found(workspace, f"[sandbox]\nhidden = [{listed}]\n{more}{OP}")


@pytest.mark.parametrize(
    ("glob", "hint"),
    [
        ("submisions", "did you mean 'submissions'?"),
        ("submisions/*.py", "did you mean 'submissions'?"),
        ("nowhere", "correct it, or make the folder"),
    ],
)
def test_what_is_kept_apart_must_be_there(workspace: ConfigWorkspace, glob: str, hint: str) -> None:
    workspace.write("", "submissions/a.py")
    workspace.write("", "problems/one/candidates/a.py")
    (problem,) = apart(workspace, glob)
    assert (problem.line, problem.warning, problem.hint) == (4, False, hint)
    assert f"'{glob}' matches nothing" in problem.message


@pytest.mark.parametrize("glob", ["empty/*", "empty/*.py", "empty/*/code", "empty/**/*.py"])
def test_a_folder_may_be_empty_yet(workspace: ConfigWorkspace, glob: str) -> None:
    workspace.write("", "empty/.gitkeep")
    assert all(problem.warning for problem in apart(workspace, glob))


def test_a_folder_of_programs_that_are_not_kept_apart_is_an_error(
    workspace: ConfigWorkspace,
) -> None:
    workspace.write("def g(x):\n    return x\n", "submissions/alice/op.py")
    op = '[[ops]]\nname = "g"\nreference = "bin/reference"\nop = "submissions/alice/op.py:g"\n'
    for glob in ("submissions/*/*.pyy", "submissions/carol*"):
        (problem,) = apart(workspace, glob, op)
        assert not problem.warning


@pytest.mark.parametrize("glob", ["candidates", "candidates/*", "cand*"])
def test_candidates_of_a_template_may_come(workspace: ConfigWorkspace, glob: str) -> None:
    template = (
        '[[ops]]\nname = "g/{c}"\nreference = "bin/reference"\n'
        'foreach.c = { files = "candidates/*.py" }\nop = "candidates/{c}.py:g"\n'
    )
    assert apart(workspace, glob, template) == []
    assert len(apart(workspace, glob)) == 1 or glob == "cand*"


@pytest.mark.parametrize("key", ["depends", "shared"])
def test_files_of_an_op_that_are_not_there_are_warned_of(
    workspace: ConfigWorkspace, key: str
) -> None:
    globs = ["scirpts/*.py", "bin", "scripts/*.h", "scripts/*.py", "made/*.txt"]
    listed = ", ".join(f'"{glob}"' for glob in globs)
    problems = found(workspace, f"{OP}{key} = [{listed}]\n{RULE}")
    assert [(p.line, p.warning, p.hint) for p in problems] == [
        (6, True, "did you mean 'scripts'?"),
        (6, True, "it is a folder: write 'bin/**/*'"),
        (6, True, ""),
    ]
    assert workspace.load().ops[0].name == "f"


def test_what_is_hidden_must_be_there(workspace: ConfigWorkspace) -> None:
    (workspace.root.parent / "originals").mkdir()
    workspace.write("", "copies/a.py")
    assert hidden(workspace, "../originals", "copies", "copies/a.py") == []
    problems = hidden(workspace, "../orignals", "copies/b.py", "copys/a.py", "copies/*.py")
    assert [(p.line, p.warning) for p in problems] == [(4, False)] * 4
    assert [p.hint for p in problems] == [
        "did you mean 'originals'?",
        "did you mean 'a.py'?",
        "did you mean 'copies'?",
        "these are paths, not globs: name the folder",
    ]


def test_what_is_made_later_may_be_hidden(workspace: ConfigWorkspace) -> None:
    more = 'writable = ["out"]\n'
    paths = ("made/a.txt", "out/log.txt", ".gpuemu-cache/x")
    assert hidden(workspace, *paths, more=more + RULE) == []
    assert len(hidden(workspace, *paths)) == 2


def test_originals_of_another_machine_are_warned_of(workspace: ConfigWorkspace) -> None:
    """As `import` writes them: one path for each file that it took."""
    (problem,) = hidden(workspace, "../KernelBench/level1/a.py")
    assert problem.warning
    assert "'../KernelBench/level1/a.py' does not exist" in problem.message


def test_the_users_own_file_holds_for_workspaces_without_the_folder(
    workspace: ConfigWorkspace,
) -> None:
    workspace.write_home(
        ".config/gpuemu/config.toml", '[sandbox]\napart = ["nowhere"]\nhidden = ["~/nowhere"]\n'
    )
    assert [p.warning for p in found(workspace, OP)] == [True, True]
    assert len(workspace.load().sandbox.hidden) == 1


def test_a_folder_is_no_script_and_is_not_suggested_for_itself(workspace: ConfigWorkspace) -> None:
    (workspace.root / "cand").mkdir()
    op = 'op = { kind = "script", path = "cand" }\n'
    (problem,) = workspace.check(NAMED + OP + op)
    assert problem.slug == "config-path-missing"
    assert problem.hint == "name a file in it: 'cand/op.py'"


@pytest.mark.parametrize("folder", [".", "scripts", "bin/.."])
def test_the_cache_has_a_folder_of_its_own(workspace: ConfigWorkspace, folder: str) -> None:
    op = OP.replace("bin/reference", "scripts/gelu.py:gelu")
    (problem,) = workspace.check(f'{NAMED}[cache]\ndir = "{folder}"\n{op}')
    assert (problem.slug, problem.line, problem.warning) == ("config-value", 4, False)
    assert "holds" in problem.message


def test_another_folder_may_be_the_cache(workspace: ConfigWorkspace) -> None:
    assert workspace.check(f'{NAMED}[cache]\ndir = "bin/cache"\n{OP}') == []


def test_names_that_no_file_can_have_are_reported(workspace: ConfigWorkspace) -> None:
    name = "n" * 300
    listed = ", ".join(f'"{glob}"' for glob in (name, f"{name}/{name}/*.py", f"*/{name}"))
    for text in (
        f"[sandbox]\napart = [{listed}]\n{OP}",
        f"{OP}depends = [{listed}]\n",
        f"{OP}shared = [{listed}]\n",
    ):
        told = workspace.check(NAMED + text)
        assert [(problem.slug, problem.warning) for problem in told] == [
            ("config-value", False)
        ] * 3
    for path in (f"{name}/deep/er", f"/{name}/{name}"):
        assert [problem.slug for problem in hidden(workspace, path)] == ["config-no-match"]
    told = workspace.check(NAMED + OP.replace("bin/reference", f"{name}.py"))
    assert [problem.slug for problem in told] == ["config-path-missing"]
