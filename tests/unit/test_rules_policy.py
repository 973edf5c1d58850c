"""Policies from the configuration: every documented name, and what goes over what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from config_workspace import ConfigWorkspace
from msgspec import to_builtins

from gpuemu_flow.build.compile_kernels import kernel_policy
from gpuemu_flow.lint.kernel import KernelPolicy

KERNEL = '[[kernels]]\nname = "k"\nptx = "kernels/k.ptx"\n'


@pytest.fixture
def workspace(tmp_path: Path) -> ConfigWorkspace:
    made = ConfigWorkspace(tmp_path)
    made.write("", "kernels/k.ptx")
    return made


def policy(workspace: ConfigWorkspace, kernel: str = "", policies: str = "") -> KernelPolicy:
    """Of a kernel with these lines, in a workspace with these policies."""
    text = f'[project]\nname = "p"\n[policies]\n{policies}\n{KERNEL}{kernel}\n'
    config = workspace.load(text)
    assert workspace.check(text) == []
    return kernel_policy(config.policies, config.kernels[0])


def test_defaults_are_the_documented_ones(workspace: ConfigWorkspace) -> None:
    found = policy(workspace)
    assert found == KernelPolicy()
    assert (found.max_registers, found.max_spills, found.max_local_memory_bytes) == (128, 0, 0)
    assert found.limit_severity("max_registers") == "warning"


def test_all_names_of_artifact_checks(workspace: ConfigWorkspace) -> None:
    found = policy(
        workspace,
        """
        allow = { local-memory = "the table is needed" }
        arch = ["sm_80", "90"]
        [kernels.artifact_checks]
        max_registers = 64
        max_spills = 4
        max_spill_bytes = 32
        max_local_memory = 16
        max_shared_memory = "1KiB"
        max_instructions = 500
        min_occupancy = 0.5
        forbidden_patterns = ["STL", "f64"]
        required_patterns = ["mma.sync"]
        tensor_cores = true
        """,
        'rules = { debug-call = "error" }',
    )
    assert found == KernelPolicy(
        max_registers=64,
        max_spills=4,
        max_spill_bytes=32,
        max_local_memory_bytes=16,
        max_shared_memory=1024,
        max_instructions=500,
        min_occupancy=0.5,
        forbidden_instructions=("STL", "f64"),
        required_patterns=("mma.sync",),
        expect_tensor_cores=True,
        severities={"debug-call": "error"},
        allow={"local-memory": "the table is needed"},
        archs=("sm_80", "sm_90"),
        explicit=found.explicit,
    )
    for limit in ("max_registers", "max_local_memory_bytes", "min_occupancy"):
        assert found.limit_severity(limit) == "error"


def test_policies_give_defaults_that_a_kernel_overrides(workspace: ConfigWorkspace) -> None:
    policies = """
        registers = { max = 96, warn_above = 80 }
        spills = { max = 2, warn_above = 1 }
        local_memory = { max_bytes = 64, warn_above = 32 }
        """
    found = policy(workspace, "artifact_checks = { max_registers = 72 }", policies)
    assert (found.max_registers, found.registers_warn_above) == (72, 80)
    assert (found.max_spills, found.spills_warn_above) == (2, 1)
    assert (found.max_local_memory_bytes, found.local_memory_warn_above) == (64, 32)
    assert found.limit_severity("max_spills") == "error"


@pytest.mark.parametrize("key", ["max_local_memory", "max_local_memory_bytes"])
def test_both_spellings_of_local_memory(workspace: ConfigWorkspace, key: str) -> None:
    assert policy(workspace, f"artifact_checks = {{ {key} = 8 }}").max_local_memory_bytes == 8


def test_both_spellings_of_forbidden_instructions_are_united(workspace: ConfigWorkspace) -> None:
    checks = '{ forbidden_instructions = ["f64"], forbidden_patterns = ["STL"] }'
    found = policy(workspace, f"artifact_checks = {checks}")
    assert set(found.forbidden_instructions) == {"f64", "STL"}


def test_files_without_a_kernel_are_held_to_the_policies(workspace: ConfigWorkspace) -> None:
    config = workspace.load(f'[project]\nname = "p"\n[policies]\nspills = {{ max = 3 }}\n{KERNEL}')
    found = kernel_policy(config.policies, None)
    assert (found.max_spills, found.archs, found.allow) == (3, (), {})


def test_json_is_canonical() -> None:
    first = KernelPolicy(
        allow={"b": "1", "a": "2"}, explicit=frozenset({"max_spills", "max_registers"})
    )
    second = KernelPolicy(
        allow={"a": "2", "b": "1"}, explicit=frozenset({"max_registers", "max_spills"})
    )
    one, other = (to_builtins(each, order="deterministic") for each in (first, second))
    assert json.dumps(one) == json.dumps(other)
