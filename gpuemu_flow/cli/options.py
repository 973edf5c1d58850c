"""Options that several commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from gpuemu_flow.cluster.dask_cluster import DaskCluster
    from gpuemu_flow.engine.overrides import Overrides
    from gpuemu_flow.engine.shards import Shard

F = TypeVar("F", bound=Callable[..., object])

SEED = click.IntRange(0, (1 << 64) - 1)
RANDOM = "random"


def seed_or_random(value: str) -> int | str:
    """Return a master seed, or `RANDOM` for one that is drawn."""
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
    words: tuple[str, ...] = (),
    given: frozenset[str] = frozenset(),
) -> Overrides:
    """Return the overrides that the options of a check ask for."""
    from gpuemu_flow.engine.overrides import Overrides  # noqa: PLC0415

    drawn = isinstance(seed, str)
    own = None if isinstance(seed, str) else seed
    return Overrides(
        seed=own,
        draw_seed=drawn,
        ci=ci,
        profile=profile,
        settings=settings,
        words=words,
        given=given,
    )


def parse_shard(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> Shard | None:
    """Parse one shard of several, such as ``2/5``."""
    if value is None:
        return None
    from gpuemu_flow.engine.shards import MAX_SHARDS, Shard  # noqa: PLC0415

    index, _, count = value.partition("/")
    digits = all(part.isascii() and part.isdigit() and len(part) < 7 for part in (index, count))
    if not digits or not 1 <= int(index) <= int(count) <= MAX_SHARDS:
        raise click.BadParameter(f"{value!r} is no shard such as 2/5, the second of five")
    return Shard(int(index), int(count))


def part_options(function: F) -> F:
    """Add ``--since`` and ``--shard``, which leave parts of the workspace out."""
    since = click.option(
        "--since",
        metavar="GITREF",
        default="",
        help="Only what changed since the working tree left this commit.",
    )
    shard = click.option(
        "--shard",
        metavar="I/N",
        callback=parse_shard,
        help="Only the ops of one of N shards, which every machine splits alike.",
    )
    return since(shard(function))


def config_options(function: F) -> F:
    """Add ``--profile`` and ``--config``, which change the configuration for one command."""
    profile = click.option(
        "--profile",
        metavar="NAME",
        default="",
        help="Put the keys of [profiles.NAME] over the configuration.",
    )
    settings = click.option(
        "--config",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a key, as validation.cases=100; may be repeated.",
    )
    return profile(settings(function))


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


def executor_options(function: F) -> F:
    """Add ``--executor``, ``--scheduler`` and ``--resource``: where the work is done."""
    executor = click.option(
        "--executor",
        type=click.Choice(["local", "dask"]),
        default="local",
        show_default=True,
        help="Do the work here, or on workers of dask.distributed.",
    )
    scheduler = click.option(
        "--scheduler",
        metavar="URL",
        default="",
        help="Of dask, as tcp://host:8786; without it, workers are started here.",
    )
    resources = click.option(
        "--resource",
        "resources",
        multiple=True,
        metavar="NAME=AMOUNT",
        callback=parse_resources,
        help="What a task needs of dask's workers, as GPU=1; may be repeated.",
    )
    return executor(scheduler(resources(function)))


def check_executor(
    executor: str, scheduler: str, resources: dict[str, float], *, forcing: bool = False
) -> bool:
    """Tell whether dask does the work; raise click's usage error for options without effect."""
    if executor == "dask" and forcing:
        raise click.UsageError("results of --executor dask come by a cache, which -B does not ask")
    if executor == "local" and (scheduler or resources):
        raise click.UsageError("--scheduler and --resource need --executor dask")
    return executor == "dask"


def cluster_of(
    wanted: bool, scheduler: str, resources: dict[str, float], jobs: int, *, force: bool = False
) -> AbstractContextManager[DaskCluster | None]:
    """Open the cluster that the options name, if any; see `open_cluster`."""
    if not wanted:
        return nullcontext()
    from gpuemu_flow.cluster.dask_cluster import open_cluster  # noqa: PLC0415 - few use one

    return open_cluster(scheduler, jobs=jobs, resources=resources, force=force)


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


def format_option(*formats: str) -> Callable[[F], F]:
    """Make the option ``--format``; the first of `formats` is the default."""
    return click.option(
        "--format",
        "output_format",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Format of standard output.",
    )


def canonical_dtypes(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return canonical dtype names; raise click's usage error for one that does not exist."""
    from gpuemu_flow.errors import Problem, UsageError, did_you_mean  # noqa: PLC0415
    from gpuemu_flow.types import DTYPES, canonical_dtype  # noqa: PLC0415

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
    """Parse the value of ``--rerun-triggers``."""
    from gpuemu_flow.errors import Problem, UsageError, did_you_mean  # noqa: PLC0415

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


def wants_color() -> bool:
    """Tell whether standard output is a terminal and no one asked for plain text."""
    refused = os.environ.get("NO_COLOR") or os.environ.get("GPUEMU_NO_COLOR")
    return sys.stdout.isatty() and not refused and os.environ.get("TERM") != "dumb"


def split_words(values: tuple[str, ...]) -> tuple[str, ...]:
    """Split the words of options that may be repeated and may hold commas."""
    return tuple(word.strip() for value in values for word in value.split(",") if word.strip())
