"""``gpuemu-flow ci``, ``test`` and ``report``: check everything, and write reports."""

from __future__ import annotations

import contextlib
import os
import sys
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.failures import reproduce
from gpuemu_flow.cli.options import (
    NO_CONFIRM,
    SEED_OR_RANDOM,
    AliasedChoice,
    F,
    config_options,
    part_options,
    say,
    seed_overrides,
    split_words,
    telling_damage,
    wants_color,
)
from gpuemu_flow.cli.progress import make_listener, say_looking
from gpuemu_flow.model.errors import Problem, StoreError, UsageError
from gpuemu_flow.report import formats, github, html_writer, markdown, report_text, signature, text
from gpuemu_flow.report.history import save_if_clean
from gpuemu_flow.report.reporting import QUICK, THOROUGH, ReportQuery, ReportRequest, check, current
from gpuemu_flow.store.failures import FailureStore
from gpuemu_flow.store.private_files import write_atomic

if TYPE_CHECKING:
    from gpuemu_flow.build.graph import Shard
    from gpuemu_flow.report.document import Report


# Write reports: choose formats by name or file suffix, write files, and inform CI services.

FORMATS = tuple(formats.FORMATS)
ALIASES = {alias: name for name, form in formats.FORMATS.items() for alias in form.aliases}
ENDINGS = {ending: name for name, form in formats.FORMATS.items() for ending in form.endings}


def report_format_option(*names: str) -> Callable[[F], F]:
    """Make the option ``--format``, whose choices are `names`; the first name is the default."""
    return click.option(
        "--format",
        "output_format",
        type=AliasedChoice(names, ALIASES),
        default=names[0],
        show_default=True,
        help="Format of standard output, and of files without a known ending.",
    )


def output_option(function: F) -> F:
    """Add the option ``-o``, which names a file for the report and may be repeated."""
    return click.option(
        "-o",
        "--output",
        "outputs",
        multiple=True,
        type=click.Path(path_type=Path, dir_okay=False),
        help="Also write this file, its format by its ending; may be repeated.",
    )(function)


def format_of(path: Path, default: str) -> str:
    """Return the format of a file by its suffix; `default` if the suffix is unknown."""
    return ENDINGS.get(path.suffix.lower(), default)


def wants_pictures(outputs: Sequence[Path], output_format: str) -> bool:
    """Tell whether an output contains drawings of failures."""
    return "html" in {output_format, *(format_of(path, output_format) for path in outputs)}


def check_outputs(outputs: Sequence[Path]) -> None:
    problems = []
    for path in outputs:
        folder = path.resolve().parent
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            problems.append(_not_writable(path, f"{folder} is no folder to write to"))
    if problems:
        raise UsageError(*problems)


def _not_writable(path: Path, reason: str) -> Problem:
    hint = "name a file in a folder that you may write to"
    return Problem("report-not-writable", f"cannot write the report: {reason}", hint, str(path))


def render(report: Report, name: str, *, color: bool = False, warn_threshold: float = 1.0) -> str:
    """Return a report in the format `name`; `color` allows colours in text."""
    look = formats.ReaderOptions(color, warn_threshold)
    return formats.FORMATS[name].write(report, look)


def write_file(path: Path, text: str) -> None:
    """Write a report to a file, either completely or not at all. Raises UsageError:
    ``report-not-writable``."""
    data = text.encode("utf-8", "replace")
    try:
        if path.exists() and not path.is_file():  # a pipe or /dev/stdout is no file to replace
            path.write_bytes(data)
            return
        write_atomic(path, data)
        # Unlike the cache's files, which only the user may read, reports are for others, too.
        mask = os.umask(0)
        os.umask(mask)
        path.chmod(0o666 & ~mask)
    except (OSError, StoreError) as error:
        raise UsageError(_not_writable(path, str(error))) from None


def publish(
    report: Report,
    outputs: Sequence[Path],
    output_format: str,
    *,
    warn_threshold: float,
    to_text: Callable[[Report], str] | None = None,
) -> None:
    """Write a report to files, then print it."""
    written = set()
    for path in outputs:
        name = format_of(path, output_format)
        write_file(path, render(report, name, warn_threshold=warn_threshold))
        written.add(name)
    shown = "text" if output_format in written else output_format
    if shown == "text" and to_text is not None:
        out = to_text(report)
    else:
        color = shown == "text" and wants_color()
        out = render(report, shown, color=color, warn_threshold=warn_threshold)
    say(out, nl=not out.endswith("\n"))


def tell_ci(report: Report, environ: Mapping[str, str] = os.environ) -> None:
    """Print annotations and write the job summary, inside a GitHub workflow. Annotations go to
    standard error because standard output may contain JSON; GitHub reads both."""
    summary = environ.get("GITHUB_STEP_SUMMARY")
    if environ.get("GITHUB_ACTIONS") != "true" and not summary:
        return
    if environ.get("GITHUB_ACTIONS") == "true":
        sys.stdout.flush()
        for line in github.workflow_commands(report):
            click.echo(line, err=True)
    if summary:
        text = markdown.report_to_markdown(report, limit=github.MAX_SUMMARY_BYTES)
        # A summary is optional, so failing to write it is no error.
        with contextlib.suppress(OSError), Path(summary).open("ab") as file:
            file.write(b"\n" + text.encode("utf-8", "replace"))


DEFAULT_KEY = Path("gpuemu-report-key")
_MERGE = "--merge"
_FILE = click.Path(path_type=Path, dir_okay=False)


class _ReportGroup(click.Group):
    """The group `report`, whose option ``--merge`` takes all words up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, with ``--merge`` put before each word that belongs to it."""
        repeated: list[str] = []
        merging = False
        for word in args:
            if word.startswith("-"):
                merging = word == _MERGE or word.startswith(f"{_MERGE}=")
            elif merging and repeated[-1] != _MERGE:
                repeated.append(_MERGE)
            repeated.append(word)
        return super().parse_args(ctx, repeated)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a subcommand; an unknown word is probably a file that was given without ``-o``."""
        word = args[0]
        if self.get_command(ctx, word) is None and not word.startswith("-"):
            ctx.fail(
                f"`report` has no command {word!r}; to write a report into that file, give "
                f"`-o {word}`, to join reports of shards, `{_MERGE} {word}`"
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=_ReportGroup, invoke_without_command=True, short_help="Report what is known, as a file."
)
@report_format_option(*FORMATS)
@output_option
@click.option(
    "--since-hours", "--since_hours", type=click.FloatRange(0, min_open=True), metavar="N",
    help="Only what was checked in the last N hours.",
)  # fmt: skip
@click.option("--include-lint", "--include_lint", is_flag=True, help="Report on kernels, too.")
@click.option(
    "--include-artifacts", "--include_artifacts", "tag", is_flag=False, flag_value="",
    metavar="[TAG]", help="Compare kernels with a baseline; without TAG, the newest.",
)  # fmt: skip
@click.option("--sign", "key_file", type=_FILE, metavar="KEY", help="Sign with this private key.")
@click.option(
    _MERGE, "shards", multiple=True, type=click.Path(path_type=Path, exists=True),
    metavar="DIR|FILE...", help="Join the JSON of all shards of `ci --shard`; may be repeated.",
)  # fmt: skip
@click.option("--open", "show", is_flag=True, help="Show the HTML report in a browser.")
@click.pass_context
def report(
    context: click.Context,
    output_format: str,
    outputs: tuple[Path, ...],
    since_hours: float | None,
    include_lint: bool,
    tag: str | None,
    key_file: Path | None,
    shards: tuple[Path, ...],
    show: bool,
) -> None:
    """Report the results of the last runs, without running anything.

    Exit code 4 if nothing has been validated yet, else 0, even if something failed: use `ci` to get
    a verdict. With --merge, no workspace is needed, and the exit code is the one that `ci` without
    shards would have had.
    """
    if context.invoked_subcommand is not None:
        return
    check_outputs(outputs)
    if shards:
        if since_hours is not None or include_lint or tag is not None or key_file or show:
            raise click.UsageError("--merge goes with --format and -o only")
        from gpuemu_flow.report.merging import merged_report  # noqa: PLC0415 - brings jsonschema

        whole = merged_report(shards)
        publish(whole, outputs, output_format, warn_threshold=1.0)
        raise SystemExit(whole.exit_code)
    signer = _Signer(key_file, outputs, output_format) if key_file is not None else None
    workspace = telling_damage(Workspace())
    if show and not any(format_of(path, output_format) == "html" for path in outputs):
        outputs = (*outputs, workspace.cache.folder / "report.html")
    found = current(workspace, ReportQuery(since_hours, include_lint, tag))
    warn = workspace.settings.warn_threshold
    if signer is not None:
        signer.write(found, outputs, output_format)
    else:
        publish(found, outputs, output_format, warn_threshold=warn)
    if show:
        _open(next(p for p in outputs if format_of(p, output_format) == "html"))
    raise SystemExit(4 if found.exit_code == 4 else 0)


class _Signer:
    """Writes signed reports: HTML contains the signature, other formats get a ``.sig`` file."""

    def __init__(self, key_file: Path, outputs: tuple[Path, ...], output_format: str) -> None:
        if not outputs and output_format != "html":
            raise click.UsageError("--sign needs a file to sign: -o FILE, or --format html")
        self._key, problems = signature.load_private(key_file)
        for problem in problems:
            say(str(problem), err=True)

    def write(self, found: Report, outputs: tuple[Path, ...], output_format: str) -> None:
        """Write the signed reports; without files, print signed HTML to standard output."""
        for path in outputs:
            name = format_of(path, output_format)
            if name == "html":
                write_file(path, self._html(found))
                continue
            text = render(found, name)
            write_file(path, text)
            beside = path.with_name(path.name + signature.SUFFIX)
            write_file(beside, signature.sign_detached(text.encode("utf-8", "replace"), self._key))
        if not outputs:
            say(self._html(found), nl=False)

    def _html(self, found: Report) -> str:
        mark = signature.fingerprint(self._key.public_key())
        return signature.sign_html(html_writer.report_to_html(found, mark), self._key)


def _open(path: Path) -> None:
    if not webbrowser.open(path.resolve().as_uri()):
        say(f"no browser could be started; the report is {path}", err=True)


@report.command(short_help="Check a signed report.")
@click.argument("file", type=_FILE)
@click.option("--pubkey", type=_FILE, required=True, metavar="PEM", help="The public key.")
def verify(file: Path, pubkey: Path) -> None:
    """Check that a report is unchanged since the owner of the key signed it; exit code 1 if not."""
    found = signature.verify(file, signature.load_public(pubkey))
    say(f"{file}: signed by {found.key}, sha256 {found.sha256}")


@report.command(short_help="Make a pair of keys for signing.")
@click.option(
    "-o", "--output", type=_FILE, default=DEFAULT_KEY, show_default=True, help="The private key."
)
def keygen(output: Path) -> None:
    """Write a private key that only its owner can read, and its public key as a .pub file."""
    public = signature.make_key(output)
    mark = signature.fingerprint(signature.load_public(public))
    say(f"private key {output}\npublic key {public}\nsha256 {mark}")


# ``gpuemu-flow ci``: check everything in one process and write reports for CI services.


@click.command(short_help="Check everything, for a CI service.")
@click.argument("words", nargs=-1, metavar="[run] [quick|thorough|OP|TASK|GROUP|TARGET]...")
@click.option("--quick", is_flag=True, help="Only the dtypes of ci.quick_dtypes.")
@click.option(
    "--baseline", metavar="TAG", help="Compare with this baseline, a name or an exported file."
)
@click.option(
    "--parallel", type=click.IntRange(0, 4096), metavar="N", help="Tasks at a time; 0: one per CPU."
)
@click.option(
    "--fail-on-regression/--no-fail-on-regression",
    default=None,
    help="Exit 1 when something got worse; default with a baseline: as in [policies].",
)
@click.option("--require-all", is_flag=True, help="Exit 4 where anything got no verdict.")
@click.option("--allow-empty", is_flag=True, help="Exit 0 where nothing could be validated.")
@part_options
@config_options
@NO_CONFIRM
@SEED_OR_RANDOM
@report_format_option(*FORMATS)
@output_option
def ci(
    words: tuple[str, ...],
    quick: bool,
    baseline: str | None,
    parallel: int | None,
    fail_on_regression: bool | None,
    require_all: bool,
    allow_empty: bool,
    since: str,
    shard: Shard | None,
    profile: str,
    settings: tuple[str, ...],
    confirm: bool,
    seed: int | str | None,
    output_format: str,
    outputs: tuple[Path, ...],
) -> None:
    """Check everything without a daemon, or only what the words select.

    A run that takes longer than ci.thorough_timeout is stopped, lists what is missing, and ends
    with exit code 124. Several files can be written at once:
    -o results.xml -o report.html -o report.md
    """
    chosen = words[1:] if words[:1] == ("run",) else words
    if QUICK in chosen:
        chosen, quick = tuple(word for word in chosen if word != QUICK), True
    if quick and THOROUGH in chosen:
        raise click.UsageError("choose one of quick and thorough")
    if len(chosen) > 1 and THOROUGH in chosen:
        raise click.UsageError("thorough means everything; leave out the other words")
    if require_all and allow_empty:
        raise click.UsageError("--require-all and --allow-empty contradict each other")
    check_outputs(outputs)
    mode = QUICK if quick else THOROUGH
    workspace = Workspace(overrides=seed_overrides(seed, mode, profile, settings))
    request = ReportRequest(
        chosen,
        quick=quick,
        baseline=baseline,
        jobs=parallel,
        fail_on_regression=fail_on_regression,
        pictures=wants_pictures(outputs, output_format),
        require_all=require_all,
        confirm=confirm,
        since=since,
        shard=shard,
    )
    with make_listener(live=wants_color() and output_format == "text") as listener:
        report = check(workspace, request, listener, announce=say_looking, conclude=save_if_clean)
    publish(
        report,
        outputs,
        output_format,
        warn_threshold=workspace.settings.warn_threshold,
    )
    tell_ci(report)
    code = report.exit_code
    raise SystemExit(0 if code == 4 and allow_empty else code)


# ``gpuemu-flow test``: check ops, for editors and interactive use.


@click.command(short_help="Check ops, one line each.")
@click.option("--quick", is_flag=True, help="Only the dtypes of ci.quick_dtypes.")
@click.option("--thorough", is_flag=True, help="Everything; the default.")
@SEED_OR_RANDOM
@click.option("--op", "ops", multiple=True, help="Only this op; may be repeated.")
@click.option("--kernel", "kernels", multiple=True, help="Only this kernel; may be repeated.")
@report_format_option(*FORMATS)
@output_option
def test(
    quick: bool,
    thorough: bool,
    seed: int | str | None,
    ops: tuple[str, ...],
    kernels: tuple[str, ...],
    output_format: str,
    outputs: tuple[Path, ...],
) -> None:
    """Check the ops and kernels; failing cases are shown as [FAIL] OP (seed: N): MESSAGE.

    With --seed N of a recorded failure, its case is run again, as `reproduce` does.
    """
    if quick and thorough:
        raise click.UsageError("choose one of --quick and --thorough")
    check_outputs(outputs)
    workspace = Workspace(overrides=seed_overrides(seed, QUICK if quick else THOROUGH))
    if isinstance(seed, int) and output_format == "text" and not outputs:
        op = ops[0] if len(ops) == 1 else None
        if FailureStore(workspace.cache).find(seed, op):
            click.get_current_context().invoke(reproduce, failure=str(seed), op=op)
    names = (*split_words(ops), *split_words(kernels))
    request = ReportRequest(
        names, quick=quick, limited=False, pictures=wants_pictures(outputs, output_format)
    )
    with make_listener(live=wants_color() and output_format == "text") as listener:
        report = check(workspace, request, listener)
    warn = workspace.settings.warn_threshold

    def shown(found: Report) -> str:
        return report_text.render_test(found, text.Style(wants_color()), warn_threshold=warn)

    publish(report, outputs, output_format, warn_threshold=warn, to_text=shown)
    raise SystemExit(report.exit_code)
