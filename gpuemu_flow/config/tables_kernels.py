"""The keys of ``[[kernels]]``."""

from __future__ import annotations

from gpuemu_flow.config.keys import FreeValue, Key, Section
from gpuemu_flow.config.values import Bool, ByteSize, Either, Integer, ListOf, Number, TableOf, Text
from gpuemu_flow.config.vocabulary import (
    ALLOWED_RULE,
    ARCH,
    ARGUMENTS,
    INVARIANT_SET,
    NAME,
    PATH,
    TOLERANCES,
    WORD,
)

_NOT_RUN = (
    "kernels are built and linted, not run: put it into the [[ops]] that runs this kernel, or "
    "remove it"
)
COUNT = Integer(0)
ARCHES = Either((ListOf(ARCH, 0, 32), ARCH))
PATTERNS = ListOf(Text(what="a pattern", longest=512), 0, 1000)

ARTIFACT_CHECKS = Section(
    (
        Key("max_registers", COUNT, "Largest number of registers per thread.", default=128),
        Key("max_spills", COUNT, "Largest number of spill instructions.", default=0),
        Key("max_spill_bytes", COUNT, "Largest number of spilled bytes.", ours=True),
        Key(
            "max_local_memory_bytes",
            COUNT,
            "Largest number of stack bytes per thread.",
            default=0,
            aliases=("max_local_memory",),
        ),
        Key(
            "forbidden_instructions",
            PATTERNS,
            "Instructions that must not occur, by dotted segments of the opcode. If both names of "
            "the key are given, both lists count.",
            default=[],
            aliases=("forbidden_patterns",),
        ),
        Key("required_patterns", PATTERNS, "Instructions that must occur.", default=[]),
        Key("max_shared_memory", ByteSize(0), "Largest static shared memory.", ours=True),
        Key("max_instructions", COUNT, "Largest number of instructions.", ours=True),
        Key("min_occupancy", Number(0.0, 1.0), "Smallest occupancy, 0 to 1.", ours=True),
        Key(
            "tensor_cores",
            Bool(),
            "Whether tensor-core instructions are expected.",
            default=False,
            ours=True,
        ),
    ),
    "a table of limits",
    closed=True,
)

BUILD = Section(
    (
        Key("arch", ARCHES, "Architectures to build for.", default=[]),
        Key("flags", ARGUMENTS, "Compiler flags.", default=[]),
        Key(
            "command",
            ARGUMENTS,
            "A command of your own that makes `ptx` or `cubin`; run in the workspace, no shell.",
            default=[],
            ours=True,
        ),
        Key(
            "inputs",
            ListOf(PATH, 0, 1000),
            "Globs of the files that `command` reads, relative to the workspace. Without this key "
            "every run runs the command.",
            ours=True,
        ),
    ),
    "a table with arch and flags",
)

ALLOWED = Section(
    (
        Key("rule", ALLOWED_RULE, "The lint rule.", required=True, ours=True),
        Key("reason", Text(what="a reason"), "Why it is allowed.", required=True, ours=True),
    ),
    "a table with rule and reason",
    closed=True,
)

SCALAR = FreeValue("a number, boolean or string")

KERNEL = Section(
    (
        Key("name", NAME, "Unique name.", required=True),
        Key("source", PATH, "`.cu`, `.ptx` or `.cubin` file."),
        Key("ptx", PATH, "PTX file: made elsewhere, or by `build.command`.", ours=True),
        Key("cubin", PATH, "Cubin file, likewise.", ours=True),
        Key(
            "reference",
            Text(what="a string", empty=True),
            "Accepted from documented files.",
            "",
            unread=_NOT_RUN,
        ),
        Key("tolerances", TOLERANCES, "Accepted from documented files.", unread=_NOT_RUN),
        Key(
            "invariants",
            INVARIANT_SET,
            "Accepted from documented files.",
            default=[],
            unread=_NOT_RUN,
        ),
        Key("artifact_checks", ARTIFACT_CHECKS, "Limits that the lint checks."),
        Key("build", BUILD, "How it is compiled."),
        Key(
            "arch",
            ARCHES,
            "Architectures; the same as `build.arch`.",
            default=[],
            ours=True,
        ),
        Key(
            "triton",
            Text(what="path.py:kernel"),
            "A Triton kernel, `path.py:kernel`, compiled without a GPU.",
            ours=True,
        ),
        Key(
            "signature",
            TableOf(WORD, Text(what="a type such as *fp32", longest=64), "a table of types"),
            "Types of a Triton kernel's arguments.",
            default={},
            ours=True,
        ),
        Key(
            "constants",
            TableOf(WORD, SCALAR, "a table of constants"),
            "Its `tl.constexpr` arguments.",
            default={},
            ours=True,
        ),
        Key("num_warps", Integer(1, 64), "Warps of a Triton kernel.", ours=True),
        Key("num_stages", Integer(1, 64), "Pipeline stages of a Triton kernel.", ours=True),
        Key(
            "threads_per_block",
            Integer(1, 1024),
            "Threads per block from which the occupancy is computed, if the kernel does not "
            "declare it.",
            ours=True,
        ),
        Key(
            "dynamic_shared_memory",
            ByteSize(0),
            "Dynamic shared memory per block, which is not part of the PTX.",
            ours=True,
        ),
        Key(
            "allow",
            Either(
                (
                    TableOf(ALLOWED_RULE, Text(what="a reason"), "a table of rule = reason"),
                    ListOf(ALLOWED, 0, 1000),
                )
            ),
            "Lint rules that this kernel may break, each with a reason.",
            default={},
            ours=True,
        ),
    ),
    "a table",
)
