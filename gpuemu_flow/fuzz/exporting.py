"""Export a recorded failure as a test that needs numpy and the op, and not this tool.

The test compares in the simplest way: each element with the reference's value and its allowed
error, both stored beside it. A failure for which that would not be right is refused.
"""

from __future__ import annotations

import ast
import io
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.failures import recorded_reason, stored_inputs, subject_for
from gpuemu_flow.fuzz.subjects import open_ordered
from gpuemu_flow.judge.case_evaluator import SESSIONS_PER_EVALUATOR, CaseEvaluator, Prepared
from gpuemu_flow.judge.judge import Criteria, Judge
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.in_place import with_changed_inputs
from gpuemu_flow.model.types import FailureKind, Tolerance
from gpuemu_flow.numerics.checked_output import Policy, SpecialInputs
from gpuemu_flow.numerics.contract_views import after_call
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, ML_DTYPES_NAMES, dtype_name, to_float64
from gpuemu_flow.numerics.envelope import Envelope
from gpuemu_flow.numerics.gradients import gradient_name
from gpuemu_flow.numerics.judge import AffineBound
from gpuemu_flow.numerics.layouts import lay_out_guarded
from gpuemu_flow.store.failures import FailureRecord, FailureStore
from gpuemu_flow.store.keys import digest_bytes
from gpuemu_flow.store.private_files import write_atomic
from gpuemu_flow.workers.api import DEFAULT_OUTPUT, Program
from gpuemu_flow.workers.arguments import pinned
from gpuemu_flow.workers.pool import Pool
from gpuemu_flow.workers.script import function_to_call

Array = NDArray[Any]
Arrays = Mapping[str, Array]
_ID = re.compile(r"[0-9a-f]{6,64}")
_LARGEST_EXACT = 2.0**53
_SHOWN = frozenset(
    kind.value
    for kind in (
        FailureKind.TOLERANCE, FailureKind.NAN, FailureKind.INF, FailureKind.SHAPE,
        FailureKind.DTYPE, FailureKind.OUTPUT_NAMES, FailureKind.INPUT_MODIFIED,
        FailureKind.EXECUTION,
    )
)  # fmt: skip

_TEST = '''\
"""A failing case as a test: it fails while the bug is there, and passes once it is fixed.

It needs pytest, numpy, the op, and the tensors beside it. If it passes although nothing was fixed,
the bug shows only among what gpuemu-flow does besides: gpuemu-flow reproduce {id}
"""

import importlib
import importlib.util
import inspect
import operator
import sys
from pathlib import Path

{imports}

HERE = Path(__file__).resolve().parent
ROOT = {root}
{constants}

def load():
{load}
    return operator.attrgetter(FUNCTION)(module)


def call(op, inputs):
    """By name, with one mapping, or in order, as the signature asks."""
    try:
        parameters = inspect.signature(op).parameters.values()
    except (TypeError, ValueError):
        return op(*inputs.values(), **KWARGS)
    kinds = {{p.kind for p in parameters}}
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needed = [p.name for p in named if p.default is p.empty and p.name not in KWARGS]
    any_number = inspect.Parameter.VAR_POSITIONAL in kinds and not needed
    if inspect.Parameter.POSITIONAL_ONLY in kinds or any_number:
        return op(*inputs.values(), **KWARGS)
    if len(needed) == 1 and needed[0] not in inputs:
        return op(inputs, **KWARGS)
    return op(**inputs, **KWARGS)


def {test}(monkeypatch):
    data = np.load(HERE / TENSORS)
    monkeypatch.chdir(ROOT)
    for path in PATHS:
        monkeypatch.syspath_prepend(str(path))
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    memory = {{name: data[f"input_{{at}}"] for at, name in enumerate(INPUTS)}}
    inputs = {{}}
    for name, (dtype, shape, offset, strides, writable) in INPUTS.items():
        inputs[name] = np.ndarray(shape, np.dtype(dtype), memory[name], offset, strides)
        inputs[name].flags.writeable = writable
    returned = call(load(), dict(inputs))
    for at, name in enumerate(INPUTS):
        same = name in MUTATES or np.array_equal(memory[name], data[f"input_{{at}}"])
        assert same, f"the op wrote to input {{name!r}}"
    left = {{name: inputs[source] for name, source in IN_PLACE.items()}}
    check(left if returned is None and left else returned, data)
    if left.keys() <= inputs.keys() and left:
        check(left, data)


def check(returned, data):
    if isinstance(returned, dict) and not len(returned) == len(OUTPUTS) == 1:
        assert set(returned) == set(OUTPUTS), f"the outputs are {{sorted(returned)}}"
        returned = [returned[name] for name in OUTPUTS]
    elif isinstance(returned, dict):
        returned = list(returned.values())
    elif not isinstance(returned, (tuple, list)):
        returned = [returned]
    assert len(returned) == len(OUTPUTS), f"{{len(returned)}} outputs, not {{len(OUTPUTS)}}"
    for at, (name, dtypes) in enumerate(OUTPUTS.items()):
        actual = np.asarray(returned[at])
        expected, allowed = data[f"expected_{{at}}"], data[f"allowed_{{at}}"]
        assert actual.shape == expected.shape, f"{{name!r}} has shape {{actual.shape}}"
        assert actual.dtype.name in dtypes, f"{{name!r}} has dtype {{actual.dtype}}, not {{dtypes}}"
        with np.errstate(all="ignore"):
            a, e = actual.astype(np.float64), expected.astype(np.float64)
            right = (a == e) if actual.dtype.kind not in "biu" else (actual == expected)
            right |= (np.isnan(a) & np.isnan(e)) | ((np.abs(a - e) <= allowed) & (allowed > 0))
        right |= np.isnan(allowed)  # nothing was promised there
        where = [tuple(map(int, index)) for index in np.argwhere(~right)[:1]]
        told = [f"at {{i}}: actual {{actual[i]!s}}, expected {{expected[i]!s}}" for i in where]
        wrong = f"{{(~right).sum()}} of {{right.size}} elements of {{name!r}} are wrong"
        assert right.all(), f"{{wrong}}; {{', '.join(told)}}; {{CASE}}"
'''
_FROM_FILE = """\
    spec = importlib.util.spec_from_file_location("gpuemu_op_" + OP.stem, OP)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)"""
_FROM_MODULE = """\
    module = importlib.import_module(OP)"""


def export_pytest(workspace: Workspace, record: FailureRecord, output: Path | None) -> Path:
    """Write a failure as a pytest file that runs without this tool, and return its path. Raises
    UsageError: ``export-refused``: the test could not tell whether the bug is there. Raises
    StoreError: ``failure-inputs-lost``; the folder cannot be written to. Raises RunnerError:
    ``reference-failed``; ``needs-missing``."""
    folder, file_name = Path.cwd(), ""
    if output is not None:
        folder, file_name = (output, "") if output.is_dir() else (output.parent, output.name)
    store = FailureStore(workspace.cache)
    workspace.cache.create()
    subject, _ = subject_for(workspace, record)
    function = _function_of(record, subject.op)
    elsewhere = [c.name for c in subject.compare.outputs if not c.plain]
    elsewhere += map(gradient_name, subject.compare.gradients)
    if elsewhere:
        _refuse(record, f"how {', '.join(map(repr, elsewhere))} is compared needs this tool")
    with (
        Pool(SESSIONS_PER_EVALUATOR) as pool,
        open_ordered(workspace, pool, subject) as evaluator,
    ):
        prepared = evaluator.prepare(record.case, stored_inputs(store, record))
        left = {after_call(name) for name in subject.op.mutates}
        kept = {name: a for name, a in prepared.expected.items() if name not in left}
        prepared = replace(prepared, expected=kept)
        inputs = dict(prepared.inputs)
        criteria = judge_of(evaluator, prepared).criteria(prepared.case, prepared.expected, inputs)
        # The envelope is measured here, for which the reference is needed.
        tensors = {
            f"{kind}_{at}": array
            for at, (name, values) in enumerate(prepared.expected.items())
            for kind, array in zip(
                ("expected", "allowed"),
                _promised(record, criteria, inputs, name, values, prepared.allowed[name][0]),
                strict=True,
            )
        }
    _check_shown(record, list(prepared.expected), tensors)
    usable = _ID.fullmatch(record.id) is not None
    name = record.id if usable else digest_bytes(ascii(record.id).encode())[:12]
    file_name = file_name or f"test_repro_{name}.py"
    program, inputs = pinned(subject.op, inputs)
    placed = {}
    for at, (key, values) in enumerate(inputs.items()):
        laid = lay_out_guarded(values, record.layouts.get(key, "contiguous"))
        where = laid.placement
        tensors[f"input_{at}"] = laid.buffer
        placed[key] = (
            str(dtype_name(values.dtype)), where.shape, where.offset, where.strides, where.writable
        )  # fmt: skip
    names = list(program.output_names) or [DEFAULT_OUTPUT]
    own = {key: key for key in inputs}
    constants: dict[str, Any] = {
        "FUNCTION": function,
        "KWARGS": dict(program.kwargs),
        "ENVIRONMENT": dict(program.env),
        "TENSORS": f"{Path(file_name).stem}.npz",
        "INPUTS": placed,
        "OUTPUTS": {key: tuple(prepared.allowed[key]) for key in prepared.expected},
        "MUTATES": tuple(program.mutates),
        "IN_PLACE": dict(with_changed_inputs(None, own, names, program.mutates) or {}),
        "CASE": _case_text(record, inputs),
    }
    text = _text(record, program, name, constants, folder.resolve())
    packed = io.BytesIO()
    np.savez_compressed(packed, **tensors)  # type: ignore[arg-type, unused-ignore]
    write_atomic(folder / constants["TENSORS"], packed.getvalue())
    write_atomic(folder / file_name, text.encode("ascii"))
    return folder / file_name


def judge_of(evaluator: CaseEvaluator, prepared: Prepared) -> Judge:
    """Return a judge, working in this process, for callers that need more than verdicts."""
    subject, traits = evaluator.subject, evaluator.facts.traits
    return Judge(subject.compare, prepared.allowed, subject.samples, evaluator, traits=traits)


def _refuse(record: FailureRecord, reason: str) -> NoReturn:
    hint = f"run `gpuemu-flow reproduce {record.id}`, or mark a test: see docs/pytest.md"
    text = f"no test without gpuemu-flow can show failure {record.id}: {reason}"
    raise UsageError(Problem("export-refused", text, hint))


def _function_of(record: FailureRecord, program: Program) -> str:
    """Return the name of the op's function; refuse what only this tool can run or see."""
    function = program.function if program.kind in ("callable", "numpy") else ""
    if program.kind == "script":
        try:
            function = function_to_call(Path(program.path).read_bytes(), program.path)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            function = ""
    if not function or program.groups or program.loads or program.python:
        _refuse(record, f"{record.op} is no function of numpy arrays in a file of this interpreter")
    written = set(program.output_names) & set(program.mutates)
    if written and written != set(program.output_names):
        _refuse(record, "the op returns some outputs, and writes others into its inputs")
    first = next(iter(record.result.failures), None)
    if first is not None and first.output in map(after_call, program.mutates):
        _refuse(
            record, "the test looks at what the op returns, not at what it leaves in its inputs"
        )
    if record.kind not in _SHOWN:
        _refuse(record, f"a plain call does not show {record.kind}")
    # The name of an exception, or the slug of another end.
    why = recorded_reason(record).partition(":")[2]
    raised = why and "-" not in why and "MemoryError" not in why
    if record.kind == FailureKind.EXECUTION.value and not raised:
        _refuse(record, "the op crashed, hung or lacked memory, which needs a process of its own")
    return function


def _check_shown(record: FailureRecord, names: list[str], tensors: Arrays) -> None:
    """Refuse a failure whose recorded element is within what is promised for it alone. The judge
    may narrow a tolerance by what all elements show together, which the test does not."""
    first = next(iter(record.result.failures), None)
    if first is None or first.kind is not FailureKind.TOLERANCE or first.output not in names:
        return
    at = names.index(first.output)
    expected, allowed = tensors[f"expected_{at}"], tensors[f"allowed_{at}"]
    if first.index is None or first.actual is None or len(first.index) != expected.ndim:
        return
    where = tuple(np.minimum(first.index, np.array(expected.shape) - 1))
    if not abs(first.actual - float(expected[where])) > allowed[where]:
        _refuse(record, "no element is wrong by itself, only all of them together")


def _promised(
    record: FailureRecord,
    criteria: Criteria,
    inputs: Arrays,
    name: str,
    values: Array,
    dtype: str,
) -> tuple[Array, Array]:
    """Return the expected values of an output, and the allowed error of each element. It is NaN
    where an element has no verdict."""
    fmt = FLOAT_LIMITS.get(dtype)
    if values.dtype.kind == "c":
        _refuse(record, f"{name!r} is complex")
    is_enveloped = (
        isinstance(criteria.tolerance, Envelope) and name not in criteria.contracts.tolerances
    )
    if isinstance(criteria.tolerance, Envelope) and is_enveloped:
        criteria.tolerance.thorough(name)  # the last word on an output about to fail
    bound = criteria.bound(name, dtype)
    if isinstance(bound, Tolerance):
        bound = AffineBound(bound.atol, bound.rtol)
    wide, everywhere = to_float64(values), slice(0, values.size)
    flat = wide.reshape(-1)
    allowed = np.array(bound.tolerance(flat, everywhere)).reshape(values.shape)
    unjudged = bound.no_verdict(everywhere)
    if fmt is None:
        if is_enveloped:
            allowed = np.zeros(values.shape)
        if (allowed > 0).any() and (np.abs(flat) > _LARGEST_EXACT).any():
            _refuse(record, f"{name!r} has large integers and a tolerance")
        expected = _as_integers(values, dtype)
    else:
        expected = wide
        largest = np.abs(wide) + allowed
        if dtype_name(values.dtype) != dtype and (np.isfinite(wide) & (largest > fmt.max)).any():
            _refuse(record, f"values of {name!r} lie at the end of the range of {dtype}")
        if not fmt.has_inf and not np.isfinite(wide).all():
            _refuse(record, f"{name!r} is not finite, which {dtype} cannot say")
        _check_policy(record, criteria.policy, inputs, wide)
    # Else an Inf would be within an infinite error.
    allowed = np.minimum(allowed, np.finfo(np.float64).max)
    allowed = np.where(np.isnan(allowed), 0.0, allowed)
    if unjudged is not None:
        allowed[unjudged.reshape(values.shape)] = np.nan
    return expected, allowed


def _as_integers(values: Array, dtype: str) -> Array:
    with np.errstate(all="ignore"):
        cast = values.astype(np.dtype(dtype))
    return cast if np.array_equal(cast.astype(np.float64), values.astype(np.float64)) else values


def _check_policy(record: FailureRecord, policy: Policy, inputs: Arrays, expected: Array) -> None:
    """Refuse policies for NaN and Inf under which equal values are wrong, or unequal ones right."""
    is_special = bool(SpecialInputs(inputs))
    policies = {policy.nan_policy, policy.inf_policy}
    finite = bool(np.isfinite(expected).all())
    strict = "strict" in policies and not is_special and not finite
    if strict or ("ignore" in policies and (is_special or not finite)):
        _refuse(record, "its policy for NaN or Inf is not that they match")


def _case_text(record: FailureRecord, inputs: Arrays) -> str:
    shapes = ", ".join(f"{name}{list(array.shape)}" for name, array in inputs.items())
    where = f"{record.dtype} {shapes} layout {record.layout} strategy {record.strategy}"
    return f"{record.op}: {where} seed {record.seed}; {record.kind}: {record.message}"


def _text(
    record: FailureRecord, program: Program, name: str, constants: dict[str, Any], folder: Path
) -> str:
    """Return the file; all that comes from the workspace is an ASCII literal in it."""
    root, op, extra = Path(program.root), program.path, f"OP = {program.module!a}"
    paths = "[ROOT]"
    if op:
        inside = Path(op).is_relative_to(root)
        shown = os.path.relpath(op, root) if inside else op
        extra = f"OP = ROOT / {shown!a}"
        paths = "[ROOT, OP.parent]"
    near = folder.is_relative_to(root)
    place = f"HERE / {os.path.relpath(root, folder)!a}" if near else f"Path({str(root)!a})"
    written = []
    for key, value in constants.items():
        literal = ascii(value)
        try:
            ast.literal_eval(literal)
        except (ValueError, SyntaxError):
            _refuse(record, f"a value of {key} cannot be written as one")
        written.append(f"{key} = {literal}")
    dtypes = {dtype for dtype, *_ in constants["INPUTS"].values()}
    dtypes |= {dtype for several in constants["OUTPUTS"].values() for dtype in several}
    extended = dtypes & set(ML_DTYPES_NAMES)
    imports = "import ml_dtypes  # noqa: F401 - numpy's missing dtypes\n" if extended else ""
    return _TEST.format(
        id=name,
        imports=f"{imports}import numpy as np",
        root=place,
        constants="\n".join((extra, f"PATHS = {paths}", *written, "")),
        load=_FROM_FILE if op else _FROM_MODULE,
        test=f"test_repro_{name}",
    )
