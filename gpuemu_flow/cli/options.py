"""Options that several commands share, and how all print: so that CI services execute nothing."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from gpuemu_flow.config.model import Overrides
from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.model.plain_text import inert, printable
from gpuemu_flow.model.types import DTYPES, canonical_dtype

if TYPE_CHECKING:
    from gpuemu_flow.build.graph import Shard
    from gpuemu_flow.build.workspace import Workspace
    from gpuemu_flow.services.cluster.dask_cluster import DaskCluster


F = TypeVar("F", bound=Callable[..., object])

SEED = click.IntRange(0, (1 << 64) - 1)
RANDOM = "random"


class AliasedChoice(click.Choice[str]):
    """A choice among names, each of which may have aliases."""

    def __init__(self, names: Sequence[str], aliases: Mapping[str, str]) -> None:
        super().__init__(names)
        self._aliases = aliases

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(super().convert(self._aliases.get(value.lower(), value.lower()), param, ctx))


def seed_or_random(value: str) -> int | str:
    """Parse a master seed; return `RANDOM` for a random seed."""
    if value.strip().lower() == RANDOM:
        return RANDOM
    if value.isascii() and value.isdigit() and int(value[:21]) < 1 << 64:
        return int(value)
    raise click.BadParameter(f"{value!r} is neither {RANDOM!r} nor a number from 0 to 2**64 - 1")


def seed_overrides(
    seed: int | str | None,
    ci: str,
    profile: str = "",
    settings: tuple[str, ...] = (),
) -> Overrides:
    """Convert the options of a check to overrides of the workspace's settings. All parameters
    except `seed` become the attributes of `Overrides` with the same names."""
    drawn = isinstance(seed, str)
    own = None if isinstance(seed, str) else seed
    return Overrides(
        seed=own,
        draw_seed=drawn,
        ci=ci,
        profile=profile,
        settings=settings,
    )


def parse_shard(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> Shard | None:
    """Parse a shard such as ``2/5``, the second of five."""
    if value is None:
        return None
    from gpuemu_flow.build.graph import MAX_SHARDS, Shard  # noqa: PLC0415

    index, _, count = value.partition("/")
    digits = all(part.isascii() and part.isdigit() and len(part) < 7 for part in (index, count))
    if not digits:
        raise click.BadParameter(f"{value!r} is no shard such as 2/5, the second of five")
    if not 1 <= int(count) <= MAX_SHARDS:
        raise click.BadParameter(f"{value!r}: there are 1 to {MAX_SHARDS} shards")
    if not 1 <= int(index) <= int(count):
        raise click.BadParameter(f"{value!r}: the first number is one from 1 to {int(count)}")
    return Shard(int(index), int(count))


def _together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Combine several decorators, each of which adds an option to a command, into one decorator."""

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


part_options = _together(
    click.option(
        "--since",
        metavar="GITREF",
        default="",
        help="Only what changed since the working tree left this commit.",
    ),
    click.option(
        "--shard",
        metavar="I/N",
        callback=parse_shard,
        help="Only the ops of part I of N; every machine splits them in the same way.",
    ),
)
"""Add ``--since`` and ``--shard``, which leave parts of the workspace out."""

config_options = _together(
    click.option(
        "--profile",
        metavar="NAME",
        default="",
        help="Put the keys of [profiles.NAME] over the configuration.",
    ),
    click.option(
        "--config",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a key, as validation.cases=100; may be repeated.",
    ),
)
"""Add ``--profile`` and ``--config``, which change the configuration for one command."""


def parse_resources(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, float]:
    """Parse amounts of a worker's resources, such as ``GPU=1``."""
    found = {}
    for value in values:
        name, _, amount = value.partition("=")
        try:
            found[name] = float(amount)
        except ValueError:
            found[name] = 0.0
        if not name or not 0 < found[name] < float("inf"):
            raise click.BadParameter(f"{value!r} is no amount of a resource such as GPU=1")
    return found


class ExecutorOptions(Struct, frozen=True):
    """Options that select who executes the work: this process, or workers of dask. Raises
    click.UsageError: Options of dask are given without ``--executor dask``."""

    name: str
    scheduler: str
    resources: dict[str, float]

    def __post_init__(self) -> None:
        if self.name == "local" and (self.scheduler or self.resources):
            raise click.UsageError("--scheduler and --resource need --executor dask")

    def open_cluster(
        self, jobs: int, *, force: bool = False
    ) -> AbstractContextManager[DaskCluster | None]:
        """Open the cluster that the options name, if any."""
        if self.name == "local":
            return nullcontext()
        from gpuemu_flow.services.cluster.dask_cluster import open_cluster  # noqa: PLC0415 - few use one

        jobs = jobs or os.cpu_count() or 1
        return open_cluster(self.scheduler, jobs=jobs, resources=self.resources, force=force)


def executor_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--executor``, ``--scheduler`` and ``--resource`` as one `ExecutorOptions`."""

    @functools.wraps(function)
    def command(
        *, executor: str, scheduler: str, resources: dict[str, float], **others: object
    ) -> None:
        function(executor=ExecutorOptions(executor, scheduler, resources), **others)

    return _EXECUTOR_OPTIONS(command)


_EXECUTOR_OPTIONS = _together(
    click.option(
        "--executor",
        type=click.Choice(["local", "dask"]),
        default="local",
        show_default=True,
        help="Do the work here, or on workers of dask.distributed.",
    ),
    click.option(
        "--scheduler",
        metavar="URL",
        default="",
        help="Dask's scheduler, as tcp://host:8786; without it, workers are started here.",
    ),
    click.option(
        "--resource",
        "resources",
        multiple=True,
        metavar="NAME=AMOUNT",
        callback=parse_resources,
        help="A resource of dask's workers that each task needs, as GPU=1; may be repeated.",
    ),
)


SEED_OR_RANDOM = click.option(
    "--seed",
    type=seed_or_random,
    metavar="N|random",
    help="Master seed in place of the configuration's; random: drawn for this run, and printed.",
)
NO_CONFIRM = click.option(
    "--no-confirm",
    "confirm",
    flag_value=False,
    default=True,
    help="Run no new cases to confirm the causes of failures.",
)
TRIGGER_NAMES = ("code", "params", "input", "env")


class _Format(click.Choice[str]):
    """A format of standard output; one of files is asked for elsewhere."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in ("junit", "sarif", "html", "markdown") and value not in self.choices:
            self.fail(
                f"{value!r} is a format of files; run first, then `gpuemu-flow report --format "
                f"{value}`, or do both: `gpuemu-flow ci -o FILE`",
                param, ctx,
            )  # fmt: skip
        return super().convert(value, param, ctx)


def format_option(*formats: str) -> Callable[[F], F]:
    """Make the option ``--format``; the first of `formats` is the default."""
    return click.option(
        "--format",
        "output_format",
        type=_Format(formats),
        default=formats[0],
        show_default=True,
        help="Format of standard output.",
    )


def canonical_dtypes(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return canonical dtype names; raise click's usage error for one that does not exist."""
    found = []
    for name in names:
        canonical = canonical_dtype(name)
        if canonical is None:
            raise UsageError(
                Problem("unknown-dtype", f"no dtype {name!r}", did_you_mean(name, list(DTYPES)))
            )
        found.append(canonical)
    return tuple(found)


def parse_triggers(text: str | None) -> tuple[str, ...]:
    """Parse the value of ``--rerun-triggers``, which is a list of names joined by commas. Raises
    UsageError: ``unknown-trigger``."""
    if text is None:
        return TRIGGER_NAMES
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    for word in words:
        if word not in TRIGGER_NAMES:
            raise UsageError(
                Problem(
                    "unknown-trigger",
                    f"no rerun trigger {word!r}",
                    did_you_mean(word, list(TRIGGER_NAMES)),
                )
            )
    return words


def split_words(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word.strip() for value in values for word in value.split(",") if word.strip())


# Options by which the user grants rights that a workspace's configuration cannot grant.


def add_grants(command: click.Command) -> None:
    """Add ``--trust`` and ``--allow-outside`` to a command that runs code of the workspace."""
    command.params += [
        click.Option([flag], is_flag=True, expose_value=False, callback=setting, help=words)
        for flag, setting, words in _GRANTS
    ]


class _Setting:
    """A flag that sets an environment variable of this process and its children."""

    def __init__(self, variable: str, value: str) -> None:
        self._variable = variable
        self._value = value

    def __call__(self, _context: click.Context, _option: click.Parameter, given: bool) -> bool:
        if given:
            os.environ[self._variable] = self._value
        return given


_GRANTS = (
    (
        "--trust",
        _Setting("GPUEMU_TRUST", "remember"),
        "Run this workspace's code although other users own files of it; remembered.",
    ),
    (
        "--allow-outside",
        _Setting("GPUEMU_ALLOW_OUTSIDE", "1"),
        "Allow paths outside the workspace, if [project] allow_outside requests it.",
    ),
)


VARIABLE = "_GPUEMU_FLOW_COMPLETE"
"""Set by a shell that completes a command line; click derives it from the program's name."""
_ESCAPE = "\x1b"


def telling_damage(workspace: Workspace) -> Workspace:
    """Let a command that runs nothing end with the damaged files of the cache that it set aside."""

    def tell() -> None:
        for problem in workspace.cache.problems:
            if problem.slug == "cache-damaged":
                say(printable(str(problem)), err=True)

    click.get_current_context().call_on_close(tell)
    return workspace


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text, on standard error if `err`; with `nl`, add a newline."""
    shown = inert(text)
    line = f"{shown}\n" if nl else shown
    stream = sys.stderr if err else sys.stdout
    if str(stream.encoding).lower() == "utf-8" and _ESCAPE not in shown:
        stream.write(line)
        stream.flush()
        return
    # click knows which streams support colours, and repairs those without an encoding.
    click.echo(shown, err=err, nl=nl)


def wants_color() -> bool:
    """Tell whether to print colours: on a terminal, unless plain text was requested."""
    refused = os.environ.get("NO_COLOR") or os.environ.get("GPUEMU_NO_COLOR")
    return sys.stdout.isatty() and not refused and os.environ.get("TERM") != "dumb"
