"""``gpuemu-flow completion SHELL``: the script that completes commands and options."""

from __future__ import annotations

import click

PROGRAM = "gpuemu-flow"
VARIABLE = "_GPUEMU_FLOW_COMPLETE"  # what click derives from the program's name


@click.command(short_help="Print a shell's completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes a shell complete commands and options.

    bash: eval "$(gpuemu-flow completion bash)" in ~/.bashrc; zsh the same in ~/.zshrc;
    fish: gpuemu-flow completion fish > ~/.config/fish/completions/gpuemu-flow.fish
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415

    kind = get_completion_class(shell)
    assert kind is not None, "click knows these three shells"  # noqa: S101
    click.echo(kind(context.find_root().command, {}, PROGRAM, VARIABLE).source())
