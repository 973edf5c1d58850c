"""The parts of the configuration that affect the results of tasks, with one class per stage.

All fields contain plain JSON, from which action keys and snapshots are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from msgspec import Struct, ValidationError, field
from msgspec.structs import asdict

from gpuemu_flow.judge.subject import CompareParams
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.types import Json, listed
from gpuemu_flow.tasks import stages


class StageParams(Protocol):
    """Parameters of one stage."""

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON for action keys; `params_from_json` is its inverse."""


class _Plain(Struct, frozen=True, kw_only=True):
    """Base class of parameters whose fields contain plain JSON."""

    STAGE: ClassVar[str]

    def to_json(self) -> dict[str, Json]:
        """Return the fields that are not None; see `StageParams`."""
        return {name: listed(value) for name, value in asdict(self).items() if value is not None}


class GenerateParams(_Plain, frozen=True, kw_only=True):
    """Settings from which the cases are planned."""

    STAGE = stages.GENERATE
    schema: Json
    layouts: list[str]
    strategies: list[str]
    count: int
    seed: int
    samples_seed: int
    dtype: str


class ProgramParams(_Plain, frozen=True, kw_only=True):
    """A program, and its arguments."""

    ref: Json
    input_names: list[str]
    output_names: list[str]
    kwargs: Json
    env: dict[str, str]
    env_names: list[str]
    python: str | None = None
    groups: Json = None
    gradients: Json = None


class OpParams(ProgramParams, frozen=True, kw_only=True):
    """An op under test."""

    STAGE = stages.OP
    mutates: list[str]
    deterministic: bool
    require_kernel: bool
    forbid: list[str]
    sandbox: Mapping[str, Json]
    masks: Mapping[str, Json] = field(default_factory=dict)


class ReferenceParams(ProgramParams, frozen=True, kw_only=True):
    """A reference, and the `dtype` in which to run it.

    If `dtype` is None, the reference is run in float64. Cases for which this fails are run in their
    own dtype.
    """

    STAGE = stages.REFERENCE
    dtype: str | None = None


class DiffParams(_Plain, frozen=True, kw_only=True):
    """The fraction by which an error may grow without being reported."""

    STAGE = stages.DIFF
    regression_threshold: float


class BuildParams(_Plain, frozen=True, kw_only=True):
    """The source and the options of a kernel's build."""

    STAGE = stages.BUILD
    kind: str
    arch: str
    tools: list[list[str]]
    unusable: list[str]
    flags: list[str]
    source: str | None = None
    ptx: str | None = None
    cubin: str | None = None
    command: list[str] | None = None
    inputs: list[str] | None = None
    triton: Json = None
    triton_version: str | None = None
    headers: str | None = None
    host_compilers: list[str] | None = None
    sandbox: Mapping[str, Json] | None = None


class RuleParams(_Plain, frozen=True, kw_only=True):
    """A rule's command and its outputs."""

    STAGE = stages.RULE
    command: list[str]
    shell: bool
    outputs: list[str]
    env_names: list[str]
    sandbox: Mapping[str, Json]


class CodeParams(_Plain, frozen=True, kw_only=True):
    """The architecture of the code to take from a build."""

    STAGE = stages.CODE
    arch: str


class LintParams(_Plain, frozen=True, kw_only=True):
    """The policy of a kernel's lint."""

    STAGE = stages.LINT
    entry: str
    arch: str
    policy: Json
    threads: int
    versions: list[int]
    dynamic_shared_bytes: int | None = None


class KernelDiffParams(_Plain, frozen=True, kw_only=True):
    """Instructions whose first appearance is a regression."""

    STAGE = stages.KERNEL_DIFF
    forbidden: list[str]


_PLAIN: tuple[type[_Plain], ...] = (
    GenerateParams,
    OpParams,
    ReferenceParams,
    DiffParams,
    BuildParams,
    RuleParams,
    CodeParams,
    LintParams,
    KernelDiffParams,
)
_BY_STAGE: dict[str, type[_Plain]] = {kind.STAGE: kind for kind in _PLAIN}


def params_from_json(stage: str, data: Mapping[str, Any]) -> StageParams:
    """Rebuild a stage's parameters from `data`; raise TypeError or KeyError if they are invalid."""
    if stage == stages.COMPARE:
        try:
            return convert(data, CompareParams)
        except ValidationError as error:
            raise TypeError(str(error)) from None
    return _BY_STAGE[stage](**data)


P = TypeVar("P")


def params_of(kind: type[P], params: StageParams) -> P:
    """Return `params`, typed as `kind`; raise TypeError if they are not of this type."""
    if not isinstance(params, kind):
        raise TypeError(f"{type(params).__name__} in place of {kind.__name__}")
    return params
