"""Options by which the user grants rights that a workspace's configuration cannot grant."""

from __future__ import annotations

import os

import click


def add_grants(command: click.Command) -> None:
    """Add ``--trust`` and ``--allow-outside`` to a command that runs code of the workspace."""
    command.params += [
        click.Option([flag], is_flag=True, expose_value=False, callback=setting, help=words)
        for flag, setting, words in _GRANTS
    ]


class _Setting:
    """A flag that sets an environment variable of this process and its children."""

    def __init__(self, variable: str, value: str) -> None:
        self._variable = variable
        self._value = value

    def __call__(self, _context: click.Context, _option: click.Parameter, given: bool) -> bool:
        if given:
            os.environ[self._variable] = self._value
        return given


_GRANTS = (
    (
        "--trust",
        _Setting("GPUEMU_TRUST", "remember"),
        "Run this workspace's code although other users own files of it; remembered.",
    ),
    (
        "--allow-outside",
        _Setting("GPUEMU_ALLOW_OUTSIDE", "1"),
        "Allow paths outside the workspace, if [project] allow_outside requests it.",
    ),
)
