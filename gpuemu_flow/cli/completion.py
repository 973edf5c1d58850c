"""``gpuemu-flow completion SHELL``: print the script that makes a shell complete command lines."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from gpuemu_flow.cli.options import VARIABLE, say
from gpuemu_flow.model.errors import FlowError
from gpuemu_flow.model.types import DTYPES

if TYPE_CHECKING:
    from gpuemu_flow.cli.known_names import KnownNames


PROGRAM = "gpuemu-flow"

# Without this call, zsh without configuration has no completion.
_ZSH_READY = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i; }\n"


@click.command(short_help="Print a shell's completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes a shell complete commands, options, ops, tasks and failures.

    For bash, write into ~/.bashrc: eval "$(gpuemu-flow completion bash)"

    For zsh, write into ~/.zshrc: eval "$(gpuemu-flow completion zsh)"

    For fish, run: gpuemu-flow completion fish > ~/.config/fish/completions/gpuemu-flow.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these three shells"  # noqa: S101
    script = kind(context.find_root().command, {}, PROGRAM, VARIABLE).source()
    if shell == "zsh":
        first, _, rest = script.partition("\n")  # `#compdef`, which must stay the first line
        script = f"{first}\n{_ZSH_READY}{rest}"
    say(script)


class _Named(click.types.StringParamType):
    """Type of a parameter that may be the name of an op, a task or the like in the workspace."""

    def __init__(self, list_names: Callable[[KnownNames, str], list[str]]) -> None:
        self._list_names = list_names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin with `incomplete`; none if the workspace cannot be read."""
        from gpuemu_flow.cli.known_names import KnownNames  # noqa: PLC0415
        from gpuemu_flow.config.load import find_config  # noqa: PLC0415

        before = _cut_off(ctx.params.get(param.name or "")) if param.nargs == -1 else ""
        begun = before + incomplete
        try:
            known = KnownNames(find_config(Path.cwd(), os.environ))
            found = [name for name in self._list_names(known, begun) if name.startswith(begun)]
        except (FlowError, OSError, ValueError):
            found = []
        if not found and "FILE" in (param.metavar or ""):
            return [CompletionItem(incomplete, type="file")]
        start = len(begun.rpartition(":")[0]) + 1 if before else 0
        return [CompletionItem(name[start:]) for name in found]


def _cut_off(words: object) -> str:
    split = [word for word in words if isinstance(word, str)] if isinstance(words, tuple) else []
    found = ""
    while len(split) > 1 and split[-1] == ":":
        found = f"{split[-2]}:{found}"
        del split[-2:]
    return found


def _words(known: KnownNames, begun: str) -> list[str]:
    """Return the words among which the shell searches for completions of the word `begun`."""
    return known.tasks if ":" in begun else known.groups


def _dtypes(_known: KnownNames, _begun: str) -> list[str]:
    return list(DTYPES)


_LISTS: dict[str, Callable[[KnownNames, str], list[str]]] = {
    "words": _words,
    "op": lambda known, _: known.ops,
    "ops": lambda known, _: known.ops,
    "more_ops": lambda known, _: known.ops,
    "dtypes": _dtypes,
    "failure": lambda known, _: known.failures,
    "tag": lambda known, _: known.baselines,
    "baseline_tag": lambda known, _: known.baselines,
}


def complete_names(command: click.Command) -> None:
    """Add completion to the parameters of `command` and its subcommands that take names."""
    for parameter in command.params:
        names = _LISTS.get(parameter.name or "")
        if names is not None and parameter.type is click.STRING:
            kernels = "KERNEL" in (parameter.metavar or "")
            parameter.type = _Named((lambda known, _: known.kernels) if kernels else names)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            complete_names(below)
