"""``[[rules]]`` as frozen data."""

from __future__ import annotations

from msgspec import Struct


class RuleConfig(Struct, frozen=True):
    """One command that makes files of the workspace.

    Attributes
    ----------
    name, file, line : str, str, int
    command : tuple of str
        A program and its arguments; with `shell`, one command line.
    shell : bool
    inputs : tuple of str
        Globs relative to the workspace root.
    outputs : tuple of str
        Files, relative to the workspace root.
    needs : tuple of str
        Rules that must run before this one: rules that it names, and rules that make its inputs.
    timeout : float
        Time limit of the command in seconds.
    only_inputs : bool
        True if the command can read no files of the workspace except its inputs.
    """

    name: str
    file: str
    line: int
    command: tuple[str, ...]
    shell: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    needs: tuple[str, ...]
    timeout: float
    only_inputs: bool = False
