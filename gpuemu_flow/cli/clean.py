"""``gpuemu-flow clean``: forget results, or the whole cache."""

from __future__ import annotations

import click


@click.command(short_help="Forget results, or the whole cache.")
@click.argument("words", nargs=-1, metavar="[OP|TASK|GROUP|TARGET]...")
@click.option("--cache", "whole_cache", is_flag=True, help="Delete the action cache and blobs too.")
def clean(words: tuple[str, ...], whole_cache: bool) -> None:
    """Forget the results of the named tasks (without words: of all).

    What was computed stays in the action cache, so that the next run restores it, unless --cache
    is given.
    """
    from gpuemu_flow.cli.progress import say_waiting  # noqa: PLC0415
    from gpuemu_flow.engine.inspect import clean_workspace  # noqa: PLC0415
    from gpuemu_flow.engine.workspace import Workspace  # noqa: PLC0415

    count = clean_workspace(Workspace(), words, whole_cache=whole_cache, on_wait=say_waiting)
    click.echo(f"forgot {count} tasks" + (" and emptied the cache" if whole_cache else ""))
