"""``gpuemu-flow init``: write a new workspace, which passes immediately."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from msgspec.structs import replace

from gpuemu_flow.cli.options import AliasedChoice
from gpuemu_flow.cli.say import say
from gpuemu_flow.lint.toolchain import find_tools
from gpuemu_flow.report.text import printable
from gpuemu_flow.services.init.installed import find_origin
from gpuemu_flow.services.init.needs import needed_extras
from gpuemu_flow.services.init.scaffold import (
    CONFIG_PATH,
    FRAMEWORKS,
    IGNORE_PATH,
    framework_of,
    ignore_lines,
    ignored,
    plan_files,
    plan_workflow,
    project_name,
)
from gpuemu_flow.services.init.write import install

if TYPE_CHECKING:
    from gpuemu_flow.services.init.installed import PipRequirement
    from gpuemu_flow.services.init.scaffold import Framework


_NAMES = ("numpy", "pytorch", "jax", "tensorflow", "triton", "cuda")
_ALIASES = {"torch": "pytorch", "tf": "tensorflow"}


@click.command(short_help="Write a new workspace.")
@click.argument("project", required=False, metavar="[NAME]")
@click.option("-n", "--name", help="Name of the project; default: that of the folder.")
@click.option("-f", "--framework", "--template", "framework_name",
              type=AliasedChoice(_NAMES, _ALIASES), default="numpy", show_default=True,
              help="What the ops are written in.")  # fmt: skip
@click.option(
    "--with-examples", "--with_examples", is_flag=True, help="Write three ops instead of one."
)
@click.option("--ci", type=click.Choice(["github", "gitlab"]), help="Write a CI workflow, too.")
@click.option("-t", "--target-dir", "--target_dir", "target", default=".", show_default=True,
              type=click.Path(path_type=Path), help="Folder to write into.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace files that are there.")
@click.pass_context
def init(
    context: click.Context,
    project: str | None,
    name: str | None,
    framework_name: str,
    with_examples: bool,
    ci: str | None,
    target: Path,
    force: bool,
) -> None:
    """Write gpuemu.toml, an op and its reference; if that fails, write nothing.

    Existing files are never overwritten without --force; a .gitignore is extended. If there is a
    gpuemu.toml, --ci without other options adds only the workflow.
    """
    config = target / CONFIG_PATH
    added = ci is not None and config.is_file() and not (force or with_examples or name or project)
    if added and context.get_parameter_source("framework_name") is ParameterSource.DEFAULT:
        framework_name = framework_of(config)
    framework = FRAMEWORKS[framework_name]
    if added:
        framework = replace(framework, extras=needed_extras(config))
    chosen = name or project or project_name(target)
    if not chosen.isprintable() or len(chosen) > 200:
        raise click.BadParameter("at most 200 characters, all of them printable", param_hint="name")
    if chosen in {".", ".."} or "/" in chosen:
        reason = "it names the project, not a folder: use --target-dir FOLDER"
        raise click.BadParameter(reason, param_hint="name")
    origin = find_origin()
    if ci is not None and added:
        files = plan_workflow(framework, ci, origin)
    else:
        files = plan_files(chosen, framework, with_examples=with_examples, ci=ci, origin=origin)
    ignore = target / IGNORE_PATH
    notes = _notes(framework, target, ci, origin)
    if ignore.is_symlink() or (ignore.exists() and not ignore.is_file()):
        notes.append(f"{IGNORE_PATH} is left as it is, a link; add {', '.join(ignored())} to it")
    else:
        files[IGNORE_PATH] = ignore_lines(ignore.read_bytes() if ignore.exists() else b"")
    if not added:
        files[CONFIG_PATH] = files.pop(CONFIG_PATH)  # last: without it there is no workspace
    written = install(files, target, force=force, added_to={IGNORE_PATH})
    for path in sorted(files):
        say(f"{'wrote' if path in written else 'unchanged:'} {path}")
    for note in notes:
        say(f"note: {printable(note)}")
    place = "" if target.resolve() == Path.cwd() else f"cd {shlex.quote(str(target))} && "
    say(f"next: {printable(place)}gpuemu-flow {'ci quick' if added else 'run'}")


def _notes(framework: Framework, target: Path, ci: str | None, origin: PipRequirement) -> list[str]:
    """List reasons why the new workspace, or a part of it, cannot work on this machine yet."""
    notes = []
    missing = framework.missing()
    if missing:
        commands = " && ".join(f"python -m pip install {words}" for words in framework.install)
        absent = " and ".join(missing)
        notes.append(f"not installed here, so that the ops cannot run yet: {absent}; {commands}")
    if framework.name == "cuda" and not _has_nvcc():
        hint = "python -m pip install 'gpuemu-flow[cuda]'"
        notes.append(f"nvcc was not found, so the kernel and its op will be skipped: {hint}")
    outer = next((p for p in target.resolve().parents if (p / ".git").exists()), None)
    if ci is not None and outer is not None and not (target / ".git").exists():
        notes.append(f"{ci} reads workflows from the repository's root, {outer}: move it there")
    if ci is not None and origin.doubt:
        notes.append(
            f"the workflow installs {origin.requirement} from the package index, which may not "
            f"have this gpuemu-flow: {origin.doubt}; change that line to where it can be had"
        )
    return notes


def _has_nvcc() -> bool:
    return "nvcc" in find_tools().tools
