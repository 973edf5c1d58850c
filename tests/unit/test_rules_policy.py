"""Policies from the config's tables: every documented name, bad values, unknown keys."""

from __future__ import annotations

import json

import pytest

from gpuemu_flow.artifacts.policy import Policy, policy_from_tables


def test_defaults_are_the_documented_ones() -> None:
    policy, problems = policy_from_tables()
    assert problems == []
    assert policy == Policy()
    assert (policy.max_registers, policy.max_spills, policy.max_local_memory_bytes) == (128, 0, 0)
    assert (policy.fail_on_regression, policy.warn_threshold) == (True, 0.8)
    assert policy.limit_severity("max_registers") == "warning"


def test_all_names_of_artifact_checks() -> None:
    policy, problems = policy_from_tables(
        {
            "max_registers": 64,
            "max_spills": 4,
            "max_spill_bytes": 32,
            "max_local_memory": 16,
            "max_shared_memory": 1024,
            "max_instructions": 500,
            "min_occupancy": 0.5,
            "forbidden_instructions": ["f64"],
            "forbidden_patterns": ["STL", "f64"],
            "required_patterns": ["mma.sync"],
            "expect_tensor_cores": True,
            "severity": {"debug-call": "error"},
            "allow": {"local-memory": "the table is needed"},
        }
    )
    assert problems == []
    assert policy.max_local_memory_bytes == 16
    assert policy.forbidden_instructions == ("f64", "STL")
    assert policy.severities == {"debug-call": "error"}
    assert policy.allow == {"local-memory": "the table is needed"}
    assert policy.limit_severity("max_local_memory_bytes") == "error"
    assert policy.limit_severity("max_registers") == "error"


def test_policies_give_defaults_that_a_kernel_overrides() -> None:
    tables = {
        "registers": {"max": 96, "warn_above": 80},
        "spills": {"max": 2, "warn_above": 1},
        "local_memory": {"max_bytes": 64, "warn_above": 32},
        "fail_on_regression": False,
        "warn_threshold": 0.9,
    }
    policy, problems = policy_from_tables({"max_registers": 72}, tables)
    assert problems == []
    assert (policy.max_registers, policy.registers_warn_above) == (72, 80)
    assert (policy.max_spills, policy.spills_warn_above) == (2, 1)
    assert (policy.max_local_memory_bytes, policy.local_memory_warn_above) == (64, 32)
    assert (policy.fail_on_regression, policy.warn_threshold) == (False, 0.9)


def test_both_spellings_of_local_memory() -> None:
    for key in ("max_local_memory", "max_local_memory_bytes"):
        assert policy_from_tables({key: 8})[0].max_local_memory_bytes == 8


def test_a_small_warn_threshold_means_growth() -> None:
    policy, problems = policy_from_tables(policies={"warn_threshold": 0.1})
    assert (policy.warn_threshold, policy.regression_threshold) == (0.8, 0.1)
    assert [(p.slug, p.warning) for p in problems] == [("policy-warn-threshold", True)]
    policy, _ = policy_from_tables(
        policies={"warn_threshold": 0.1}, ci={"regression_threshold": 0.2}
    )
    assert policy.regression_threshold == 0.2


@pytest.mark.parametrize(
    ("checks", "key"),
    [
        ({"max_registers": "64"}, "max_registers"),
        ({"max_registers": -1}, "max_registers"),
        ({"max_spills": True}, "max_spills"),
        ({"min_occupancy": 50}, "min_occupancy"),
        ({"forbidden_instructions": "f64"}, "forbidden_instructions"),
        ({"required_patterns": [1]}, "required_patterns"),
        ({"expect_tensor_cores": 1}, "expect_tensor_cores"),
        ({"severity": {"debug-call": "fatal"}}, "severity.debug-call"),
        ({"severity": "off"}, "severity"),
        ({"allow": {"debug-call": ""}}, "allow.debug-call"),
        ({"allow": ["debug-call"]}, "allow.debug-call"),
        ({"allow": 3}, "allow"),
    ],
)
def test_bad_values_are_named_and_the_default_stays(checks: dict[str, object], key: str) -> None:
    policy, problems = policy_from_tables(checks)
    assert [(p.slug, p.warning) for p in problems] == [("policy-bad-value", False)]
    assert f"artifact_checks.{key} =" in problems[0].message
    assert policy.max_registers == 128
    assert policy.allow == {}


def test_unknown_keys_are_warnings_with_the_nearest_name() -> None:
    _, problems = policy_from_tables({"max_register": 3}, {"spils": {}, "spills": {"maximum": 1}})
    assert [(p.slug, p.warning) for p in problems] == [("policy-unknown-key", True)] * 3
    assert "spills" in problems[0].hint
    assert "max_registers" in problems[2].hint


def test_a_table_that_is_no_table() -> None:
    _, problems = policy_from_tables(policies={"registers": 64})
    assert [p.slug for p in problems] == ["policy-bad-value"]


def test_allow_as_a_list_of_texts() -> None:
    policy, problems = policy_from_tables(
        {"allow": ["debug-call reports overflow", {"local-memory": "x"}]}
    )
    assert problems == []
    assert policy.allow == {"debug-call": "reports overflow", "local-memory": "x"}


def test_json_is_canonical() -> None:
    first, _ = policy_from_tables(
        {"allow": {"b": "1", "a": "2"}, "max_spills": 1, "max_registers": 2}
    )
    second, _ = policy_from_tables(
        {"max_registers": 2, "max_spills": 1, "allow": {"a": "2", "b": "1"}}
    )
    assert json.dumps(first.to_json()) == json.dumps(second.to_json())
