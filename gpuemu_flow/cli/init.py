"""``gpuemu-flow init`` and ``import``: write a new workspace, or make one of other problems."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from msgspec.structs import replace

from gpuemu_flow.cli.options import AliasedChoice, say
from gpuemu_flow.lint.toolchain import find_tools
from gpuemu_flow.model.errors import Problem, RunnerError, UsageError
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
from gpuemu_flow.services.problems.kernelbench import import_kernelbench
from gpuemu_flow.services.problems.model import Options

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuemu_flow.services.init.installed import PipRequirement
    from gpuemu_flow.services.init.scaffold import Framework
    from gpuemu_flow.services.problems.model import ImportOutcome


_NAMES = ("numpy", "pytorch", "jax", "tensorflow", "triton", "cuda")
_ALIASES = {"torch": "pytorch", "tf": "tensorflow"}


@click.command(short_help="Write a new workspace.")
@click.argument("project", required=False, metavar="[NAME]")
@click.option("-n", "--name", help="Name of the project; default: that of the folder.")
@click.option("-f", "--framework", "--template", "framework_name",
              type=AliasedChoice(_NAMES, _ALIASES), default="numpy", show_default=True,
              help="What the ops are written in.")  # fmt: skip
@click.option(
    "--with-examples", "--with_examples", is_flag=True, help="Write two ops instead of one."
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


# ``gpuemu-flow import``: make a workspace of problems in another collection's format.

FORMATS = ("kernelbench", "gpumode", "flashinfer-bench", "gpuemu")
_RUN_AT_IMPORT = FORMATS[:3]
"""Formats whose problems are PyTorch programs, which are run to find their inputs."""
_PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_PATH = click.Path(path_type=Path)


class _Format(click.Choice):  # type: ignore[type-arg, unused-ignore]
    """A format; that of pytest's tests, which 0.1 imported, is refused with what to do instead."""

    def convert(self, value: object, *args: Any) -> Any:
        if value == "pytest":
            text = "files of pytest tests are not imported: their tests judge ops themselves"
            hint = 'mark a test with @pytest.mark.gpuemu("OP"): see docs/pytest.md'
            raise UsageError(Problem("import-pytest", text, hint))
        return super().convert(value, *args)


@click.command("import", short_help="Make a workspace of another collection's problems.")
@click.argument("format_name", metavar="FORMAT", type=_Format(FORMATS))
@click.argument("path", type=_PATH)
@click.option("--into", default=".", show_default=True, type=_PATH, help="Folder of the workspace.")
@click.option("--candidates", multiple=True, type=_PATH, metavar="PATH",
              help="A file or folder with candidates; may be repeated.")  # fmt: skip
@click.option("--size", type=click.Choice(["small", "given"]), default="small", show_default=True,
              help="Scale sizes down where the model allows it.")  # fmt: skip
@click.option("--shapes", type=click.Choice(["varied", "given"]), default="varied",
              show_default=True, help="Try other sizes where the model allows it.")  # fmt: skip
@click.option("--cases", type=click.IntRange(1, 1000), default=12, show_default=True,
              help="Cases of each candidate.")  # fmt: skip
@click.option("--precision", type=click.Choice([*_PRECISIONS]), default="fp32", show_default=True,
              help="Dtype of kernelbench's floats, as its harness has it.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace files that are there.")
def import_problems(
    format_name: str,
    path: Path,
    into: Path,
    candidates: tuple[Path, ...],
    size: str,
    shapes: str,
    cases: int,
    precision: str,
    force: bool,
) -> None:
    """Make a workspace of the problems and candidates of FORMAT in PATH, a file or folder.

    Problems of kernelbench, gpumode and flashinfer-bench are run in sandboxed workers, to find
    sizes and inputs; those of gpuemu are not run. Exit codes: 0 something was imported;
    4 nothing was.
    """
    if precision != "fp32" and format_name != "kernelbench":
        raise click.UsageError("--precision is an option of kernelbench")
    # Report a missing path before a package that is not installed.
    missing = next((each for each in (path, *candidates) if not each.exists()), None)
    if missing is not None:
        problem = Problem("import-not-found", f"there is no {missing}", "give a file or folder")
        raise UsageError(problem)
    if format_name in _RUN_AT_IMPORT and importlib.util.find_spec("torch") is None:
        text = f"problems of {format_name} are PyTorch programs, and torch is not installed"
        hint = "python -m pip install 'gpuemu-flow[torch]'"
        raise RunnerError(Problem("import-needs-torch", text, hint))
    dtype = _PRECISIONS[precision]
    options = Options(candidates, size == "small", shapes == "varied", cases, into, dtype)

    def announce(name: str) -> None:
        say(f"trying {printable(name)}", err=True)

    found = _importer(format_name)(path, options, announce)
    if any(taken.source.candidates for taken in found.taken):
        install(found.files, into, force=force)
    say(printable(_summary(found, into)))
    raise SystemExit(0 if any(taken.source.candidates for taken in found.taken) else 4)


def _importer(format_name: str) -> Callable[[Path, Options, Callable[[str], None]], ImportOutcome]:
    if format_name == "gpumode":
        from gpuemu_flow.services.problems.gpumode import import_gpumode  # noqa: PLC0415

        return import_gpumode
    if format_name == "flashinfer-bench":
        from gpuemu_flow.services.problems.flashinfer import import_flashinfer  # noqa: PLC0415

        return import_flashinfer
    if format_name == "gpuemu":
        from gpuemu_flow.services.problems.gpuemu import import_gpuemu  # noqa: PLC0415

        return import_gpuemu
    return import_kernelbench


def _summary(found: ImportOutcome, into: Path) -> str:
    lines = []
    for one in found.taken:
        names = ", ".join(candidate.name for candidate in one.source.candidates) or "no candidate"
        lines.append(f"took {one.source.name}: {names}")
        if one.scaled:
            sizes = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in one.scaled.items())
            lines.append(f"  scaled: {sizes}")
        lines += [f"  {note}" for note in one.notes]
        if one.dims:
            dims = ", ".join(f"{name} in {_sizes(sizes)}" for name, sizes in one.dims.items())
            lines.append(f"  varied: {dims}")
    lines += [f"left out: {one.what}: {one.reason}" for one in found.left]
    if any(one.source.candidates for one in found.taken):
        place = "" if into.resolve() == Path.cwd() else f"cd {shlex.quote(str(into))} && "
        where = "are read in place" if found.in_place else "were copied"
        lines.append(f"their files {where}; the originals are unchanged")
        lines.append(f"next: {place}gpuemu-flow score")
    else:
        lines.append("nothing was taken, and nothing was written")
    return "\n".join(lines)


def _sizes(sizes: tuple[int, ...] | str) -> str:
    return sizes if isinstance(sizes, str) else str(list(sizes))
