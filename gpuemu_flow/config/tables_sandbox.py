"""The keys of ``[sandbox]``."""

from __future__ import annotations

from gpuemu_flow.config.keys import Key, Section
from gpuemu_flow.config.values import Choice, ListOf
from gpuemu_flow.config.vocabulary import PATH

_STRICT_GONE = 'set mode = "require", and run gpuemu-flow in a container for code of strangers'
SANDBOX = Section(
    (
        Key(
            "mode",
            Choice(("off", "auto", "require"), gone={"strict": _STRICT_GONE}),
            "`auto`: as much as the system supports; `require`: exit code 3 if it lacks a part; "
            "`off`: ops may read and write what you may.",
            "auto",
            ours=True,
        ),
        Key(
            "writable",
            ListOf(PATH, 0, 1000),
            "Files and folders of the workspace that ops may write, besides a scratch folder. "
            "Missing ones are made: a file if the name has an ending (`op.log`), else a folder.",
            [],
            ours=True,
        ),
        Key(
            "hidden",
            ListOf(PATH, 0, 100_000),
            "Further files and folders that ops must not read; they may lie outside the "
            "workspace, too.",
            [],
            ours=True,
        ),
        Key(
            "apart",
            ListOf(PATH, 0, 1000),
            "Globs of the files of competing ops; each op may read only its own.",
            [],
            ours=True,
        ),
    ),
    "a table",
    closed=True,
)
