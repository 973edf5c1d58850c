"""Parts of the configuration that decide a task's result, typed by stage; see `base.TaskSpec`.

Each field holds plain JSON, since action keys and snapshots are made of it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Protocol, TypeVar

from gpuemu_flow.judging.params import CompareParams
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.tasks import stages
from gpuemu_flow.types import Json


class StageParams(Protocol):
    """Parameters of one stage."""

    def to_json(self) -> dict[str, Json]:
        """Return the form that action keys contain; `params_from_json` is its inverse."""


@dataclass(frozen=True, kw_only=True)
class _Plain:
    """Parameters whose fields are plain JSON; None fields are left out."""

    STAGE: ClassVar[str]

    def to_json(self) -> dict[str, Json]:
        """Return the fields that are not None; see `StageParams`."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class GenerateParams(_Plain):
    """Settings from which the cases are planned.

    Attributes
    ----------
    schema : JSON
        The op's, in canonical form.
    layouts, strategies : list of str
    count, seed : int
        Number of cases, and their master seed.
    samples_seed : int
        Master seed of the cases by which the op's traits are found; see `cases.samples`.
    dtype : str
    """

    STAGE = stages.GENERATE
    schema: Json
    layouts: list[str]
    strategies: list[str]
    count: int
    seed: int
    samples_seed: int
    dtype: str


@dataclass(frozen=True, kw_only=True)
class ProgramParams(_Plain):
    """A program, and its arguments.

    Attributes
    ----------
    ref : JSON
        Kind, path, module, function and arguments.
    input_names, output_names : list of str
    kwargs, env : JSON
    env_names : list of str
        Variables that are let through besides those that reach every program.
    python : str or None
        Another interpreter than ours.
    groups : JSON or None
        Arguments that are made of several inputs.
    gradients : JSON or None
        Gradients that it returns besides its outputs.
    """

    ref: Json
    input_names: list[str]
    output_names: list[str]
    kwargs: Json
    env: dict[str, str]
    env_names: list[str]
    python: str | None = None
    groups: Json = None
    gradients: Json = None


@dataclass(frozen=True, kw_only=True)
class OpParams(ProgramParams):
    """An op under test.

    Attributes
    ----------
    mutates : list of str
        Inputs that it may change.
    deterministic : bool
        Equal calls give equal bits.
    masks : JSON
        Masks of the outputs of which only some elements count.
    require_kernel : bool
        True if the op's kernels have to store every element of its outputs.
    forbid : list of str
        Functions of libraries that it must not call.
    sandbox : JSON
        The op's sandbox, in the form of `runners.sandbox.fence.Fence.key`: ``level`` and more.
    """

    STAGE = stages.OP
    mutates: list[str]
    deterministic: bool
    require_kernel: bool
    forbid: list[str]
    sandbox: Mapping[str, Json]
    masks: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ReferenceParams(ProgramParams):
    """A reference, and the dtype requested of it; None means float64 if possible."""

    STAGE = stages.REFERENCE
    dtype: str | None = None


@dataclass(frozen=True, kw_only=True)
class DiffParams(_Plain):
    """Fraction by which an error may grow before the change is reported as growth."""

    STAGE = stages.DIFF
    regression_threshold: float


@dataclass(frozen=True, kw_only=True)
class BuildParams(_Plain):
    """The source and the options of a kernel's build.

    Attributes
    ----------
    kind, arch : str
    source, ptx, cubin : str or None
        Relative to the workspace.
    tools : list
        Name and version of each.
    unusable : list of str
    flags : list of str
    command : list of str or None
        The user's command that builds the kernel, if any.
    inputs : list of str or None
        Globs of the files that the command reads; None if the configuration does not say it.
    triton : JSON
        Target of a Triton kernel's compilation; None for others.
    triton_version : str or None
    headers : str or None
        Digest of the names of further headers in the workspace's ``-I`` folders; None without any.
    host_compilers : list of str or None
        Digests of the programs by which nvcc preprocesses; None for other compilers.
    sandbox : JSON
        The level that the compiler runs at; None if our compilers are not used.
    """

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


@dataclass(frozen=True, kw_only=True)
class RuleParams(_Plain):
    """A rule's command and what it promises.

    Attributes
    ----------
    command : list of str
        Without a shell, or one string for ``sh``.
    shell : bool
    outputs : list of str
        Relative to the workspace.
    env_names : list of str
        Variables that are let through besides those that reach every program.
    sandbox : JSON
        The level that the command runs at.
    """

    STAGE = stages.RULE
    command: list[str]
    shell: bool
    outputs: list[str]
    env_names: list[str]
    sandbox: Mapping[str, Json]


@dataclass(frozen=True, kw_only=True)
class CodeParams(_Plain):
    """The architecture whose code is taken out of a build."""

    STAGE = stages.CODE
    arch: str


@dataclass(frozen=True, kw_only=True)
class LintParams(_Plain):
    """The policy of a kernel's lint.

    Attributes
    ----------
    entry, arch : str
    policy : JSON
        See `artifacts.policy`.
    threads : int
        0: unknown.
    dynamic_shared_bytes : int or None
    versions : list of int
        Versions of the measurements and of the rules.
    """

    STAGE = stages.LINT
    entry: str
    arch: str
    policy: Json
    threads: int
    versions: list[int]
    dynamic_shared_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class KernelDiffParams(_Plain):
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
    """Rebuild a stage's parameters; raise TypeError or KeyError if they have another form."""
    if stage == stages.COMPARE:
        return CompareParams.from_json(data)
    return _BY_STAGE[stage](**data)


P = TypeVar("P")


def params_of(kind: type[P], params: StageParams) -> P:
    """Return a task's parameters as the type of its stage; raise TypeError for another stage."""
    if not isinstance(params, kind):
        raise TypeError(f"{type(params).__name__} in place of {kind.__name__}")
    return params
