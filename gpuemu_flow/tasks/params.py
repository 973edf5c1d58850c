"""The parts of the configuration that affect the results of tasks, with one class per stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from msgspec import Struct, field

from gpuemu_flow.judge.subject import CompareParams
from gpuemu_flow.model import decoding
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.types import Json


class GenerateParams(Struct, frozen=True, kw_only=True):
    """Settings from which the cases are planned."""

    schema: Json
    layouts: list[str]
    strategies: list[str]
    count: int
    seed: int
    samples_seed: int
    dtype: str


class ProgramParams(Struct, frozen=True, kw_only=True):
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

    mutates: list[str]
    deterministic: bool
    require_kernel: bool
    forbid: list[str]
    sandbox: Mapping[str, Json]
    masks: Mapping[str, Json] = field(default_factory=dict)


class ReferenceParams(ProgramParams, frozen=True, kw_only=True):
    """A reference, and the `dtype` in which to run it. If `dtype` is None, the reference is run in
    float64. Cases for which this fails are run in their own dtype."""

    dtype: str | None = None


class DiffParams(Struct, frozen=True, kw_only=True):
    """The fraction by which an error may grow without being reported."""

    regression_threshold: float


class BuildParams(Struct, frozen=True, kw_only=True):
    """The source and the options of a kernel's build."""

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


class RuleParams(Struct, frozen=True, kw_only=True):
    """A rule's command and its outputs."""

    command: list[str]
    shell: bool
    outputs: list[str]
    env_names: list[str]
    sandbox: Mapping[str, Json]


class CodeParams(Struct, frozen=True, kw_only=True):
    """The architecture of the code to take from a build."""

    arch: str


class LintParams(Struct, frozen=True, kw_only=True):
    """The policy of a kernel's lint."""

    entry: str
    arch: str
    policy: Json
    threads: int
    versions: list[int]
    dynamic_shared_bytes: int | None = None


class KernelDiffParams(Struct, frozen=True, kw_only=True):
    """Instructions whose first appearance is a regression."""

    forbidden: list[str]


P = TypeVar("P")


def plain(params: Struct) -> dict[str, Json]:
    """Return parameters as tasks, their keys and the stored graph contain them: as plain JSON."""
    found: dict[str, Json] = decoding.plain(params)
    if isinstance(params, CompareParams):
        return found
    return {name: value for name, value in found.items() if value is not None}


def params_of(kind: type[P], params: Mapping[str, Json]) -> P:
    """Return a task's parameters as a struct; raise an error if they are of another stage."""
    return convert(params, kind)
