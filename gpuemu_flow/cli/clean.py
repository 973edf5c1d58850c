"""``gpuemu-flow clean``: forget results, or the whole cache."""

from __future__ import annotations

import click

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.progress import say_waiting
from gpuemu_flow.cli.say import say
from gpuemu_flow.report.inspect import clean_submissions, clean_workspace


@click.command(short_help="Forget results, or the whole cache.")
@click.argument("words", nargs=-1, metavar="[OP|TASK|GROUP|TARGET]...")
@click.option("--submissions", is_flag=True, help="Forget only clients' submissions.")
@click.option("--cache", "whole_cache", is_flag=True, help="Delete the action cache and blobs too.")
def clean(words: tuple[str, ...], submissions: bool, whole_cache: bool) -> None:
    """Forget the results of the named tasks; without words, of all tasks.

    Computed results stay in the action cache, so that the next run restores them, unless --cache
    is given. If an op is named, what clients submitted for it is forgotten, too. With
    --submissions, only what clients submitted is forgotten: for the named ops, or for all.
    """
    workspace = Workspace()
    forgotten = 0
    if words or submissions:
        forgotten = clean_submissions(workspace, words, only=submissions)
    text = f"{forgotten} submissions"
    if not submissions or whole_cache:
        # An op that only clients run has submissions and no tasks.
        only_clients = {op.name for op in workspace.config.ops if op.op is None}
        named = [word for word in words if word not in only_clients]
        count = 0
        if named or not words or whole_cache:
            count = clean_workspace(workspace, named, whole_cache=whole_cache, on_wait=say_waiting)
        text = f"{count} tasks" + (f" and {text}" if forgotten else "")
    say(f"forgot {text}" + (" and emptied the cache" if whole_cache else ""))
