"""The keys of ``[[rules]]`` and of an op's ``build``."""

from __future__ import annotations

from collections.abc import Mapping

from gpuemu_flow.config.keys import Key, Section
from gpuemu_flow.config.values import Bool, Either, ListOf, Text
from gpuemu_flow.config.vocabulary import NAME, PATH, SECONDS
from gpuemu_flow.types import Json

NEEDS = Key(
    "needs",
    ListOf(NAME, 0, 1000),
    "Rules that run before it, because it uses their outputs. Rules of outputs that it names as "
    "programs or inputs need not be listed; see [rules](rules.md).",
    default=[],
    ours=True,
)

_COMMAND = Either(
    (
        ListOf(Text(what="an argument", empty=True), 1, 1000, distinct=False),
        Text(what="a command", longest=32768),
    )
)
_MADE = (
    Key(
        "command",
        _COMMAND,
        "A program and its arguments, run in the workspace without a shell.",
        required=True,
        ours=True,
    ),
    Key(
        "shell",
        Bool(),
        "`command` is one string for `sh -c`.",
        default=False,
        ours=True,
    ),
    Key(
        "inputs",
        ListOf(PATH, 0, 1000),
        "Globs of the files that the command reads, relative to the workspace.",
        default=[],
        ours=True,
    ),
    Key(
        "outputs",
        ListOf(PATH, 1, 1000),
        "Files that the command makes, relative to the workspace.",
        required=True,
        ours=True,
    ),
    NEEDS,
    Key(
        "only_inputs",
        Bool(),
        "In the workspace, the command can read only `inputs`, files that its words name, outputs "
        "of `needs`, and its own outputs; see [rules](rules.md#what-a-command-reads).",
        default=False,
        ours=True,
    ),
    Key(
        "timeout",
        SECONDS,
        "Seconds that the command may take.",
        default=900,
        ours=True,
    ),
)

RULE = Section((Key("name", NAME, "Unique name.", required=True, ours=True), *_MADE), closed=True)
OP_BUILD = Section(_MADE, "a table with command, inputs and outputs", closed=True)


def rule_values(table: Mapping[str, Json]) -> dict[str, Json]:
    """Return the values of all keys that rules and ``build`` share, from `table` or by default."""
    return OP_BUILD.values(table)
