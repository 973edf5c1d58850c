"""All tables of the configuration file: model, JSON Schema and reference page come from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from gpuemu_flow.config.fields import (
    BYTES,
    Cases,
    Count,
    Dtypes,
    Framework,
    Jobs,
    Layouts,
    LintRule,
    LogLevel,
    Name,
    Paths,
    PathText,
    Policy,
    Precision,
    Seconds,
    Seed,
    Sides,
    Size,
    Sizes,
    Strategies,
    Table,
    ToleranceMode,
    Tolerances,
    VariableNames,
    Words,
    also,
    choice,
    documented,
    expanded_strategies,
    key,
    named,
    one_policy,
    rows,
    text,
)
from gpuemu_flow.config.tables_ops import KernelTable, OpTable, RuleTable

DEFAULT_SEED = 42


class Project(Table, frozen=True):
    """Settings of ``[project]``."""

    harmless = True

    name: Annotated[str, text(longest=200), documented("Name of the workspace.")] = "unnamed"
    version: Annotated[str, text(longest=100), documented("Its version; reports show it.")] = (
        "0.0.0"
    )
    framework: Annotated[
        Framework,
        documented(
            "The framework of functions that name no kind, if their file imports it: they get its "
            "tensors (for TensorFlow, numpy arrays). The workflow of `init --ci` installs it, "
            "too.",
            default_text='`"pytorch"` for `init --ci`; functions get numpy arrays',
        ),
    ] = "pytorch"
    allow_outside: Annotated[
        bool,
        key(
            "Requests that paths may lead outside the workspace, which is an error otherwise. The "
            "request is granted by `--allow-outside`, `GPUEMU_ALLOW_OUTSIDE=1` or this key in "
            "the user's own file."
        ),
    ] = False


class PlainShapes(Table, frozen=True):
    """Sizes for ops without a schema, from ``[validation.shapes]``; a key not set is empty."""

    what = "a table of sizes"

    batch_sizes: Annotated[Sizes, documented("First dim.")] = ()
    sequence_lengths: Annotated[Sizes, documented("Second dim.", aliases=("seq_lengths",))] = ()
    hidden_dims: Annotated[Sizes, key("Third dim.")] = ()
    edge_cases: Annotated[
        tuple[Annotated[Sides, also(Size, lambda size: [size])], ...],
        Meta(max_length=1000),
        documented("Whole shapes, used in some of the cases; a number is a 1-d shape."),
    ] = ()


class Validation(Table, frozen=True):
    """Defaults for ops, from ``[validation]``; each `OpConfig` already has them filled in. `seed` 0
    means a new random seed for every run."""

    dtypes: Annotated[Dtypes, documented("Dtypes to check, under any of their names.")] = (
        "float32",
    )
    check_nan: Annotated[
        bool | None,
        documented(
            '`true` is `nan_policy = "strict"`, `false` is `"match"`.',
            default_text="`nan_policy` decides",
        ),
    ] = None
    check_inf: Annotated[
        bool | None, documented("The same for infinities.", default_text="`inf_policy` decides")
    ] = None
    nan_policy: Annotated[
        Policy,
        key(
            "`match`: NaN exactly where the reference has NaN; `strict`: besides, no NaN if all "
            "inputs are finite; `ignore`: where the reference has NaN, anything passes.",
            default_text='`"match"`',
        ),
    ] = ""
    inf_policy: Annotated[
        Policy, key("The same for infinities, their sign included.", default_text='`"match"`')
    ] = ""
    seed: Annotated[
        Seed,
        documented(
            "Master seed. With `0` a new one is drawn for every run. The default is fixed, "
            "because equal inputs must give equal results."
        ),
    ] = DEFAULT_SEED
    tolerances: Annotated[
        Tolerances,
        documented(
            "Per dtype: a number (absolute, rtol 0) or `{ atol, rtol }`; a missing member comes "
            "from the documented table."
        ),
    ] = msgspec.field(default_factory=dict)
    tolerance: Annotated[
        ToleranceMode,
        key(
            "For dtypes without an explicit tolerance: `auto` derives one from the reference, "
            "`table` takes the documented defaults.",
            default_text='`"auto"`; `"table"` if `tolerances` is given',
        ),
    ] = ""
    precision: Annotated[
        Precision,
        key(
            "For `auto`: what a right op may round to the dtype of its inputs, if that is "
            "narrower than float32. `tensor-core`: the operands of matrix products; `float32`: "
            "only its outputs; `input`: every step, as the half-precision functions of frameworks "
            "do on a CPU."
        ),
    ] = "tensor-core"
    shapes: Annotated[
        PlainShapes | None, documented("Exactly these shapes, for ops without a schema.")
    ] = None
    layouts: Annotated[
        Layouts,
        documented(
            "Memory layouts: a list of names, or the documented table of booleans (in which the "
            "documented three are on unless turned off)."
        ),
    ] = ("contiguous", "strided", "transposed", "offset", "padded", "permuted")
    cases: Annotated[Cases, key("Cases per op and dtype.")] = 24
    strategies: Annotated[
        Strategies,
        key(
            "Value strategies, or the groups `core` and `stress`.",
            aliases=("strategy", "value_distribution"),
        ),
    ] = ("core", "stress")
    fuzz_iterations: Annotated[Cases, key("Cases of `fuzz`.")] = 100
    cause_budget: Annotated[
        Count,
        key(
            "Largest number of new cases per op that are run to confirm the cause of its "
            "failures; below 8, none are run and no cause is stated."
        ),
    ] = 12

    def __post_init__(self) -> None:
        # Where two keys say the same, the more exact one decides.
        nan, inf = (
            one_policy(self.nan_policy, self.check_nan),
            one_policy(self.inf_policy, self.check_inf),
        )
        force_setattr(self, "nan_policy", nan or "match")
        force_setattr(self, "inf_policy", inf or "match")
        if not self.tolerance:
            force_setattr(self, "tolerance", "explicit" if self.tolerances else "auto")
        force_setattr(self, "strategies", tuple(expanded_strategies(list(self.strategies))))


class Limits(Table, frozen=True):
    """Limits of a metric; None for no limit."""

    what = "max and warn_above"
    closed = True

    max: Annotated[Count | None, documented("Fail above this.")] = None
    warn_above: Annotated[Count | None, documented("Warn above this.")] = None

    @property
    def fail(self) -> int | None:
        return self.max

    @property
    def warn(self) -> int | None:
        return self.warn_above


class ByteLimits(Table, frozen=True):
    """Limits of a metric in bytes; None for no limit."""

    what = "max_bytes and warn_above"
    closed = True

    max_bytes: Annotated[Count | None, documented("Fail above this.")] = None
    warn_above: Annotated[Count | None, documented("Warn above this.")] = None

    @property
    def fail(self) -> int | None:
        return self.max_bytes

    @property
    def warn(self) -> int | None:
        return self.warn_above


class Policies(Table, frozen=True):
    """Limits for kernels that set none, and severities of the lint `rules`, from ``[policies]``."""

    fail_on_regression: Annotated[
        bool, documented("A regression makes the command exit with 1.")
    ] = True
    warn_threshold: Annotated[
        float,
        Meta(ge=0.0, le=1.0),
        documented(
            "Warn when a passing case uses more than this share of its tolerance. A value of at "
            "most 0.25 has the other documented meaning, relative growth, and sets "
            "`regression_threshold`."
        ),
    ] = 0.8
    regression_threshold: Annotated[
        float,
        Meta(ge=0.0),
        key(
            "Relative growth of an error that counts as a regression.",
            default_text="`ci.regression_threshold`, else 0.1",
        ),
    ] = 0.1
    registers: Annotated[Limits, documented("Limits for kernels without their own.")] = Limits()
    spills: Annotated[Limits, documented("The same for spill instructions.")] = Limits()
    local_memory: Annotated[ByteLimits, documented("The same for stack bytes.")] = ByteLimits()
    rules: Annotated[
        Mapping[
            LintRule,
            Annotated[
                str,
                choice(
                    "off",
                    "info",
                    "warning",
                    "error",
                    noun="severity",
                    spellings={"warn": "warning"},
                ),
            ],
        ],
        named("a table of rule = severity"),
        key("Severity of lint rules."),
    ] = {}


RandomSeed = Annotated[str, choice("random", noun="seed")]


class QuickCi(Table, frozen=True):
    """The quick run, from ``[ci.quick]``."""

    fuzz_iterations: Annotated[
        Cases | None, documented("The same for a quick run.", default_text="as `cases` says")
    ] = None
    dtypes: Annotated[Dtypes | None, documented("The same as `quick_dtypes`; overrides it.")] = None


class Ci(Table, frozen=True):
    """Settings of ``[ci]``. If `quick_shapes` is empty and the iterations are None, the cases are
    those of a plain run. `seed` 0 means a new random seed for every run, and None the seed of
    ``[validation]``."""

    quick_dtypes: Annotated[Dtypes, documented("Dtypes of `quick`.")] = ("float32",)
    quick_shapes: Annotated[
        tuple[Sides, ...],
        Meta(max_length=1000),
        documented(
            "In a quick run of `ci` and `test`, exactly these shapes for ops without a schema.",
            default_text="as `[validation.shapes]` says",
        ),
    ] = ()
    seed: Annotated[
        Annotated[Seed, also(RandomSeed, lambda _: 0)] | None,
        key(
            "Master seed of `ci` and `test`; overrides `validation.seed`. With `random` or 0, a "
            "new one is drawn for every run and printed; `--seed` repeats such a run.",
            default_text="`validation.seed`",
        ),
    ] = None
    thorough_timeout: Annotated[
        Seconds, documented("Seconds that a whole run of `ci` may take.")
    ] = 300
    parallel_jobs: Annotated[
        Jobs, documented("Parallel jobs of `ci`; 0 is the number of CPUs.", aliases=("parallel",))
    ] = 1
    fuzz_iterations: Annotated[
        Cases | None,
        documented(
            "Cases per op and dtype of `ci` and `test`, in place of every `cases`.",
            default_text="as `cases` says",
        ),
    ] = None
    quick: Annotated[QuickCi, documented("The quick run.")] = QuickCi()
    regression_threshold: Annotated[
        Annotated[float, Meta(ge=0.0)] | None, documented("See `policies.regression_threshold`.")
    ] = None

    def __post_init__(self) -> None:
        if self.quick.dtypes:
            force_setattr(self, "quick_dtypes", self.quick.dtypes)

    @property
    def quick_fuzz_iterations(self) -> int | None:
        return self.quick.fuzz_iterations


class Cache(Table, frozen=True):
    """Settings of ``[cache]``."""

    harmless = True

    size_limit: Annotated[
        int,
        Meta(ge=1 << 20),
        BYTES,
        key("Size of the blobs above which the least recently used ones are deleted."),
    ] = 10_000_000_000
    dir: Annotated[
        Path | None,
        key(
            "Where the cache lies, inside the workspace: a folder of its own.",
            default_text="`.gpuemu-cache`",
        ),
    ] = None
    remote: Annotated[
        str,
        text(
            "the URL of a cache: file:///PATH, https://HOST/PATH, http://HOST/PATH, "
            "s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH, without user or query",
            pattern=r"file:///[^?#]*|(https?|s3|gs|az)://[^/@?#\s\\]+(/[^?#\s\\]*)?",
            longest=2048,
        ),
        key(
            "A cache that several machines share; see "
            "[caching](caching.md#a-cache-for-several-machines). `GPUEMU_CACHE_REMOTE` overrides "
            "it.",
            default_text="none",
        ),
    ] = ""
    remote_mode: Annotated[
        str,
        choice("read", "write"),
        key("`write`: results are stored in it, too. `GPUEMU_CACHE_MODE` overrides it."),
    ] = "read"


class ExecutionConfig(Table, frozen=True):
    """Settings of ``[execution]``."""

    python_path: Annotated[
        PathText | None,
        documented(
            "The interpreter of scripts and callables: a path, or a program on `PATH`.",
            default_text="the interpreter that runs gpuemu-flow",
        ),
    ] = None
    parallel: Annotated[Jobs, key("Parallel jobs; 0 is the number of CPUs.")] = 0
    max_parallel_refs: Annotated[
        int, Meta(ge=1, le=4096), documented("Largest number of references that run at a time.")
    ] = 4
    reference_timeout: Annotated[
        Seconds, documented("Seconds per case, for ops without a `timeout`.")
    ] = 60
    tools: Annotated[
        Mapping[Annotated[str, choice("nvcc", "ptxas", "nvdisasm", noun="tool")], PathText],
        named("a table of paths"),
        key(
            "Paths of NVIDIA's tools, used before the usual places: `{ nvcc = "
            '"/opt/cuda/bin/nvcc" }`.'
        ),
    ] = {}
    env: Annotated[
        VariableNames,
        key(
            "Your environment variables that all ops and references get, besides [those that they "
            'always get](runners.md#environment): `["SCALE", "MY_*"]`.'
        ),
    ] = ()
    # True if `reference_timeout` was not configured: its default grows with the size of the inputs.
    timeout_grows: bool = True


class Daemon(Table, frozen=True):
    """Settings of ``[daemon]``."""

    harmless = True

    socket_path: Annotated[
        Path | None,
        documented(
            "Socket of the daemon; `GPUEMU_SOCKET` overrides it.",
            default_text="`~/.gpuemu/gpuemu.sock`",
        ),
    ] = None
    log_level: Annotated[LogLevel, documented("`trace`, `debug`, `info`, `warn` or `error`.")] = (
        "info"
    )
    max_connections: Annotated[
        int, Meta(ge=1, le=65536), documented("Largest number of clients at a time; others wait.")
    ] = 16


class Storage(Table, frozen=True):
    """Settings of the daemon's storage, from ``[storage]``."""

    harmless = True

    db_path: Annotated[
        Path | None,
        documented(
            "Where the daemon keeps results.", default_text="the workspace's cache, `.gpuemu-cache`"
        ),
    ] = None
    max_results: Annotated[Count, documented("Largest number of results that are kept.")] = 10000
    max_baselines: Annotated[
        Count, documented("Largest number of baselines that are kept; 0 keeps all.")
    ] = 100
    retention_days: Annotated[Count, documented("Days that results are kept.")] = 30


_STRICT_GONE = 'set mode = "require", and run gpuemu-flow in a container for code of strangers'


class SandboxConfig(Table, frozen=True):
    """Settings of ``[sandbox]``."""

    closed = True

    mode: Annotated[
        str,
        choice("off", "auto", "require", gone={"strict": _STRICT_GONE}),
        key(
            "`auto`: as much as the system supports; `require`: exit code 3 if it lacks a part; "
            "`off`: ops may read and write what you may."
        ),
    ] = "auto"
    writable: Annotated[
        tuple[Path, ...],
        Meta(max_length=1000),
        key(
            "Files and folders of the workspace that ops may write, besides a scratch folder. "
            "Missing ones are made: a file if the name has an ending (`op.log`), else a folder."
        ),
    ] = ()
    hidden: Annotated[
        tuple[Path, ...],
        Meta(max_length=100_000),
        key(
            "Further files and folders that ops must not read; they may lie outside the "
            "workspace, too."
        ),
    ] = ()
    apart: Annotated[
        Paths, key("Globs of the files of competing ops; each op may read only its own.")
    ] = ()


class Changeable(Table, frozen=True):
    """Tables that a profile, a target and ``--config`` may change."""

    what = "tables validation, policies, ci and execution"
    closed = True

    validation: Annotated[Validation | None, documented("Settings for the checks of all ops.")] = (
        None
    )
    policies: Annotated[Policies | None, documented("What counts as a failure.")] = None
    ci: Annotated[Ci | None, documented("Quick and thorough runs.")] = None
    execution: Annotated[ExecutionConfig | None, documented("How programs are run.")] = None


_NO_OPTIONS = "a target is a list of tasks; its options belong into a table of [profiles]"


class File(Table, frozen=True):
    """The whole file."""

    project: Annotated[Project | None, documented("The workspace.")] = None
    validation: Annotated[Validation | None, documented("Settings for the checks of all ops.")] = (
        None
    )
    policies: Annotated[Policies | None, documented("What counts as a failure.")] = None
    ci: Annotated[Ci | None, documented("Quick and thorough runs.")] = None
    targets: Annotated[
        Mapping[Name, Annotated[Words, Meta(extra={"instead": _NO_OPTIONS})]],
        named("a table of name = list of targets"),
        key("Names of your own for lists of ops, tasks, groups and other targets."),
    ] = {}
    execution: Annotated[ExecutionConfig | None, documented("How programs are run.")] = None
    profiles: Annotated[
        Mapping[Name, Changeable],
        named("a table of name = keys of other tables"),
        key(
            "Keys of `[validation]`, `[policies]`, `[ci]` and `[execution]` that `--profile NAME` "
            "puts over those of the file, such as `[profiles.nightly.validation]`; see "
            "[selecting](selecting.md#settings-of-one-run)."
        ),
    ] = {}
    sandbox: Annotated[
        SandboxConfig | None,
        documented("What the system keeps ops from; see [security](security.md)."),
    ] = None
    cache: Annotated[Cache | None, documented("The cache of the workspace.")] = None
    daemon: Annotated[Daemon | None, documented("The daemon.")] = None
    storage: Annotated[Storage | None, documented("The daemon's results.")] = None
    include: Annotated[
        Paths,
        key(
            "Globs of files with further `[[ops]]`, `[[kernels]]` and `[[rules]]`; paths in them "
            "start at the workspace, as those of this file do."
        ),
    ] = ()
    ops: Annotated[
        Annotated[tuple[OpTable, ...], rows("[[ops]]")] | None, documented("The ops to check.")
    ] = None
    rules: Annotated[
        Annotated[tuple[RuleTable, ...], rows("[[rules]]")] | None,
        key("Commands that make files which ops need; see [rules](rules.md)."),
    ] = None
    kernels: Annotated[
        Annotated[tuple[KernelTable, ...], rows("[[kernels]]")] | None,
        documented("The kernels to build and lint."),
    ] = None
