"""``gpuemu-flow report``: write the workspace's latest results to a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuemu_flow.cli.report_output import (
    FORMATS,
    check_outputs,
    format_of,
    output_option,
    publish,
    render,
    report_format_option,
    wants_pictures,
    write_file,
)
from gpuemu_flow.cli.say import say

if TYPE_CHECKING:
    from gpuemu_flow.results.document import Report

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
        """Find a subcommand, or fail with a message that suggests ``-o`` and ``--merge``.

        An unknown word is probably a path that was given without one of these options.
        """
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

    HTML shows the drawings that `ci -o report.html` made. Exit code 4 if nothing has been validated
    yet, else 0, even if something failed: use `ci` to get a verdict. With --merge, no workspace is
    needed, and the exit code is the one that `ci` without shards would have had.
    """
    if context.invoked_subcommand is not None:
        return
    from gpuemu_flow.engine.workspace import Workspace  # noqa: PLC0415
    from gpuemu_flow.reporting.reporting import ReportQuery, current  # noqa: PLC0415

    check_outputs(outputs)
    if shards:
        if since_hours is not None or include_lint or tag is not None or key_file or show:
            raise click.UsageError("--merge goes with --format and -o only")
        raise SystemExit(_merge(shards, outputs, output_format))
    signer = _Signer(key_file, outputs, output_format) if key_file is not None else None
    workspace = Workspace()
    if show and not any(format_of(path, output_format) == "html" for path in outputs):
        outputs = (*outputs, workspace.cache.folder / "report.html")
    pictures = wants_pictures(outputs, output_format)
    found = current(workspace, ReportQuery(since_hours, include_lint, tag, pictures))
    warn = workspace.settings.warn_threshold
    if signer is not None:
        signer.write(found, outputs, output_format)
    else:
        publish(found, outputs, output_format, warn_threshold=warn)
    if show:
        _open(next(p for p in outputs if format_of(p, output_format) == "html"))
    raise SystemExit(4 if found.exit_code == 4 else 0)


def _merge(shards: tuple[Path, ...], outputs: tuple[Path, ...], output_format: str) -> int:
    """Report on all shards together, and return the exit code of the whole run."""
    from gpuemu_flow.reporting.merging import merged_report  # noqa: PLC0415

    whole = merged_report(shards)
    publish(whole, outputs, output_format, warn_threshold=1.0)
    return whole.exit_code


class _Signer:
    """Writes signed reports: HTML contains the signature, other formats get a ``.sig`` file."""

    def __init__(self, key_file: Path, outputs: tuple[Path, ...], output_format: str) -> None:
        from gpuemu_flow.reports import signature  # noqa: PLC0415

        if not outputs and output_format != "html":
            raise click.UsageError("--sign needs a file to sign: -o FILE, or --format html")
        self._key, problems = signature.load_private(key_file)
        for problem in problems:
            say(str(problem), err=True)

    def write(self, found: Report, outputs: tuple[Path, ...], output_format: str) -> None:
        """Write the signed reports; without files, print signed HTML to standard output."""
        from gpuemu_flow.reports import signature  # noqa: PLC0415

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
        from gpuemu_flow.reports import html_writer, signature  # noqa: PLC0415

        mark = signature.fingerprint(self._key.public_key())
        return signature.sign_html(html_writer.report_to_html(found, mark), self._key)


def _open(path: Path) -> None:
    import webbrowser  # noqa: PLC0415 - slow to import, and seldom needed

    if not webbrowser.open(path.resolve().as_uri()):
        say(f"no browser could be started; the report is {path}", err=True)


@report.command(short_help="Check a signed report.")
@click.argument("file", type=_FILE)
@click.option("--pubkey", type=_FILE, required=True, metavar="PEM", help="The public key.")
def verify(file: Path, pubkey: Path) -> None:
    """Check that a report is unchanged since the owner of the key signed it; exit code 1 if not."""
    from gpuemu_flow.reports import signature  # noqa: PLC0415

    found = signature.verify(file, signature.load_public(pubkey))
    say(f"{file}: signed by {found.key}, sha256 {found.sha256}")


@report.command(short_help="Make a pair of keys for signing.")
@click.option(
    "-o", "--output", type=_FILE, default=DEFAULT_KEY, show_default=True, help="The private key."
)
def keygen(output: Path) -> None:
    """Write a private key that only its owner can read, and its public key as a .pub file."""
    from gpuemu_flow.reports import signature  # noqa: PLC0415

    public = signature.make_key(output)
    mark = signature.fingerprint(signature.load_public(public))
    say(f"private key {output}\npublic key {public}\nsha256 {mark}")
