"""The keys of ``[sandbox]``."""

from __future__ import annotations

from gpuemu_flow.config.keys import Key, Section
from gpuemu_flow.config.values import Choice, ListOf
from gpuemu_flow.config.vocabulary import PATH

SANDBOX = Section(
    (
        Key(
            "mode",
            Choice(("off", "auto", "require", "strict")),
            "`auto`: as much as the system has; `require`: exit code 3 where it lacks a part; "
            "`strict`: namespaces and an empty home folder as well, by bubblewrap; `off`: nothing.",
            "auto",
            ours=True,
        ),
        Key(
            "writable",
            ListOf(PATH, 0, 1000),
            "Files and folders of the workspace that ops may write, beside a scratch folder. What "
            "is missing is made: a file where its name has an ending (`op.log`), else a folder.",
            [],
            ours=True,
        ),
        Key(
            "hidden",
            ListOf(PATH, 0, 100_000),
            "Further files and folders that ops must not read; they may lie outside, too.",
            [],
            ours=True,
        ),
        Key(
            "apart",
            ListOf(PATH, 0, 1000),
            "Globs of what belongs to competing ops, of which each may read its own alone.",
            [],
            ours=True,
        ),
    ),
    "a table",
    closed=True,
)
