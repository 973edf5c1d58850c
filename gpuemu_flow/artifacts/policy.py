"""Limits and severities that kernels are checked against: the config's names, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gpuemu_flow.errors import Problem, did_you_mean

SEVERITIES = ("error", "warning", "info", "off")

# Documented name in [[kernels]].artifact_checks -> field of Policy.
CHECK_KEYS: dict[str, str] = {
    "max_registers": "max_registers",
    "max_spills": "max_spills",
    "max_spill_bytes": "max_spill_bytes",
    "max_local_memory_bytes": "max_local_memory_bytes",
    "max_local_memory": "max_local_memory_bytes",
    "max_shared_memory": "max_shared_memory",
    "max_instructions": "max_instructions",
    "min_occupancy": "min_occupancy",
    "forbidden_instructions": "forbidden_instructions",
    "forbidden_patterns": "forbidden_instructions",
    "required_patterns": "required_patterns",
    "expect_tensor_cores": "expect_tensor_cores",
    "severity": "severities",
    "allow": "allow",
}

# Documented table in [policies] -> (key -> field of Policy).
POLICY_TABLES: dict[str, dict[str, str]] = {
    "registers": {"max": "max_registers", "warn_above": "registers_warn_above"},
    "spills": {"max": "max_spills", "warn_above": "spills_warn_above"},
    "local_memory": {
        "max_bytes": "max_local_memory_bytes",
        "warn_above": "local_memory_warn_above",
    },
}
POLICY_KEYS: dict[str, str] = {
    "fail_on_regression": "fail_on_regression",
    "warn_threshold": "warn_threshold",
    "regression_threshold": "regression_threshold",
}

_LISTS = frozenset({"forbidden_instructions", "required_patterns"})
_FLAGS = frozenset({"expect_tensor_cores", "fail_on_regression"})
_FRACTIONS = frozenset({"min_occupancy", "warn_threshold", "regression_threshold"})
_RELATIVE_GROWTH_AT_MOST = 0.25


@dataclass(frozen=True)
class Policy:
    """What a kernel must keep to.

    Attributes
    ----------
    max_registers : int
        Per thread.
    max_spills : int
        Spill instructions, loads and stores together.
    max_spill_bytes : int or None
    max_local_memory_bytes : int
        Stack bytes per thread.
    max_shared_memory : int or None
        Static shared memory per block, bytes.
    max_instructions : int or None
        PTX instructions.
    min_occupancy : float or None
        Fraction of a multiprocessor's warps, 0 to 1.
    registers_warn_above, spills_warn_above, local_memory_warn_above : int or None
        A warning above these, below the maximum.
    forbidden_instructions, required_patterns : tuple of str
    expect_tensor_cores : bool
    severities : dict
        Rule to ``error``, ``warning``, ``info`` or ``off``.
    allow : dict
        Rule to the reason why its violations are accepted.
    archs : tuple of str
        Architectures the kernel must build for.
    fail_on_regression : bool
    warn_threshold : float
        Fraction of a validation tolerance above which to warn.
    regression_threshold : float
        Relative growth that counts as a regression of a metric without a rule of its own.
    explicit : frozenset of str
        Fields that the user has set. Exceeding a limit that is merely our default is a warning:
        kernels of published packages do that on purpose.
    """

    max_registers: int = 128
    max_spills: int = 0
    max_spill_bytes: int | None = None
    max_local_memory_bytes: int = 0
    max_shared_memory: int | None = None
    max_instructions: int | None = None
    min_occupancy: float | None = None
    registers_warn_above: int | None = None
    spills_warn_above: int | None = None
    local_memory_warn_above: int | None = None
    forbidden_instructions: tuple[str, ...] = ()
    required_patterns: tuple[str, ...] = ()
    expect_tensor_cores: bool = False
    severities: Mapping[str, str] = field(default_factory=dict)
    allow: Mapping[str, str] = field(default_factory=dict)
    archs: tuple[str, ...] = ()
    fail_on_regression: bool = True
    warn_threshold: float = 0.8
    regression_threshold: float = 0.1
    explicit: frozenset[str] = frozenset()

    def limit_severity(self, name: str) -> str:
        """Severity of exceeding a limit: an error when the user has set it."""
        return "error" if name in self.explicit else "warning"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON with sorted collections, for cache keys and reports."""
        out: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Mapping):
                value = dict(sorted(value.items()))
            elif isinstance(value, frozenset):
                value = sorted(value)
            elif isinstance(value, tuple):
                value = list(value)
            out[item.name] = value
        return out


def policy_from_tables(
    checks: Mapping[str, Any] | None = None,
    policies: Mapping[str, Any] | None = None,
    ci: Mapping[str, Any] | None = None,
    archs: tuple[str, ...] = (),
) -> tuple[Policy, list[Problem]]:
    """Policy of one kernel from the config's tables, under all documented names.

    Parameters
    ----------
    checks : mapping
        ``[[kernels]]``'s ``artifact_checks``; stronger than `policies`.
    policies : mapping
        ``[policies]``: defaults for all kernels.
    ci : mapping
        ``[ci]``; only ``regression_threshold`` is taken from it.
    archs : tuple of str
        ``build.arch``.

    Returns
    -------
    (Policy, list of Problem)
        Unknown keys are warnings; values of the wrong type are errors and keep the default.
    """
    reader = _TableReader()
    regression = (ci or {}).get("regression_threshold")
    if regression is not None:
        reader.take("regression_threshold", regression, "ci.regression_threshold")
    reader.read_policies(policies or {})
    reader.read_checks(checks or {})
    reader.settle_warn_threshold()
    explicit = frozenset(reader.values)
    policy = replace(Policy(), **reader.values, archs=archs, explicit=explicit)
    return policy, reader.problems


class _TableReader:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.problems: list[Problem] = []

    def read_policies(self, policies: Mapping[str, Any]) -> None:
        for key, value in policies.items():
            if key in POLICY_KEYS:
                self.take(POLICY_KEYS[key], value, f"policies.{key}")
            elif key in POLICY_TABLES:
                self._read_table(key, value)
            else:
                self._unknown(f"policies.{key}", key, (*POLICY_KEYS, *POLICY_TABLES))

    def _read_table(self, name: str, table: object) -> None:
        if not isinstance(table, Mapping):
            self._wrong(f"policies.{name}", table, "a table")
            return
        for key, value in table.items():
            if key in POLICY_TABLES[name]:
                self.take(POLICY_TABLES[name][key], value, f"policies.{name}.{key}")
            else:
                self._unknown(f"policies.{name}.{key}", key, tuple(POLICY_TABLES[name]))

    def read_checks(self, checks: Mapping[str, Any]) -> None:
        for key, value in checks.items():
            if key in CHECK_KEYS:
                self.take(CHECK_KEYS[key], value, f"artifact_checks.{key}")
            else:
                self._unknown(f"artifact_checks.{key}", key, tuple(CHECK_KEYS))

    def take(self, name: str, value: object, key: str) -> None:
        """Check one value's type and keep it; lists under two names are united."""
        if name in _LISTS:
            if not (isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)):
                self._wrong(key, value, "a list of strings")
                return
            value = tuple(dict.fromkeys((*self.values.get(name, ()), *value)))
        elif name in _FLAGS:
            if not isinstance(value, bool):
                self._wrong(key, value, "true or false")
                return
        elif name in _FRACTIONS:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 <= float(value) <= 1:  # type: ignore[arg-type]
                self._wrong(key, value, "a number from 0 to 1")
                return
        elif name == "severities":
            value = self._severities(value, key)
        elif name == "allow":
            value = self._allowed(value, key)
        elif isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self._wrong(key, value, "a number of at least 0")
            return
        self.values[name] = value

    def settle_warn_threshold(self) -> None:
        """A small ``warn_threshold`` has the other documented meaning: relative growth."""
        threshold = self.values.get("warn_threshold")
        if threshold is None or threshold > _RELATIVE_GROWTH_AT_MOST:
            return
        del self.values["warn_threshold"]
        self.values.setdefault("regression_threshold", threshold)
        self.problems.append(
            Problem(
                "policy-warn-threshold",
                f"policies.warn_threshold = {threshold} is taken as relative growth",
                "write it as regression_threshold; warn_threshold is a fraction of a tolerance",
                warning=True,
            )
        )

    def _severities(self, value: object, key: str) -> dict[str, str]:
        if not isinstance(value, Mapping):
            self._wrong(key, value, "a table of rule = severity")
            return {}
        chosen = {}
        for rule, severity in value.items():
            if severity in SEVERITIES:
                chosen[str(rule)] = str(severity)
            else:
                self._wrong(f"{key}.{rule}", severity, f"one of {', '.join(SEVERITIES)}")
        return chosen

    def _allowed(self, value: object, key: str) -> dict[str, str]:
        """``{ rule = "reason" }``, or a list of such or of ``"rule reason"``."""
        items = value if isinstance(value, list | tuple) else [value]
        allowed: dict[str, str] = {}
        for item in items:
            if isinstance(item, Mapping):
                pairs = [(str(rule), reason) for rule, reason in item.items()]
            elif isinstance(item, str):
                rule, _, reason = item.strip().partition(" ")
                pairs = [(rule, reason)]
            else:
                self._wrong(key, item, 'a table of rule = "reason"')
                continue
            for rule, reason in pairs:
                if isinstance(reason, str) and reason.strip():
                    allowed[rule] = reason.strip()
                else:
                    self._wrong(f"{key}.{rule}", reason, "a reason, in words")
        return allowed

    def _wrong(self, key: str, value: object, expected: str) -> None:
        self.problems.append(Problem("policy-bad-value", f"{key} = {value!r} is not {expected}"))

    def _unknown(self, place: str, key: str, known: tuple[str, ...]) -> None:
        self.problems.append(
            Problem(
                "policy-unknown-key",
                f"unknown key {place}",
                did_you_mean(key, known),
                warning=True,
            )
        )
