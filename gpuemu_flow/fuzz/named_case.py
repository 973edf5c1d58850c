"""Make a case from the text that a report printed for it, without a record of the case."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cases.op_schema import OpSchema, allows_size, takes_any_rank
from gpuemu_flow.cases.shapes import listed_sizes
from gpuemu_flow.fuzz.subjects import OpSubject, dtypes_of, op_subject, select_ops
from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.model.types import (
    ABSENT,
    DTYPES,
    LAYOUTS,
    Case,
    CheckResult,
    InputSpec,
    Verdict,
    canonical_dtype,
    strategies_of,
)
from gpuemu_flow.store.failures import FailureRecord

LOOKED_AT = 2000
"""Number of cases of the workspace's master seed among which a case is looked for by its seed."""
MAX_ELEMENTS = 1 << 31
TRIED = 100_000
"""Maximum number of sizes that are tried for dims that no shape contains."""
_DEMANDS = re.compile(r"(?:ends([1-9]))?(?:turn([1-9]))?(?:near([-+.e0-9]+(?:_[-+.e0-9]+)*))?")
_DIMS = re.compile(r"(\d{1,9}(x\d{1,9})*)?")


def case_from_text(schema: OpSchema, seed: int, text: str) -> Case:
    """Return the case that `text`, a result of `Case.to_text`, describes. `schema` is the schema of
    the op, and `seed` is the case's seed. Raises UsageError: ``bad-case``."""
    dtype, _, rest = text.partition("/")
    known = _known("dtype", canonical_dtype(dtype) or dtype, tuple(DTYPES))
    given = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    names = [tensor.name for tensor in schema.inputs]
    if list(given) != names:
        raise _bad(f"it gives {', '.join(given) or 'no input'}; the op takes {', '.join(names)}")
    inputs = []
    for position, tensor in enumerate(schema.inputs):
        words = (*given[tensor.name].split(":"), *[""] * 5)[:6]
        dims, strategy, layout, own, asked, more = words
        demands = _DEMANDS.fullmatch(asked)
        if not _DIMS.fullmatch(dims) or not demands or more:
            raise _bad(f"{given[tensor.name][:60]!r} is no shape such as 3x5:normal:strided")
        shape = tuple(int(size) for size in dims.split("x")) if dims else ()
        inputs.append(
            InputSpec(
                tensor.name,
                shape,
                _known("dtype", own or tensor.dtype or known, tuple(DTYPES)),
                _known("layout", layout or "contiguous", LAYOUTS),
                _known("strategy", strategy or "normal", strategies_of(tensor.rule)),
                position,
                tensor.low,
                tensor.high,
                ends=int(demands[1] or 0),
                turn=int(demands[2] or 0),
                near=_numbers(demands[3]),
                rule=tensor.rule,
            )
        )
    _demand_shapes(schema, inputs)
    case = _whole(schema, seed, known, tuple(inputs))
    if case.numel > MAX_ELEMENTS:
        raise _bad("its inputs have too many elements")
    return case


def _numbers(text: str | None) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split("_"))) if text else ()
    except ValueError:
        raise _bad(f"{text!r} is no list of numbers such as 20.0_-0.5") from None


def _demand_shapes(schema: OpSchema, inputs: Sequence[InputSpec]) -> None:
    """Raise ``bad-case`` if no choice of sizes for the schema's dims gives these shapes."""
    if takes_any_rank(schema):
        return
    sizes: dict[str, int] = {}
    for tensor, spec in zip(schema.inputs, inputs, strict=True):
        if spec.strategy == ABSENT or (not tensor.dims and schema.fixed_shapes):
            continue
        form = ", ".join(str(dim) for dim in tensor.dims)
        shown = "x".join(map(str, spec.shape))
        if len(spec.shape) != len(tensor.dims):
            raise _bad(f"{tensor.name}={shown} does not fit [{form}] of the op's schema")
        for dim, size in zip(tensor.dims, spec.shape, strict=True):
            meant = sizes.setdefault(dim, size) if isinstance(dim, str) else dim
            if meant != size:
                raise _bad(
                    f"{tensor.name}={shown} does not fit [{form}]: {size} instead of {meant}"
                )


def disallowed_sizes(schema: OpSchema, case: Case) -> str:
    """List, as text, the dims of a case whose sizes the op's schema does not allow; '' for none."""
    if takes_any_rank(schema):
        return ""
    sizes, known = dict(case.dims), {dim.name: dim for dim in schema.dims}
    found = [
        f"{name} = {size}"
        for name, size in sizes.items()
        if name in known and not allows_size(known[name], size)
    ]
    return ", ".join(found)


def _whole(schema: OpSchema, seed: int, dtype: str, inputs: tuple[InputSpec, ...]) -> Case:
    """Return the case with these inputs; infer its layout, strategy and target from them. An input
    is special if its layout is not ``contiguous``. If all layouts are ``contiguous``, an input is
    special if its strategy is not ``normal``. The case has the layout and strategy of its first
    special input; without one, of its first input. The first special input is the target, unless
    all inputs are special."""
    special = [i for i in inputs if i.layout != "contiguous"] or [
        i for i in inputs if i.strategy != "normal"
    ]
    about = special[0] if special else inputs[0] if inputs else None
    dims = {
        dim: size
        for tensor, spec in zip(schema.inputs, inputs, strict=True)
        if spec.strategy != ABSENT
        for dim, size in zip(tensor.dims, spec.shape, strict=False)
        if isinstance(dim, str)
    }
    return Case(
        index=0,
        seed=seed,
        dtype=dtype,
        layout=about.layout if about else "contiguous",
        strategy=about.strategy if about else "normal",
        inputs=inputs,
        target=about.name if about and 0 < len(special) < len(inputs) else None,
        dims=_dims(schema, dims),
    )


def _dims(schema: OpSchema, seen: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return the sizes of the dims by name. `seen` has the sizes of the dims that the inputs'
    shapes contain. All other dims are left out if the schema has neither derived dims nor limits on
    dims. Otherwise, the result has all dims and derived dims: those that the shapes do not contain
    get sizes that the schema allows. If no such sizes are found, ``bad-case`` is raised."""
    known = {dim.name: seen[dim.name] for dim in schema.dims if dim.name in seen}
    if not (schema.derived or schema.limits):
        return tuple(known.items())
    hidden = [dim for dim in schema.dims if dim.name not in seen]
    options = [listed_sizes(dim) or range(dim.smallest, dim.largest + 1) for dim in hidden]
    for sizes in islice(itertools.product(*options), TRIED):
        named = {**known, **{d.name: n for d, n in zip(hidden, sizes, strict=True)}}
        if schema.allows(named):
            ordered = {dim.name: named[dim.name] for dim in schema.dims}
            found = schema.all_sizes(ordered)
            if all(found.get(name, size) == size for name, size in seen.items()):
                return tuple(found.items())
    raise _bad("its shapes do not fit the schema's dims")


def cases_of_seed(subject: OpSubject, seed: int) -> list[Case]:
    """Return the op's case with this seed, in a list; empty if no early case of the op has it. Only
    the first `LOOKED_AT` cases of the workspace's master seed are searched."""
    return [case for case in islice(subject.cases(), LOOKED_AT) if case.seed == seed][:1]


def records_from_words(
    workspace: Workspace, seed: int, op: str, dtype: str | None = None, text: str | None = None
) -> list[FailureRecord]:
    """Make records of the cases with a seed, as if ``run`` had found that they fail. Raises
    UsageError: ``bad-case``, ``unknown-op``, ``op-skipped``, ``no-such-dtype``; ``unknown-
    failure`` if no case has the seed."""
    (name,) = select_ops(workspace, [op])
    if text is not None:
        first = op_subject(workspace, name, dtypes_of(workspace, name)[0])
        cases = [case_from_text(first.schema, seed, text)]
        dtypes_of(workspace, name, [cases[0].dtype])
    else:
        wanted = dtypes_of(workspace, name, [dtype] if dtype else [])
        cases = [
            case for one in wanted for case in cases_of_seed(op_subject(workspace, name, one), seed)
        ]
    if not cases:
        message = f"no failure of {name!r} has the seed {seed}, and none of its first cases"
        hint = "give the whole line that was printed, with --case"
        raise UsageError(Problem("unknown-failure", message, hint))
    unknown = CheckResult(Verdict.FAILED, ())
    return [
        replace(FailureRecord.of(name, case, unknown, source="run"), id=f"case {seed}")
        for case in cases
    ]


def _known(what: str, word: str, known: tuple[str, ...]) -> str:
    if word not in known:
        raise _bad(f"there is no {what} {word[:40]!r}; {did_you_mean(word[:40], known)}")
    return word


def _bad(reason: str) -> UsageError:
    hint = "copy the words after --case from the report"
    return UsageError(Problem("bad-case", f"--case: {reason}", hint))
