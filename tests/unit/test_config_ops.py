"""Test the meaning of an op's keys: defaults, inheritance, tolerances, policies, invariants,
schemas."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from config_workspace import DATA, SOFTMAX, ConfigWorkspace
from for_each import for_each

from gpuemu_flow.cases.op_schema import default_schema
from gpuemu_flow.config.fields import split_task
from gpuemu_flow.config.model import OpConfig
from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.model.types import CORE_STRATEGIES, STRATEGIES, Tolerance


@pytest.fixture
def workspace(tmp_path: Path) -> ConfigWorkspace:
    return ConfigWorkspace(tmp_path)


def softmax(workspace: ConfigWorkspace, keys: str = "", validation: str = "") -> OpConfig:
    head = f"[validation]\n{validation}\n" if validation else ""
    return workspace.load(head + SOFTMAX + keys).op("softmax")


def test_the_defaults_are_those_of_the_documentation(workspace: ConfigWorkspace) -> None:
    op = softmax(workspace)
    assert op.dtypes == ("float32",)
    six = ("contiguous", "strided", "transposed", "offset", "padded", "permuted")
    assert op.layouts == six
    assert op.strategies == STRATEGIES
    assert (op.cases, op.timeout, op.isolation, op.memory_limit) == (24, 60.0, "fork", None)
    assert (op.tolerance, op.tolerances) == ("auto", {})
    assert (op.nan_policy, op.inf_policy) == ("match", "match")
    assert op.input_names == ("input",)
    assert op.schema == default_schema(("input",))
    assert (op.execution_mode, op.skip_reason, op.line) == ("script_based", "", 4)
    config = workspace.load()
    assert config.validation.seed == 42
    assert config.policies.warn_threshold == 0.8
    assert config.policies.regression_threshold == 0.1
    assert config.policies.fail_on_regression
    assert (config.ci.thorough_timeout, config.ci.parallel_jobs) == (300.0, 1)
    assert config.execution.parallel == 0


def test_defaults_of_the_class_are_those_of_an_op_that_says_nothing(
    workspace: ConfigWorkspace,
) -> None:
    """Two places say them: the table of keys and, for tests and tools, the class."""
    op = softmax(workspace)
    for field in msgspec.structs.fields(OpConfig):
        if field.default is msgspec.NODEFAULT or field.name in ("op", "file", "line"):
            continue
        assert getattr(op, field.name) == field.default, field.name


def test_an_op_goes_over_validation(workspace: ConfigWorkspace) -> None:
    above = 'dtypes = ["f16"]\ncases = 3\nstrategies = ["core"]\nlayouts = { strided = false }'
    op = softmax(workspace, "", above)
    assert (op.dtypes, op.cases) == (("float16",), 3)
    assert op.strategies == CORE_STRATEGIES
    assert op.layouts == ("contiguous", "transposed")
    own = 'dtypes = ["Double", "f64"]\ncases = 4\nstrategies = ["special", "uniform"]\n'
    op = softmax(workspace, own + 'layouts = ["OFFSET"]\n', above)
    assert (op.dtypes, op.cases) == (("float64",), 4)
    assert op.strategies == ("uniform", "special")
    assert op.layouts == ("offset",)


def test_tolerances_of_both_shapes(workspace: ConfigWorkspace) -> None:
    op = softmax(
        workspace,
        "tolerances = { float32 = 1e-3, f16 = { rtol = 0.5 }, int8 = { atol = 1 } }\n",
        "tolerances = { float16 = { atol = 0.25 }, float64 = 2 }",
    )
    assert op.tolerance == "explicit"
    assert op.tolerances == {
        "float32": Tolerance(1e-3, 0.0, "op"),  # a bare number is absolute only
        "float16": Tolerance(0.25, 0.5, "atol validation, rtol op"),
        "int8": Tolerance(1.0, 0.0, "atol op, rtol default"),  # integers are exact by default
        "float64": Tolerance(2.0, 0.0, "validation"),
    }


@for_each(
    ("own", "above", "mode", "dtypes"),
    [
        ("", "", "auto", set()),
        ('tolerance = "table"\n', "", "table", set()),
        ("", 'tolerance = "table"', "table", set()),
        ('tolerance = "auto"\n', 'tolerance = "table"', "auto", set()),
        ("tolerances.float32 = 1\n", "", "explicit", {"float32"}),
        ("", "tolerances.float16 = 1", "explicit", {"float16"}),
        ("tolerances.float32 = 1\n", "tolerances.float16 = 1", "explicit", {"float32", "float16"}),
        ("", 'tolerance = "auto"\ntolerances.float16 = 1', "auto", {"float16"}),
        ("tolerances.float32 = 1\n", 'tolerance = "table"', "table", {"float32"}),
        ("tolerances.float32 = 1\n", 'tolerance = "auto"', "auto", {"float32"}),
        ('tolerance = "auto"\n', "tolerances.float16 = 1", "auto", set()),
        ('tolerance = "auto"\ntolerances.int8 = 1\n', "tolerances.float16 = 1", "auto", {"int8"}),
    ],
)
def test_which_tolerances_count(
    own: str, above: str, mode: str, dtypes: set[str], workspace: ConfigWorkspace
) -> None:
    op = softmax(workspace, own, above)
    assert (op.tolerance, set(op.tolerances)) == (mode, dtypes)


@for_each(
    ("own", "above", "policy"),
    [
        ("", "", "match"),
        ("", "check_nan = true", "strict"),
        ("", "check_nan = false", "match"),
        ("", 'nan_policy = "ignore"', "ignore"),
        ("check_nan = true\n", 'nan_policy = "ignore"', "strict"),
        ("check_nan = false\n", "check_nan = true", "match"),
        ('nan_policy = "ignore"\n', "check_nan = true", "ignore"),
    ],
)
def test_nan_policy(own: str, above: str, policy: str, workspace: ConfigWorkspace) -> None:
    assert softmax(workspace, own, above).nan_policy == policy
    inf_own, inf_above = own.replace("nan", "inf"), above.replace("nan", "inf")
    op = softmax(workspace, inf_own, inf_above)
    assert (op.inf_policy, op.nan_policy) == (policy, "match")


def test_invariants_of_both_shapes_differ_in_shape_preserved(workspace: ConfigWorkspace) -> None:
    op = softmax(workspace, 'invariants = ["finite", "shape_preserved"]\ninput_names = ["x", "y"]')
    assert op.invariants == ("shape_preserved", "finite")
    assert op.shape_preserved_input is None
    table = 'input_names = ["x", "y"]\ninvariants = { shape_preserved = true, finite = false }'
    op = softmax(workspace, table)
    assert op.invariants == ("shape_preserved",)
    assert op.shape_preserved_input == "x"
    op = softmax(workspace, "invariants = { shape_preserved = false }")
    assert (op.invariants, op.shape_preserved_input) == ((), None)


def test_input_names_follow_the_schema_when_absent(workspace: ConfigWorkspace) -> None:
    assert softmax(workspace, 'schema = "matmul"').input_names == ("a", "b")
    op = softmax(workspace, 'schema = { dims = { N = [1] }, inputs = { z = ["N"], y = [] } }')
    assert op.input_names == ("z", "y")
    reordered = 'schema = { dims = { N = [1] }, inputs = { z = ["N"], y = [] } }\n'
    op = softmax(workspace, reordered + 'input_names = ["y", "z"]')
    assert [tensor.name for tensor in op.schema.inputs] == ["y", "z"]
    assert softmax(workspace, "input_names = []").input_names == ("input",)


def test_plain_shapes_are_for_ops_without_a_schema(workspace: ConfigWorkspace) -> None:
    shapes = "shapes = { batch_sizes = [2, 2, 3], hidden_dims = [8], edge_cases = [5, [1, 0], []] }"
    schema = softmax(workspace, 'input_names = ["x", "y"]', shapes).schema
    assert [(dim.name, dim.candidates) for dim in schema.dims] == [
        ("batch", (2, 3)), ("hidden", (8,)),
    ]  # fmt: skip
    assert [tensor.name for tensor in schema.inputs] == ["x", "y"]
    assert schema.fixed_shapes == ((5,), (1, 0), ())
    assert softmax(workspace, 'schema = "norm"', shapes).schema.fixed_shapes == ()


def test_execution_modes(workspace: ConfigWorkspace) -> None:
    config = workspace.load((DATA / "valid" / "schema_page.toml").read_text())
    modes = {op.name: (op.execution_mode, bool(op.op), bool(op.skip_reason)) for op in config.ops}
    assert modes == {
        "layernorm": ("script_based", True, False),
        "client": ("client_side", False, True),
        "orchestrated": ("daemon_orchestrated", False, True),
    }


@for_each(
    ("keys", "kind", "function"),
    [
        ('execution_mode = "client_side"', "callable", "softmax"),
        ('op_script = "scripts/softmax.py"\nexecution_mode = "client_side"', None, ""),
        ('execution_mode = "script_based"', None, ""),
        ('module = "my_ops.softmax"', "callable", "softmax"),
        ('module = "my_ops.softmax:softmax"', "callable", "softmax"),
        ('module = "my_ops.activations.gelu"', "callable", "gelu"),
        ('module = "my_ops.activations"', None, ""),
        ('module = "elsewhere.softmax"', None, ""),
        ('module = "math:exp"', "callable", "exp"),
        ('module = "math:exp"\nop_script = "scripts/softmax.py"', "script", ""),
        ('module = "elsewhere.softmax"\nop_script = "scripts/softmax.py"', "script", ""),
        ('module = "my_ops.softmax"\nexecution_mode = "script_based"', "callable", "softmax"),
        (
            'module = "my_ops.softmax"\nop_script = "scripts/softmax.py"\n'
            'execution_mode = "daemon_side"', "callable", "softmax",
        ),
    ],
)  # fmt: skip
def test_which_program_runs(
    keys: str, kind: str | None, function: str, workspace: ConfigWorkspace
) -> None:
    """An op is skipped, with a reason, exactly when nothing can be run for it."""
    text = SOFTMAX if keys.startswith("execution_mode = \"client") else SOFTMAX.replace(
        'op = "scripts/softmax.py:softmax"\n', ""
    )  # fmt: skip
    op = workspace.load(text + keys).op("softmax")
    if kind is None:
        assert op.op is None
        assert op.skip_reason
    else:
        assert op.op is not None
        assert (op.op.kind, op.op.function, op.skip_reason) == (kind, function, "")


def test_a_module_without_a_function_of_the_right_name_says_so(workspace: ConfigWorkspace) -> None:
    text = SOFTMAX.replace('op = "scripts/softmax.py:softmax"', 'module = "my_ops.activations"')
    reason = workspace.load(text).op("softmax").skip_reason
    assert "defines no 'softmax' or 'activations'" in reason
    workspace.write("def broken(:\n", "my_ops/activations.py")
    assert "defines no" in workspace.load().op("softmax").skip_reason


@pytest.mark.parametrize(
    ("size", "expected"),
    [("1048576", 2**20), ('"2GB"', 2 * 10**9), ('"512MiB"', 2**29), ('"1.5 gb"', 1_500_000_000),
     ('"2097152"', 2**21), ('"0.5TiB"', 2**39)],
)  # fmt: skip
def test_sizes(size: str, expected: int, workspace: ConfigWorkspace) -> None:
    assert softmax(workspace, f"memory_limit = {size}").memory_limit == expected


@for_each("size", ["1000", '"1KB"', '"-2GB"', '"GB"', '""', '"1e9"', '"٣GB"', '"99999999999999TB"'])
def test_no_sizes(size: str, workspace: ConfigWorkspace) -> None:
    assert workspace.errors(SOFTMAX + f"memory_limit = {size}\n") == [(8, "config-value")]


def test_both_meanings_of_warn_threshold(workspace: ConfigWorkspace) -> None:
    small = workspace.load(SOFTMAX + "[policies]\nwarn_threshold = 0.2\n")
    assert (small.policies.warn_threshold, small.policies.regression_threshold) == (0.8, 0.2)
    assert [p.slug for p in small.warnings] == ["config-warn-threshold"]
    both = workspace.load(
        SOFTMAX + "[policies]\nwarn_threshold = 0.2\n[ci]\nregression_threshold = 0.3\n"
    )
    assert (both.policies.warn_threshold, both.policies.regression_threshold) == (0.8, 0.3)
    large = workspace.load(SOFTMAX + "[policies]\nwarn_threshold = 0.26\n")
    assert (large.policies.warn_threshold, large.policies.regression_threshold) == (0.26, 0.1)
    assert large.warnings == ()


def test_two_spellings_of_lists_are_united(workspace: ConfigWorkspace) -> None:
    text = (DATA / "invalid" / "conflicts.toml").read_text().replace("max_local_memory = 16", "")
    checks = workspace.load(text).kernels[0].checks
    assert checks.forbidden_instructions == ("printf", "trap")
    assert "max_registers" not in checks.given
    assert checks.max_registers == 128


def test_an_unknown_op_is_a_usage_error_with_the_nearest_name(workspace: ConfigWorkspace) -> None:
    config = workspace.load(SOFTMAX)
    with pytest.raises(UsageError, match="did you mean 'softmax'"):
        config.op("sofmax")
    with pytest.raises(UsageError, match="unknown-kernel"):
        config.kernel("softmax")


def test_names_of_tasks_can_be_told_apart() -> None:
    assert split_task("compare:softmax:float32") == ("compare", "softmax", "float32")
    assert split_task("compare:aten::softmax:bfloat16") == ("compare", "aten::softmax", "bfloat16")
    assert split_task("compare:aten::softmax") == ("compare", "aten::softmax", "")
    assert split_task("lint:k:sm_90a") == ("lint", "k", "sm_90a")
    assert split_task("diff:softmax") == ("diff", "softmax", "")
    assert split_task("softmax") is None
    assert split_task("compare:") is None


def test_kernels(workspace: ConfigWorkspace) -> None:
    config = workspace.load((DATA / "valid" / "ours.toml").read_text())
    triton = config.kernel("triton_add")
    assert triton.build.arch == ("sm_90",)
    assert triton.triton is not None
    assert triton.triton.path == workspace.root / "scripts/triton_add.py"
    assert (triton.triton.kernel, triton.triton.num_warps) == ("add", 4)
    assert triton.triton.constants == {"BLOCK": 128, "FAST": True, "EPS": 1e-6}
    assert [(a.rule, a.reason) for a in triton.allow] == [
        ("generic-address", "the pointer really is generic")
    ]
    built = config.kernel("built")
    assert built.ptx == workspace.root / "build/softmax.ptx"
    assert built.build.command == ("make", "build/softmax.ptx")
    assert built.dynamic_shared_memory == 48 * 1024
    assert built.allow[0].line > built.line
    assert config.policies.rules == {"generic-address": "off", "atomics-in-loop": "warning"}
    empty = workspace.load('[project]\nname = "x"\n[[kernels]]\nname = "k"\n').kernel("k")
    assert "no source" in empty.skip_reason


@pytest.mark.parametrize(
    ("own", "above", "precision"),
    [
        ("", "", "tensor-core"),
        ("", 'precision = "float32"', "float32"),
        ('precision = "input"\n', 'precision = "float32"', "input"),
    ],
)
def test_precision(own: str, above: str, precision: str, workspace: ConfigWorkspace) -> None:
    assert softmax(workspace, own, above).precision == precision
