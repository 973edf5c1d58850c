"""``gpuemu-flow import``: make a workspace of problems in another collection's format."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuemu_flow.cli.say import say
from gpuemu_flow.model.errors import Problem, RunnerError, UsageError
from gpuemu_flow.report.text import printable
from gpuemu_flow.services.init.write import install
from gpuemu_flow.services.problems.kernelbench import import_kernelbench
from gpuemu_flow.services.problems.model import Options

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuemu_flow.services.problems.model import ImportOutcome


FORMATS = ("kernelbench", "gpumode", "flashinfer-bench", "gpuemu")
_RUN_AT_IMPORT = FORMATS[:3]
"""Formats whose problems are PyTorch programs, which are run to find their inputs."""
_PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_PATH = click.Path(path_type=Path)


class _Format(click.Choice):  # type: ignore[type-arg, unused-ignore]
    """A format; that of pytest's tests, which 0.1 imported, is refused with what to do instead."""

    def convert(self, value: object, *args: Any) -> Any:
        if value == "pytest":
            from gpuemu_flow.model.errors import Problem, UsageError  # noqa: PLC0415

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
    """Return the function that imports a format; load only that format's module."""
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
    """Return the summary: imported problems, left-out problems, and the next steps."""
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
