"""``gpuemu-flow status``, ``cache`` and ``clean``: what a workspace holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from gpuemu_flow import __version__
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import config_options, format_option, say, wants_color
from gpuemu_flow.cli.progress import say_waiting
from gpuemu_flow.config.check import parse_size
from gpuemu_flow.config.model import Overrides
from gpuemu_flow.report import caches, json_writer, text, workspace_text
from gpuemu_flow.report.caches import cache_facts, collect, collect_shared
from gpuemu_flow.report.inspect import clean_submissions, clean_workspace, workspace_status
from gpuemu_flow.services.daemon.files import DaemonState, find_place, holder

if TYPE_CHECKING:
    from gpuemu_flow.report.caches import CacheCheck, Size


_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SHOWN = 20

_remote = click.option("--remote", is_flag=True, help="Use the shared cache, if it is a folder.")


@click.group(short_help="Look after the caches.")
def cache() -> None:
    """Measure, check and clean the workspace's own cache, and a cache that machines share.

    `[cache] remote` or GPUEMU_CACHE_REMOTE names a shared cache.
    """


@cache.command()
@format_option("text", "json")
def stats(output_format: str) -> None:
    """Show the content of the caches, and whether the shared one answers."""
    facts = cache_facts(Workspace())
    if output_format == "json":
        say(json_writer.dumps(facts))
        return
    limit = f", of at most {_bytes(facts.limit)}" if facts.limit else ""
    say(f"own cache: {facts.folder}")
    say(f"  {_size(facts.own)}{limit}")
    if not facts.remote:
        say("shared cache: none")
        return
    say(f"shared cache: {facts.remote} ({facts.mode}{', signed' if facts.signed else ''})")
    known = facts.shared.entries is not None
    answer = "answers" if facts.answers == "yes" else f"does not answer: {facts.answers}"
    say(f"  {answer}" + (f"; {_size(facts.shared)}" if known else ""))


@cache.command()
@_remote
@click.option("--size", metavar="SIZE", help="Largest size to keep, such as 2GB; 0 keeps nothing.")
def gc(remote: bool, size: str | None) -> None:
    """Delete the least recently used content until the rest fits.

    Without --size, the limit of the workspace's own cache is [cache] size_limit.
    """
    wanted = None if size is None else parse_size(size)
    if size is not None and wanted is None:
        raise click.BadParameter(f"{size!r} is no size such as 2GB or 512MiB", param_hint="--size")
    workspace = Workspace()
    if remote:
        if wanted is None:
            raise click.UsageError("--remote needs --size")
        deleted, freed = collect_shared(workspace, wanted)
    else:
        limit = workspace.settings.size_limit if wanted is None else wanted
        deleted, freed = collect(workspace, limit, say_waiting)
    say(f"deleted {deleted} files, {_bytes(freed)}")


@cache.command()
def verify() -> None:
    """Read the whole content of the workspace's cache; exit code 1 if something is damaged.

    What is damaged is set aside.
    """
    checked = caches.verify(Workspace(), say_waiting)
    _say_checked(checked)
    raise SystemExit(1 if checked.damaged else 0)


@cache.command()
def clear() -> None:
    """Delete the whole content of the cache; recorded failures and baselines are kept."""
    count = clean_workspace(Workspace(), (), whole_cache=True, on_wait=say_waiting)
    say(f"forgot {count} tasks and emptied the cache")


def _say_checked(checked: CacheCheck) -> None:
    for name in checked.damaged[:_SHOWN]:
        say(f"damaged: {name}", err=True)
    if len(checked.damaged) > _SHOWN:
        say(f"and {len(checked.damaged) - _SHOWN} more", err=True)
    wrong = f"{len(checked.damaged)} damaged, {checked.removed} removed"
    say(f"read {checked.entries} entries and {checked.blobs} blobs: {wrong}")


def _size(size: Size) -> str:
    return (
        f"{size.entries} entries, {_bytes(size.entry_bytes or 0)}; "
        f"{size.blobs} blobs, {_bytes(size.blob_bytes or 0)}"
    )


def _bytes(count: int) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


# ``gpuemu-flow clean``: forget results, or the whole cache.


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


# ``gpuemu-flow status``: show the workspace, its verdicts, its cache and its daemon.


@click.command(short_help="Show the workspace, its results, cache and daemon.")
@config_options
@format_option("text", "json")
def status(profile: str, settings: tuple[str, ...], output_format: str) -> None:
    """Show the workspace, its tasks by state, its last verdicts, its cache and its daemon."""
    workspace = Workspace(overrides=Overrides(profile=profile, settings=settings))
    found = workspace_status(workspace)
    daemon = _daemon(workspace.root)
    if output_format == "json":
        shown = {"version": __version__, "schema_version": 1, **asdict(found)}
        say(json_writer.dumps({**shown, "daemon": daemon.to_json()}))
    else:
        say(daemon.line(__version__))
        say(workspace_text.render_status(found, text.Style(wants_color())))


def _daemon(root: Path) -> DaemonState:
    """Return the state of the daemon; if none runs, import no code to communicate with it."""
    place = find_place(root, os.environ)
    if place is None or holder(place.lock) is None:
        return DaemonState()
    from gpuemu_flow.services.daemon.control import describe  # noqa: PLC0415 - brings pynng

    return describe(root, os.environ)
