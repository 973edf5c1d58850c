"""Finding, reading and merging the files: places, priorities, encodings, environment."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from config_workspace import SOFTMAX, ConfigWorkspace
from for_each import for_each

from gpuemu_flow.config.fields import LINT_RULES
from gpuemu_flow.config.load import check_config, environment, find_config, load_config
from gpuemu_flow.config.read import MAX_BYTES
from gpuemu_flow.config.report import MAX_PROBLEMS, MAX_WARNINGS
from gpuemu_flow.lint.rules import RULES_BY_ID
from gpuemu_flow.model.errors import ConfigError, UsageError
from gpuemu_flow.model.types import Tolerance

NAMED = '[project]\nname = "x"\n'


@pytest.fixture
def workspace(tmp_path: Path) -> ConfigWorkspace:
    return ConfigWorkspace(tmp_path)


def test_the_file_is_found_from_a_folder_below(workspace: ConfigWorkspace) -> None:
    path = workspace.write(SOFTMAX)
    assert find_config(workspace.root / "scripts" / "kernels", {}) == path
    config = load_config(start=workspace.root / "scripts", environ=workspace.environ)
    assert config.root == workspace.root
    assert config.op("softmax").file == "gpuemu.toml"


def test_no_file_anywhere_is_a_usage_error_that_says_where_to_begin(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        find_config(tmp_path, {})
    assert raised.value.slug == "config-not-found"
    assert "`gpuemu-flow init` writes one" in str(raised.value)
    assert raised.value.exit_code == 2


def test_a_folder_that_may_not_be_looked_into_is_no_traceback(tmp_path: Path) -> None:
    """As root the folder can be looked into all the same; then the search just goes on."""
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o000)
    try:
        for start in (hidden, tmp_path / ("n" * 300)):
            with pytest.raises(UsageError, match="config-not-found"):
                find_config(start, {})
            with pytest.raises(UsageError, match="config-not-found"):
                load_config(start / "gpuemu.toml", environ={})
    finally:
        hidden.chmod(0o700)


def test_the_environment_variable_goes_over_the_search(workspace: ConfigWorkspace) -> None:
    workspace.write(SOFTMAX)
    other = workspace.write(SOFTMAX.replace('"test"', '"other"'), "sub/other.toml")
    for name in ("scripts/softmax.py", "scripts/ref_softmax.py"):
        workspace.write("", f"sub/{name}")
    environ = {**workspace.environ, "GPUEMU_CONFIG": "sub/other.toml"}
    config = load_config(start=workspace.root, environ=environ)
    assert config.project.name == "other"
    assert config.root == other.parent
    assert config.op("softmax").file == "other.toml"
    with pytest.raises(UsageError, match="config-not-found"):
        find_config(workspace.root, {"GPUEMU_CONFIG": "nowhere.toml"})
    with pytest.raises(UsageError, match="config-not-found"):
        load_config(workspace.root / "nowhere.toml", environ={})


def test_three_files_are_merged_key_by_key(workspace: ConfigWorkspace) -> None:
    workspace.write_home(
        ".gpuemu/daemon.toml",
        """
        [daemon]
        log_level = "debug"
        max_connections = 3
        [execution]
        reference_timeout = 10
        python_path = "venv/bin/python"
        [validation]
        cases = 5
        """,
    )
    workspace.write_home(
        ".config/gpuemu/config.toml",
        """
        [daemon]
        log_level = "warn"
        [validation]
        cases = 6
        tolerances = { float32 = { atol = 0.5, rtol = 0.25 }, float16 = 0.125 }
        [policies]
        warn_threshold = 0.9
        """,
    )
    config = workspace.load(
        SOFTMAX + "[validation]\ncases = 7\ntolerances = { float32 = { atol = 0.0 } }\n"
    )
    assert (config.daemon.log_level, config.daemon.max_connections) == ("warn", 3)
    assert config.execution.reference_timeout == 10.0
    assert config.execution.python_path == str(workspace.home / ".gpuemu/venv/bin/python")
    assert config.validation.cases == config.op("softmax").cases == 7
    assert config.op("softmax").timeout == 10.0
    assert config.policies.warn_threshold == 0.9
    assert config.op("softmax").tolerances == {
        "float32": Tolerance(0.0, 0.25, "validation"),
        "float16": Tolerance(0.125, 0.0, "validation"),
    }


def test_ops_and_kernels_are_taken_whole_from_the_highest_file(workspace: ConfigWorkspace) -> None:
    user = workspace.write_home(
        ".config/gpuemu/config.toml",
        """
        [[ops]]
        name = "user_op"
        reference = "ref.py"
        [[kernels]]
        name = "user_kernel"
        ptx = "user.ptx"
        """,
    )
    for name in ("ref.py", "user.ptx"):
        (user.parent / name).touch()
    config = workspace.load(SOFTMAX)
    assert [op.name for op in config.ops] == ["softmax"]
    assert [kernel.name for kernel in config.kernels] == ["user_kernel"]
    # Relative paths start at the folder of the file that has them, and may stay in it.
    assert config.kernels[0].ptx == user.parent / "user.ptx"
    config = workspace.load(NAMED)
    assert [op.name for op in config.ops] == ["user_op"]
    assert config.op("user_op").reference.path == user.parent / "ref.py"
    assert config.op("user_op").file == "~/.config/gpuemu/config.toml"
    assert str(workspace.home) not in config.op("user_op").reference.relative


def test_errors_of_all_files_are_reported_at_once(workspace: ConfigWorkspace) -> None:
    workspace.write_home(".gpuemu/daemon.toml", "[daemon]\nmax_connections = 0\n")
    workspace.write_home(".config/gpuemu/config.toml", "[validation]\n\ncases = 'x'\n")
    problems = workspace.check(NAMED + "[ci]\nparallel_jobs = -1\n")
    assert [(p.file, p.line, p.slug) for p in problems] == [
        ("gpuemu.toml", 4, "config-value"),
        ("~/.config/gpuemu/config.toml", 3, "config-type"),
        ("~/.gpuemu/daemon.toml", 2, "config-value"),
    ]


def test_xdg_config_home_is_respected_when_absolute(
    workspace: ConfigWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.home)
    workspace.write_home("xdg/gpuemu/config.toml", "[validation]\ncases = 9\n")
    workspace.write(NAMED)
    environ = {**workspace.environ, "XDG_CONFIG_HOME": str(workspace.home / "xdg")}
    config = load_config(start=workspace.root, environ=environ)
    assert config.validation.cases == 9
    config = load_config(
        start=workspace.root, environ={**workspace.environ, "XDG_CONFIG_HOME": "xdg"}
    )
    assert config.validation.cases == 24


def test_files_that_are_looked_at_are_listed_missing_ones_too(workspace: ConfigWorkspace) -> None:
    text = SOFTMAX + 'execution_mode = "client_side"\nmodule = "my_ops.softmax"\n'
    path = workspace.write(text.replace("op =", "op_script ="))
    config = workspace.load()
    digests = {file.path: file.digest for file in config.files}
    assert digests[path] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert digests[workspace.home / ".config/gpuemu/config.toml"] == ""
    assert digests[workspace.home / ".gpuemu/daemon.toml"] == ""
    # Which function of the module is meant depends on what the module defines.
    module = workspace.root / "my_ops/softmax.py"
    assert digests[module] == hashlib.sha256(module.read_bytes()).hexdigest()


def test_a_module_that_appears_later_is_noticed(workspace: ConfigWorkspace) -> None:
    text = f'{NAMED}[[ops]]\nname = "f"\nmodule = "later"\nreference = "bin/reference"\n'
    config = workspace.load(text)
    assert "later is not in the workspace" in config.op("f").skip_reason
    assert (workspace.root / "later.py", "") in [(f.path, f.digest) for f in config.files]
    workspace.write("def f(input):\n    return input\n", "later.py")
    config = workspace.load()
    ref = config.op("f").op
    assert ref is not None
    assert (ref.kind, ref.module, ref.function) == ("callable", "later", "f")


@for_each(
    ("data", "slug", "line"),
    [
        (b"\xef\xbb\xbf[project]\n", "config-encoding", 1),
        (b"\xff\xfe[\x00", "config-encoding", 0),
        (b"[project]\nname = '\xe9'\n", "config-encoding", 2),
        (b"[project]\n\n# \x00\n", "config-encoding", 3),
        (b"[project]\nname = 'x\n", "config-syntax", 2),
        (b"[project]\nname = 1\nname = 2\n", "config-syntax", 3),
        (b"[project]\nlist = [1,\n2\n\n", "config-syntax", 2),
        (b"a = 1\nb = " + b"[" * 5000, "config-syntax", 2),
        (b"a" + b".a" * 5000 + b" = 1\n", "config-syntax", 1),
        (b"\na = " + b"9" * 20000, "config-syntax", 2),
        (b"#" * (MAX_BYTES + 1), "config-too-large", 0),
    ],
)
def test_files_that_are_no_toml_are_one_clear_error(
    data: bytes, slug: str, line: int, workspace: ConfigWorkspace
) -> None:
    (workspace.root / "gpuemu.toml").write_bytes(data)
    problems = workspace.check()
    assert [(p.slug, p.line, p.warning) for p in problems] == [(slug, line, False)]


def test_a_folder_a_pipe_and_a_file_without_permission(workspace: ConfigWorkspace) -> None:
    pipe = workspace.root / "pipe.toml"
    os.mkfifo(pipe)
    (workspace.root / "folder.toml").mkdir()
    for name in ("pipe.toml", "folder.toml"):
        problems = check_config(workspace.root / name, environ=workspace.environ)
        assert [p.slug for p in problems] == ["config-unreadable"]


def test_an_empty_file_is_a_workspace_without_ops(workspace: ConfigWorkspace) -> None:
    config = workspace.load("")
    assert config.ops == ()
    assert config.project.name == "unnamed"
    assert [p.slug for p in config.warnings] == ["config-missing-key"]


def test_strict_turns_warnings_into_errors(workspace: ConfigWorkspace) -> None:
    workspace.write(NAMED + "frame_work = 'jax'\n")
    assert [p.slug for p in workspace.load().warnings] == ["config-unknown-key"]
    assert "did you mean 'framework'?" in str(workspace.load().warnings[0])
    with pytest.raises(ConfigError) as raised:
        workspace.load(strict=True)
    assert [(p.slug, p.line, p.warning) for p in raised.value.problems] == [
        ("config-unknown-key", 3, False)
    ]


@for_each(
    ("text", "hint"),
    [
        ("[sandbox]\naprt = ['scripts']\n", "did you mean 'apart'?"),
        ("[validation]\nhidden = ['scripts']\n", "'hidden' belongs in [sandbox]"),
        (
            "[ci]\nrtol = 1e-3\n",
            "'rtol' belongs in [validation.tolerances] or [ops.tolerances] or [kernels.tolerances]",
        ),
        (
            "[[ops]]\nname = 'a'\ninputs = {}\n",
            "'inputs' belongs in [ops.schema] or [ops.build]",
        ),
        ("[[ops]]\nname = 'a'\nmode = 'client_side'\n", "did you mean 'execution_mode'?"),
        ("[sandobx]\nmode = 'require'\n", "did you mean 'sandbox'?"),
        ("[policies]\nmax_registers = 8\n", "'max_registers' belongs in [kernels.artifact_checks]"),
        ("[ci]\nfail_on_regression = true\n", "'fail_on_regression' belongs in [policies]"),
        ("[policies.registers]\nmaximum = 64\n", "did you mean 'max'?"),
        ("[[ops]]\nname = 'a'\nforbidden = ['torch.mm']\n", "did you mean 'forbid'?"),
        ("[[ops]]\nname = 'a'\ndepends_on = ['a.py']\n", "did you mean 'depends'?"),
    ],
)
def test_an_unknown_key_says_where_it_belongs(
    workspace: ConfigWorkspace, text: str, hint: str
) -> None:
    problems = [p for p in workspace.check(NAMED + text) if p.slug == "config-unknown-key"]
    assert [(p.hint, p.warning) for p in problems] == [(hint, not hint)]


def test_the_strict_sandbox_is_gone_and_a_container_named(workspace: ConfigWorkspace) -> None:
    text = NAMED + '[sandbox]\nmode = "strict"\n'
    (problem,) = [p for p in workspace.check(text) if p.slug == "config-value"]
    assert not problem.warning
    assert "container" in problem.hint


def test_the_end_of_a_keys_name_is_only_warned_of(workspace: ConfigWorkspace) -> None:
    (problem,) = workspace.check(NAMED + "[execution]\ntimeout = 3\n")
    assert (problem.hint, problem.warning) == ("did you mean 'reference_timeout'?", True)


@pytest.mark.parametrize(
    "text",
    [
        "[opt]\nlevel = 3\n",
        "[server]\nmode = 'auto'\n",
        "[benchmark]\ndtypes = ['float32']\n",
    ],
)
def test_keys_of_other_programs_are_warned_of(workspace: ConfigWorkspace, text: str) -> None:
    problems = [p for p in workspace.check(NAMED + text) if p.slug == "config-unknown-key"]
    assert problems
    assert all(p.warning for p in problems)


def test_a_misspelt_lint_rule_is_an_error(workspace: ConfigWorkspace) -> None:
    rules = "[policies.rules]\nReal-Spills = 'error'\nscalar-acesses = 'error'\n"
    (problem,) = workspace.check(NAMED + rules)
    assert (problem.slug, problem.line, problem.warning) == ("config-unknown-rule", 5, False)
    assert "scalar-accesses" in problem.hint


def test_an_unknown_rule_that_is_allowed_is_warned_of(workspace: ConfigWorkspace) -> None:
    kernel = "[[kernels]]\nname = 'k'\nsource = 'k.cu'\nallow = { real-spils = 'measured' }\n"
    found = [p for p in workspace.check(NAMED + kernel) if p.slug == "config-unknown-rule"]
    assert [(p.line, p.warning) for p in found] == [(6, True)]
    assert "real-spills" in found[0].hint


def test_the_lint_rules_of_a_configuration_are_those_that_exist() -> None:
    assert tuple(RULES_BY_ID) == LINT_RULES


@pytest.mark.parametrize(
    ("pattern", "hint", "warning"),
    [
        ("opps/*.toml", "did you mean 'ops'?", False),
        ("ops/*.tml", "correct it, or remove it", True),
        ("further/*.toml", "correct it, or remove it", True),
    ],
)
def test_a_glob_that_includes_nothing_is_reported(
    workspace: ConfigWorkspace, pattern: str, hint: str, *, warning: bool
) -> None:
    (workspace.root / "ops").mkdir()
    assert not workspace.check(f"include = ['ops/*.toml']\n{NAMED}")
    (workspace.root / "ops" / "a.txt").touch()
    (problem,) = workspace.check(f"include = ['{pattern}']\n{NAMED}")
    assert (problem.slug, problem.hint, problem.warning) == ("config-no-match", hint, warning)


def test_very_many_problems_are_cut_and_the_rest_counted(workspace: ConfigWorkspace) -> None:
    text = NAMED + "".join(f'[[ops]]\nname = "op{i}"\n' for i in range(MAX_PROBLEMS + 30))
    problems = workspace.check(text)
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1].slug == "config-too-many"
    assert "30 more errors" in problems[-1].message
    unknown = "".join(f"key{i} = 1\n" for i in range(MAX_PROBLEMS + 10))
    warnings = workspace.load(unknown + NAMED).warnings
    assert len(warnings) == MAX_PROBLEMS + 1
    assert "10 more warnings" in warnings[-1].message
    many = "".join(f"key{i} = 1\n" for i in range(MAX_PROBLEMS + MAX_WARNINGS + 1))
    assert [p.slug for p in workspace.check(many + NAMED) if not p.warning] == ["config-too-many"]


def test_environment_variables() -> None:
    assert environment({}) == environment({"GPUEMU_LOG_LEVEL": "shout"})
    found = environment(
        {
            "GPUEMU_CONFIG": "c.toml",
            "GPUEMU_SOCKET": "/run/s",
            "GPUEMU_LOG_LEVEL": "WARNING",
            "RUST_LOG": "debug",
        }
    )
    assert (found.config, found.socket, found.log_level) == ("c.toml", "/run/s", "warn")
    assert environment({"RUST_LOG": "gpuemu=debug"}).log_level == ""
    assert environment({"RUST_LOG": "trace"}).log_level == "trace"
