"""Changes that one command makes to the configuration: ``--profile`` and ``--config``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import tomli
from msgspec import Struct

from gpuemu_flow.config.check import check_table
from gpuemu_flow.config.positions import MAX_DEPTH, KeyPath
from gpuemu_flow.config.read import ConfigSource, definer, merged
from gpuemu_flow.config.report import Reporter, dotted, shortened
from gpuemu_flow.config.tables import Changeable
from gpuemu_flow.config.target_options import (
    CONFIG,
    Option,
    Target,
    TargetOptions,
    as_options,
    read_targets,
)
from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.model.types import Json

MAX_SETTING = 10_000
_KEY = re.compile(r"[A-Za-z0-9_-]{1,200}(\.[A-Za-z0-9_-]{1,200})*")
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class ConfigChanges(Struct, frozen=True):
    """Changes that one command makes to the configuration."""

    # Name of a table in ``[profiles]``; empty for none.
    profile: str = ""
    # Texts of the form ``key.of.a.table=value``; later ones take precedence.
    settings: tuple[str, ...] = ()
    # Words of the command line. If a word is a target, the target's options apply, too, with
    # the lowest priority of all changes.
    words: tuple[str, ...] = ()
    # Options that the command line sets, so that targets cannot set them.
    given: frozenset[str] = frozenset()


NO_CHANGES = ConfigChanges()


def target_tables(sources: Sequence[ConfigSource]) -> dict[str, Target]:
    """Return the targets of a configuration by name.

    The dict is empty if no target has options, since targets then do not affect the settings.
    """

    def place_of(path: KeyPath) -> str:
        out = definer(sources, path, sources[0]).out
        return f"{out.file}:{out.line(path)}"

    return read_targets(merged(sources).get("targets") or {}, place_of)


def layers(
    sources: Sequence[ConfigSource], changes: ConfigChanges, options: Mapping[str, Option]
) -> list[ConfigSource]:
    """Return the changes as configuration sources, from the highest priority to the lowest.

    Raises UsageError: ``unknown-profile``; ``bad-setting`` for a text that is not ``key=value``;
    for an unknown key or a wrong value, the same errors as in a configuration file.
    """
    found = []
    if changes.settings:
        found.append(_of_settings(sources[0], changes.settings))
    if changes.profile:
        found.append(_of_profile(sources, changes.profile))
    own = as_options(options)
    if own.config:
        found.append(_of_targets(sources[0], own, options))
    if own.profile and not changes.profile:
        found.append(_of_profile(sources, own.profile))
    return found


def _of_targets(
    project: ConfigSource, own: TargetOptions, options: Mapping[str, Option]
) -> ConfigSource:
    out = Reporter(project.out.file, project.out.positions)
    for key, option in options.items():
        path = tuple(key.split(".", 2))
        if path[0] == CONFIG:
            out.aliases[path[1:]] = ("targets", option.target, *path)
    return ConfigSource(
        project.path, out, tree={name: dict(own.config[name]) for name in own.config}
    )


def _of_profile(sources: Sequence[ConfigSource], name: str) -> ConfigSource:
    known = merged(sources).get("profiles") or {}
    if name not in known:
        message = f"there is no profile {shortened(name)!r}"
        hint = did_you_mean(name, list(known)) if known else f"write a table [profiles.{name}]"
        raise UsageError(Problem("unknown-profile", message, shortened(hint)))
    own = sources[0].out
    out = Reporter(own.file, own.positions)
    for section in known[name]:
        out.aliases[(section,)] = ("profiles", name, section)
    return ConfigSource(sources[0].path, out, tree=known[name])


def _of_settings(project: ConfigSource, settings: Sequence[str]) -> ConfigSource:
    raw: dict[str, Json] = {}
    for setting in settings:
        _put(raw, setting)
    out = Reporter("--config")
    tree = check_table(Changeable, raw, (), out)
    problems = out.collected(strict=True)
    if problems:
        raise UsageError(*problems)
    return ConfigSource(project.path, out, tree=tree)


def _put(raw: dict[str, Json], setting: str) -> None:
    """Store one setting, such as ``table.key=value``, in the tree of tables `raw`."""
    key, equals, text = (part.strip() for part in setting[:MAX_SETTING].partition("="))
    path = key.split(".")
    if not equals or not _KEY.fullmatch(key) or len(path) > MAX_DEPTH:
        raise _bad(setting, "is not of the form table.key=value")
    value = _value(setting, text)
    table = raw
    for place, part in enumerate(path[:-1]):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise _bad(setting, f"sets a key of {dotted(tuple(path[: place + 1]))}, a value")
    table[path[-1]] = value


def _value(setting: str, text: str) -> Json:
    """Read a value of TOML; a bare word is read as a string, since shells remove quotes."""
    if len(setting) > MAX_SETTING:
        raise _bad(setting, f"has more than {MAX_SETTING} characters")
    if _BARE.fullmatch(text) and text not in ("true", "false", "inf", "nan"):
        return text
    if "\n" in text or "\r" in text:
        raise _bad(setting, "holds a line break")
    try:
        found = tomli.loads(f"value = {text}")
    except (ValueError, RecursionError, OverflowError):
        raise _bad(setting, 'has no value of TOML: 4, 0.5, true, word, ["a", "b"]') from None
    return found["value"]


def _bad(setting: str, fault: str) -> UsageError:
    hint = "for instance --config validation.cases=100"
    return UsageError(Problem("bad-setting", f"--config {shortened(setting)!r} {fault}", hint))
