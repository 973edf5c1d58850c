"""Linting through the real command: files anywhere, configured kernels, and what `run` says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from mini_workspace import Mini
from published_schemas import check_sarif

import gpuemu_flow

KERNELS = Path(__file__).resolve().parent.parent.parent / "scripts" / "kernels"
SCHEMA = Path(gpuemu_flow.__file__).parent / "schemas" / "run.schema.json"

CONFIG = """
[[kernels]]
name = "softmax_kernel"
source = "k/softmax.cu"
ptx = "k/softmax.ptx"
cubin = "k/softmax.cubin"
artifact_checks = { max_registers = 64 }

[[kernels]]
name = "several"
ptx = "k/several_kernels.ptx"
cubin = "k/several_kernels.cubin"

[targets]
"""


def give(mini: Mini, *names: str) -> None:
    """Copy a kernel's source and its artifacts for sm_80 into the workspace."""
    (mini.root / "k").mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copy(KERNELS / f"{name}.cu", mini.root / "k")
        for suffix in (".ptx", ".cubin"):
            shutil.copy(KERNELS / "sm_80" / f"{name}{suffix}", mini.root / "k")


@pytest.fixture
def kernels(mini: Mini) -> Mini:
    """The small workspace with two kernels, made elsewhere."""
    mini.edit("gpuemu.toml", "\n[targets]\n", CONFIG)
    give(mini, "softmax", "several_kernels")
    return mini


@pytest.fixture
def empty(tmp_path: Path) -> Mini:
    """A folder that is no workspace and is not in one."""
    folder = Mini(tmp_path / "empty")
    folder.root.mkdir()
    return folder


def lint(mini: Mini, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = mini.command("lint", "--format", "json", *arguments, code=code)
    return dict(json.loads(done.stdout))


def test_files_need_no_workspace(empty: Mini) -> None:
    give(empty, "softmax")
    found = lint(empty, "k/softmax.ptx", "k/softmax.cubin")
    (kernel,) = found["kernels"]
    assert (kernel["name"], kernel["arch"]) == ("softmax_kernel", "sm_80")
    assert kernel["metric_source"] == "cubin"
    assert kernel["metrics"]["registers"] == 15
    assert not list(empty.root.glob(".gpuemu-cache"))


def test_a_ptx_alone_gives_estimates_that_are_called_so(empty: Mini) -> None:
    give(empty, "softmax")
    path = empty.root / "k" / "softmax.ptx"  # of a version that no ptxas reads, found or not
    path.write_text(path.read_text().replace(".version 9.0", ".version 99.0"))
    (kernel,) = lint(empty, "--ptx", "k/softmax.ptx")["kernels"]
    assert kernel["metric_source"] == "estimate"
    assert "~" in empty.command("lint", "k/softmax.ptx").stdout


def test_an_error_of_the_policy_fails_the_command(kernels: Mini) -> None:
    lint(kernels)
    kernels.edit("gpuemu.toml", "max_registers = 64", "max_registers = 10")
    found = lint(kernels, code=1)
    broken = [v for k in found["kernels"] for v in k["violations"] if v["severity"] == "error"]
    assert [(v["rule"], v["actual"], v["limit"]) for v in broken] == [("register-limit", 15, 10)]
    assert "register-limit" in kernels.command("lint", code=1).stdout


def test_an_allowed_violation_is_shown_and_does_not_fail(kernels: Mini) -> None:
    kernels.edit(
        "gpuemu.toml",
        "artifact_checks = { max_registers = 64 }",
        'artifact_checks = { max_registers = 10 }\nallow = { register-limit = "measured, fine" }',
    )
    found = lint(kernels)
    (violation,) = (v for k in found["kernels"] for v in k["violations"] if v.get("allowed"))
    assert violation["allowed"] == "measured, fine"


def test_severities_of_the_workspace_decide(kernels: Mini) -> None:
    rules = '[policies]\nrules = { generic-address = "error", scalar-accesses = "off" }\n'
    kernels.edit("gpuemu.toml", "[targets]", rules + "[targets]")
    found = lint(kernels, code=1)
    errors = {v["rule"] for k in found["kernels"] for v in k["violations"] if is_error(v)}
    assert errors == {"generic-address"}
    assert not found["problems"]
    kernels.edit("gpuemu.toml", 'generic-address = "error"', 'generic-address = "off"')
    found = lint(kernels)
    assert "generic-address" not in {v["rule"] for k in found["kernels"] for v in k["violations"]}


def is_error(violation: dict[str, Any]) -> bool:
    return bool(violation["severity"] == "error")


def test_a_comment_in_the_source_allows_a_finding(kernels: Mini) -> None:
    give(kernels, "printf_left_in")
    kernels.edit(
        "gpuemu.toml",
        'name = "several"\n',
        'name = "printf"\nsource = "k/printf_left_in.cu"\nptx = "k/printf_left_in.ptx"\n\n'
        '[[kernels]]\nname = "several"\n',
    )
    ptx = kernels.root / "k" / "printf_left_in.ptx"
    ptx.write_text(ptx.read_text().replace("scripts/kernels/printf", "k/printf"))
    calls = {
        kernel["name"]: violation.get("allowed", "")
        for kernel in lint(kernels, "--kernel", "printf")["kernels"]
        for violation in kernel["violations"]
        if violation["rule"] == "debug-call"
    }
    assert calls["printf_left_in_kernel"] == ""
    assert calls["printf_allowed_kernel"] != ""
    kernels.write("k/printf_left_in.cu", "// the comments are gone\n")
    again = lint(kernels, "--kernel", "printf")["kernels"]
    assert not [v for k in again for v in k["violations"] if v.get("allowed")]


def test_run_lints_too_and_shares_the_results(kernels: Mini) -> None:
    lint(kernels)
    report = kernels.run("lint")
    assert report["executed"] == []
    assert {k["verdict"] for k in report["kernels"]} == {"passed"}
    assert all(k["cached"] for k in report["kernels"])
    assert report["tasks"]["current"] == 4


def test_run_counts_kernels_and_fails_with_them(kernels: Mini) -> None:
    report = kernels.run()
    jsonschema.Draft7Validator(json.loads(SCHEMA.read_text())).validate(report)
    assert len(report["kernels"]) == 4
    assert {r["verdict"] for r in report["results"]} == {"passed"}
    assert kernels.command("run").stdout.startswith("up to date")
    kernels.edit("gpuemu.toml", "max_registers = 64", "max_registers = 10")
    failed = kernels.run(code=1)
    jsonschema.Draft7Validator(json.loads(SCHEMA.read_text())).validate(failed)
    assert {r["verdict"] for r in failed["results"]} == {"passed"}
    assert "register-limit" in kernels.command("run", code=1).stdout


def test_a_changed_limit_is_checked_without_parsing_again(kernels: Mini) -> None:
    kernels.run()
    kernels.edit("gpuemu.toml", "max_registers = 64", "max_registers = 63")
    report = kernels.run()
    assert report["tasks"]["restored"] == 1
    assert not [name for name in report["executed"] if name.startswith(("build:", "lint:"))]


def test_a_changed_artifact_is_linted_alone(kernels: Mini) -> None:
    kernels.run()
    path = kernels.root / "k" / "several_kernels.ptx"
    path.write_bytes(path.read_bytes() + b"// a comment\n")
    executed = kernels.run()["executed"]
    assert executed == ["build:several", "lint:several"]


def test_a_rewritten_artifact_of_the_same_bytes_runs_nothing(kernels: Mini) -> None:
    kernels.run()
    path = kernels.root / "k" / "several_kernels.ptx"
    path.write_bytes(path.read_bytes())
    assert kernels.run()["executed"] == []


def test_a_change_of_figures_is_said(kernels: Mini) -> None:
    kernels.run()
    path = kernels.root / "k" / "softmax.ptx"
    text = path.read_text()
    first = text.index("\n}", text.index(".entry softmax_kernel"))
    more = "\n\tcvt.f64.f32 %fd1, %f1;\n\tadd.f64 %fd1, %fd1, %fd1;"
    text = text[:first] + more + text[first:]
    path.write_text(text.replace(".reg .pred", ".reg .f64 %fd<2>;\n\t.reg .pred", 1))
    (changed,) = (k for k in kernels.run()["kernels"] if k["kernel"] == "softmax_kernel")
    assert ("regression", "f64") in {(c["kind"], c["metric"]) for c in changed["changes"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kernel", "softmx_kernel"), "softmax_kernel"),
        (("missing.ptx",), "no such file"),
        (("k",), "no kernel"),
        (("--explain", "real-spill"), "real-spills"),
        (("scripts/common.cu",), "source of no kernel"),
    ],
)
def test_what_does_not_exist_is_a_usage_error(
    kernels: Mini, arguments: tuple[str, ...], message: str
) -> None:
    done = kernels.command("lint", *arguments, code=2)
    assert message in done.stderr


def test_a_kernel_is_found_by_its_entry_too(kernels: Mini) -> None:
    names = {k["name"] for k in lint(kernels)["kernels"]}
    assert len(names) == 4
    entry = sorted(names - {"softmax_kernel"})[0]
    assert [k["name"] for k in lint(kernels, "--kernel", entry)["kernels"]] == [entry]
    assert [k["name"] for k in lint(kernels, "k/softmax.cu")["kernels"]] == ["softmax_kernel"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("text.ptx", b"this is no PTX\n"),
        ("empty.ptx", b""),
        ("elf.ptx", b"\x7fELF" + bytes(60)),
        ("short.cubin", b"\x7fELF"),
        ("junk.cubin", b"\x7fELF\x02\x01\x01" + b"\xff" * 400),
    ],
)
def test_a_bad_file_is_named_and_the_others_go_on(empty: Mini, name: str, content: bytes) -> None:
    give(empty, "softmax")
    (empty.root / name).write_bytes(content)
    found = lint(empty, name, "k/softmax.ptx", code=3)
    assert {k["name"]: k["verdict"] for k in found["kernels"]} == {
        name: "error",
        "softmax_kernel": "passed",
    }
    assert name in {problem["file"] for problem in found["problems"]}


def test_a_damaged_configured_artifact_does_not_stop_the_run(kernels: Mini) -> None:
    (kernels.root / "k/several_kernels.cubin").write_bytes(b"\x7fELF\x02\x01\x01" + b"\xff" * 99)
    report = kernels.run(code=3)
    verdicts = {k["kernel"]: k["verdict"] for k in report["kernels"]}
    assert verdicts["softmax_kernel"] == "passed"
    assert {p["file"] for p in report["problems"]} == {"k/several_kernels.ptx"}
    assert {r["verdict"] for r in report["results"]} == {"passed"}


def test_sarif_has_every_finding_at_its_line(kernels: Mini) -> None:
    kernels.edit("gpuemu.toml", "max_registers = 64", "max_registers = 10")
    text = kernels.command("lint", "--format", "sarif", code=1).stdout
    assert len(check_sarif(text)) > 1
    document = json.loads(text)
    (run,) = document["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    errors = [r for r in run["results"] if r["level"] == "error"]
    assert [r["ruleId"] for r in errors] == ["register-limit"]
    assert rules[errors[0]["ruleIndex"]] == "register-limit"
    place = errors[0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "scripts/kernels/softmax.cu"
    assert place["region"]["startLine"] > 1
    assert len(run["results"]) == sum(
        len(k["violations"]) for k in lint(kernels, code=1)["kernels"]
    )


def test_every_rule_is_explained(empty: Mini) -> None:
    shown = empty.command("lint", "--explain", "real-spills").stdout
    for word in ("What it does", "Why it matters", "Example", "Instead"):
        assert word in shown


def test_artifacts_show_figures_with_their_source(kernels: Mini) -> None:
    shown = kernels.command("artifacts", "--kernel", "softmax_kernel").stdout
    for word in ("figures from cubin", "15 per thread", "occupancy", "mix", "f32"):
        assert word in shown
    data = json.loads(kernels.command("artifacts", "--format", "json").stdout)
    assert len(data["kernels"]) == 4
    kernels.edit("gpuemu.toml", "max_registers = 64", "max_registers = 10")
    assert kernels.command("artifacts", code=0).stdout


def test_a_workspace_without_kernels_says_so(mini: Mini) -> None:
    assert "no kernels are configured" in mini.command("lint", code=4).stdout


@pytest.mark.ci
def test_flags_of_the_environment_that_no_build_takes_are_said(kernels: Mini) -> None:
    given = {"NVCC_APPEND_FLAGS": "-use_fast_math", "NVCC_PREPEND_FLAGS": "-O0 -DN=3"}
    for names in ([], ["NVCC_APPEND_FLAGS"], ["NVCC_PREPEND_FLAGS"], list(given)):
        kernels.env = {**dict.fromkeys(given, ""), **{name: given[name] for name in names}}
        for _ in range(2):
            problems = [p for p in kernels.run()["problems"] if p["slug"] == "nvcc-flags-dropped"]
            said = sorted(p["message"].partition(" is not used")[0] for p in problems)
            assert said == [f"{name}={given[name]}" for name in sorted(names)]
            assert all("write the flags into `flags`" in p["hint"] for p in problems)
    kernels.edit("gpuemu.toml", 'source = "k/softmax.cu"\n', "")
    assert kernels.run()["problems"] == [], "nothing is built here"


@pytest.mark.ci
def test_a_source_without_a_compiler_is_skipped_and_counted(kernels: Mini, tmp_path: Path) -> None:
    kernels.edit("gpuemu.toml", 'ptx = "k/softmax.ptx"\ncubin = "k/softmax.cubin"\n', "")
    kernels.env["PATH"] = str(tmp_path)
    report = kernels.run()
    skipped = [k for k in report["kernels"] if k["verdict"] == "skipped"]
    if not skipped:
        pytest.skip("an nvcc is installed as a package of this interpreter")
    assert [k["kernel"] for k in skipped] == ["softmax_kernel"]
    assert "pip install nvidia-cuda-nvcc" in skipped[0]["reason"]
    text = kernels.command("run", "--force").stdout
    assert "skipped" in text and "pip install" in text
