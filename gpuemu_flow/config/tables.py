"""All tables of the configuration file as data, for validation, JSON Schema and reference page."""

from __future__ import annotations

from gpuemu_flow.config.keys import Key, Section, Tables
from gpuemu_flow.config.tables_kernels import COUNT, KERNEL
from gpuemu_flow.config.tables_ops import CASES, OP, PRECISION, TOLERANCE_MODE
from gpuemu_flow.config.tables_rules import RULE
from gpuemu_flow.config.tables_sandbox import SANDBOX
from gpuemu_flow.config.values import (
    U64_MAX,
    Bool,
    ByteSize,
    Choice,
    Either,
    Integer,
    ListOf,
    Number,
    TableOf,
    Text,
)
from gpuemu_flow.config.vocabulary import (
    DTYPE_LIST,
    FRAMEWORK,
    LAYOUT_SET,
    LINT_RULE,
    LOG_LEVEL,
    NAME,
    PATH,
    POLICY,
    SECONDS,
    STRATEGY_SET,
    TOLERANCES,
    VARIABLE_NAMES,
    WORD,
)

DEFAULT_SEED = 42
SIZE = Integer(0, 2**31 - 1)
SIZES = ListOf(SIZE, 0, 1000)
SHAPE = ListOf(SIZE, 0, 16, distinct=False)
JOBS = Integer(0, 4096)
WORDS = ListOf(WORD, 0, 10_000)

PROJECT = Section(
    (
        Key("name", Text(longest=200), "Name of the workspace.", default="unnamed"),
        Key("version", Text(longest=100), "Its version; reports show it.", default="0.0.0"),
        Key(
            "framework",
            FRAMEWORK,
            "The framework of functions that name no kind, if their file imports it: they get its "
            "tensors (for TensorFlow, numpy arrays). The workflow of `init --ci` installs it, "
            "too.",
            default="pytorch",
            default_text='`"pytorch"` for `init --ci`; functions get numpy arrays',
        ),
        Key(
            "allow_outside",
            Bool(),
            "Requests that paths may lead outside the workspace, which is an error otherwise. The "
            "request is granted by `--allow-outside`, `GPUEMU_ALLOW_OUTSIDE=1` or this key in the "
            "user's own file.",
            default=False,
            ours=True,
        ),
    ),
    "a table",
    harmless=True,
)

SHAPES = Section(
    (
        Key("batch_sizes", SIZES, "First dim."),
        Key("sequence_lengths", SIZES, "Second dim.", aliases=("seq_lengths",)),
        Key("hidden_dims", SIZES, "Third dim.", ours=True),
        Key(
            "edge_cases",
            ListOf(Either((SIZE, SHAPE)), 0, 1000),
            "Whole shapes, used in some of the cases; a number is a 1-d shape.",
        ),
    ),
    "a table of sizes",
)

VALIDATION = Section(
    (
        Key("dtypes", DTYPE_LIST, "Dtypes to check, under any of their names.", ["float32"]),
        Key(
            "check_nan",
            Bool(),
            '`true` is `nan_policy = "strict"`, `false` is `"match"`.',
            default_text="`nan_policy` decides",
        ),
        Key(
            "check_inf",
            Bool(),
            "The same for infinities.",
            default_text="`inf_policy` decides",
        ),
        Key(
            "nan_policy",
            POLICY,
            "`match`: NaN exactly where the reference has NaN; `strict`: besides, no NaN if all "
            "inputs are finite; `ignore`: where the reference has NaN, anything passes.",
            default_text='`"match"`',
            ours=True,
        ),
        Key(
            "inf_policy",
            POLICY,
            "The same for infinities, their sign included.",
            default_text='`"match"`',
            ours=True,
        ),
        Key(
            "seed",
            Integer(0, U64_MAX),
            "Master seed. With `0` a new one is drawn for every run. The default is fixed, "
            "because equal inputs must give equal results.",
            DEFAULT_SEED,
        ),
        Key(
            "tolerances",
            TOLERANCES,
            "Per dtype: a number (absolute, rtol 0) or `{ atol, rtol }`; a missing member comes "
            "from the documented table.",
        ),
        Key(
            "tolerance",
            TOLERANCE_MODE,
            "For dtypes without an explicit tolerance: `auto` derives one from the reference, "
            "`table` takes the documented defaults.",
            default_text='`"auto"`; `"table"` if `tolerances` is given',
            ours=True,
        ),
        Key(
            "precision",
            PRECISION,
            "For `auto`: what a right op may round to the dtype of its inputs, if that is "
            "narrower than float32. `tensor-core`: the operands of matrix products; `float32`: "
            "only its outputs; `input`: every step, as the half-precision functions of frameworks "
            "do on a CPU.",
            "tensor-core",
            ours=True,
        ),
        Key("shapes", SHAPES, "Exactly these shapes, for ops without a schema."),
        Key(
            "layouts",
            LAYOUT_SET,
            "Memory layouts: a list of names, or the documented table of booleans (in which the "
            "documented three are on unless turned off).",
            ["contiguous", "strided", "transposed", "offset", "padded", "permuted"],
        ),
        Key("cases", CASES, "Cases per op and dtype.", 24, ours=True),
        Key(
            "strategies",
            STRATEGY_SET,
            "Value strategies, or the groups `core` and `stress`.",
            ["core", "stress"],
            aliases=("strategy", "value_distribution"),
            ours=True,
        ),
        Key("fuzz_iterations", CASES, "Cases of `fuzz`.", 100, ours=True),
        Key(
            "cause_budget",
            COUNT,
            "Largest number of new cases per op that are run to confirm the cause of its "
            "failures; below 8, none are run and no cause is stated.",
            12,
            ours=True,
        ),
    ),
    "a table",
)

_WARN_ABOVE = Key("warn_above", COUNT, "Warn above this.")
COUNT_LIMITS = Section(
    (Key("max", COUNT, "Fail above this."), _WARN_ABOVE), "max and warn_above", closed=True
)
BYTE_LIMITS = Section(
    (Key("max_bytes", COUNT, "Fail above this."), _WARN_ABOVE),
    "max_bytes and warn_above",
    closed=True,
)

POLICIES = Section(
    (
        Key(
            "fail_on_regression",
            Bool(),
            "A regression makes the command exit with 1.",
            default=True,
        ),
        Key(
            "warn_threshold",
            Number(0.0, 1.0),
            "Warn when a passing case uses more than this share of its tolerance. A value of at "
            "most 0.25 has the other documented meaning, relative growth, and sets "
            "`regression_threshold`.",
            default=0.8,
        ),
        Key(
            "regression_threshold",
            Number(0.0),
            "Relative growth of an error that counts as a regression.",
            default_text="`ci.regression_threshold`, else 0.1",
            ours=True,
        ),
        Key("registers", COUNT_LIMITS, "Limits for kernels without their own."),
        Key("spills", COUNT_LIMITS, "The same for spill instructions."),
        Key("local_memory", BYTE_LIMITS, "The same for stack bytes."),
        Key(
            "rules",
            TableOf(
                LINT_RULE,
                Choice(
                    ("off", "info", "warning", "error"),
                    noun="severity",
                    aliases={"warn": "warning"},
                ),
                "a table of rule = severity",
            ),
            "Severity of lint rules.",
            default={},
            ours=True,
        ),
    ),
    "a table",
)

CI = Section(
    (
        Key("quick_dtypes", DTYPE_LIST, "Dtypes of `quick`.", ["float32"]),
        Key(
            "quick_shapes",
            ListOf(SHAPE, 0, 1000),
            "In a quick run of `ci` and `test`, exactly these shapes for ops without a schema.",
            [],
            default_text="as `[validation.shapes]` says",
        ),
        Key(
            "seed",
            Either((Integer(0, U64_MAX), Choice(("random",), noun="seed"))),
            "Master seed of `ci` and `test`; overrides `validation.seed`. With `random` or 0, a "
            "new one is drawn for every run and printed; `--seed` repeats such a run.",
            default_text="`validation.seed`",
            ours=True,
        ),
        Key("thorough_timeout", SECONDS, "Seconds that a thorough run may take.", 300),
        Key(
            "parallel_jobs",
            JOBS,
            "Parallel jobs of `ci`; 0 is the number of CPUs.",
            1,
            aliases=("parallel",),
        ),
        Key(
            "fuzz_iterations",
            CASES,
            "Cases per op and dtype of `ci` and `test`, in place of every `cases`.",
            default_text="as `cases` says",
        ),
        Key(
            "quick",
            Section(
                (
                    Key(
                        "fuzz_iterations",
                        CASES,
                        "The same for a quick run.",
                        default_text="as `cases` says",
                    ),
                    Key("dtypes", DTYPE_LIST, "The same as `quick_dtypes`; overrides it."),
                ),
                "a table",
            ),
            "The quick run.",
        ),
        Key("regression_threshold", Number(0.0), "See `policies.regression_threshold`."),
    ),
    "a table",
)

CACHE = Section(
    (
        Key(
            "size_limit",
            ByteSize(1 << 20),
            "Size of the blobs above which the least recently used ones are deleted.",
            10_000_000_000,
            ours=True,
        ),
        Key(
            "dir",
            PATH,
            "Where the cache lies, inside the workspace: a folder of its own.",
            default_text="`.gpuemu-cache`",
            ours=True,
        ),
        Key(
            "remote",
            Text(
                r"file:///[^?#]*|(https?|s3|gs|az)://[^/@?#\s\\]+(/[^?#\s\\]*)?",
                "the URL of a cache: file:///PATH, https://HOST/PATH, http://HOST/PATH, "
                "s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH, without user or query",
                longest=2048,
            ),
            "A cache that several machines share; see "
            "[caching](caching.md#a-cache-for-several-machines). `GPUEMU_CACHE_REMOTE` overrides "
            "it.",
            default_text="none",
            ours=True,
        ),
        Key(
            "remote_mode",
            Choice(("read", "write")),
            "`write`: results are stored in it, too. `GPUEMU_CACHE_MODE` overrides it.",
            "read",
            ours=True,
        ),
    ),
    "a table",
    harmless=True,
)

EXECUTION = Section(
    (
        Key(
            "python_path",
            PATH,
            "The interpreter of scripts and callables: a path, or a program on `PATH`.",
            default_text="the interpreter that runs gpuemu-flow",
        ),
        Key("parallel", JOBS, "Parallel jobs; 0 is the number of CPUs.", 0, ours=True),
        Key(
            "max_parallel_refs",
            Integer(1, 4096),
            "Largest number of references that run at a time.",
            4,
        ),
        Key("reference_timeout", SECONDS, "Seconds per case, for ops without a `timeout`.", 60),
        Key(
            "tools",
            TableOf(Choice(("nvcc", "ptxas", "nvdisasm"), noun="tool"), PATH, "a table of paths"),
            "Paths of NVIDIA's tools, used before the usual places: `{ nvcc = "
            '"/opt/cuda/bin/nvcc" }`.',
            default={},
            ours=True,
        ),
        Key(
            "env",
            VARIABLE_NAMES,
            "Your environment variables that all ops and references get, besides [those that they "
            'always get](runners.md#environment): `["SCALE", "MY_*"]`.',
            default=[],
            ours=True,
        ),
    ),
    "a table",
)

DAEMON = Section(
    (
        Key(
            "socket_path",
            PATH,
            "Socket of the daemon; `GPUEMU_SOCKET` overrides it.",
            default_text="`~/.gpuemu/gpuemu.sock`",
        ),
        Key("log_level", LOG_LEVEL, "`trace`, `debug`, `info`, `warn` or `error`.", "info"),
        Key(
            "max_connections",
            Integer(1, 65536),
            "Largest number of clients at a time; others wait.",
            16,
        ),
    ),
    "a table",
    harmless=True,
)

STORAGE = Section(
    (
        Key(
            "db_path",
            PATH,
            "Where the daemon keeps results.",
            default_text="the workspace's cache, `.gpuemu-cache`",
        ),
        Key("max_results", COUNT, "Largest number of results that are kept.", 10000),
        Key("max_baselines", COUNT, "Largest number of baselines that are kept; 0 keeps all.", 100),
        Key("retention_days", COUNT, "Days that results are kept.", 30),
    ),
    "a table",
    harmless=True,
)

OPS = Key("ops", Tables(OP, "[[ops]]"), "The ops to check.")
RULES = Key(
    "rules",
    Tables(RULE, "[[rules]]"),
    "Commands that make files which ops need; see [rules](rules.md).",
    ours=True,
)
KERNELS = Key("kernels", Tables(KERNEL, "[[kernels]]"), "The kernels to build and lint.")
INCLUDED = Section((OPS, RULES, KERNELS))

CHANGEABLE = Section(
    (
        Key("validation", VALIDATION, "Settings for the checks of all ops."),
        Key("policies", POLICIES, "What counts as a failure."),
        Key("ci", CI, "Quick and thorough runs."),
        Key("execution", EXECUTION, "How programs are run."),
    ),
    "tables validation, policies, ci and execution",
    closed=True,
)

TARGET = Section(
    (
        Key("tasks", WORDS, "Ops, tasks, groups and other targets.", required=True, ours=True),
        Key("jobs", JOBS, "Tasks at a time, as `--jobs`.", ours=True),
        Key("cases", CASES, "Cases per op and dtype, as `--cases`.", ours=True),
        Key("seed", Integer(0, U64_MAX), "Master seed, as `--seed`.", ours=True),
        Key(
            "keep_going",
            Bool(),
            "`false`: stop at the first op that fails, as `--fail-fast`.",
            default_text="`true`",
            ours=True,
        ),
        Key("until", WORDS, "Only these and what they need, as `--until`.", ours=True),
        Key("forcerun", WORDS, "Run these even if results are cached, as `--forcerun`.", ours=True),
        Key("dtypes", DTYPE_LIST, "Only these dtypes, as `--dtype`.", ours=True),
        Key("profile", NAME, "A table of `[profiles]`, as `--profile`.", ours=True),
        Key(
            "config",
            CHANGEABLE,
            "Keys of `[validation]`, `[policies]`, `[ci]` and `[execution]`, as `--config`; over "
            "those of `profile`.",
            ours=True,
        ),
    ),
    "a table of tasks and options",
    closed=True,
)

FILE = Section(
    (
        Key("project", PROJECT, "The workspace."),
        Key("validation", VALIDATION, "Settings for the checks of all ops."),
        Key("policies", POLICIES, "What counts as a failure."),
        Key("ci", CI, "Quick and thorough runs."),
        Key(
            "targets",
            TableOf(NAME, Either((WORDS, TARGET)), "a table of name = list of targets"),
            "Names of your own for lists of ops, tasks, groups and other targets. A target that is "
            "a table, `[targets.nightly]`, has options of its own; see "
            "[selecting](selecting.md#targets-with-options).",
            default={},
            ours=True,
        ),
        Key("execution", EXECUTION, "How programs are run."),
        Key(
            "profiles",
            TableOf(NAME, CHANGEABLE, "a table of name = keys of other tables"),
            "Keys of `[validation]`, `[policies]`, `[ci]` and `[execution]` that `--profile NAME` "
            "puts over those of the file, such as `[profiles.nightly.validation]`; see "
            "[selecting](selecting.md#settings-of-one-run).",
            default={},
            ours=True,
        ),
        Key("sandbox", SANDBOX, "What the system keeps ops from; see [security](security.md)."),
        Key("cache", CACHE, "The cache of the workspace."),
        Key("daemon", DAEMON, "The daemon."),
        Key("storage", STORAGE, "The daemon's results."),
        Key(
            "include",
            ListOf(PATH, 0, 1000),
            "Globs of files with further `[[ops]]`, `[[kernels]]` and `[[rules]]`; paths in them "
            "start at the workspace, as those of this file do.",
            default=[],
            ours=True,
        ),
        OPS,
        RULES,
        KERNELS,
    )
)
