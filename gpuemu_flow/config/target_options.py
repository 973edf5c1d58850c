"""Apply a target's options to commands that name the target and do not set the options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.types import Json

if TYPE_CHECKING:
    from gpuemu_flow.config.positions import KeyPath

TASKS = "tasks"
CONFIG = "config"


class Option(Struct, frozen=True):
    """One option of a target."""

    target: str
    # The checked value.
    value: Json
    # ``FILE:LINE`` of the option's key.
    place: str


class Target(Struct, frozen=True):
    """The options of a target, and the targets inside it."""

    # The members that are targets.
    inner: tuple[str, ...]
    # Options by key; the key of an option in ``config`` is ``config.TABLE.KEY``.
    options: Mapping[str, Option]


class TargetOptions(Struct, frozen=True):
    """Options that a command gets from its targets; None or empty if they are not set."""

    jobs: int | None = None
    cases: int | None = None
    seed: int | None = None
    keep_going: bool | None = None
    until: tuple[str, ...] = ()
    forcerun: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    profile: str = ""
    # Values that override the configuration.
    config: Mapping[str, Mapping[str, Json]] = {}


def members_of(value: Json) -> list[str]:
    """Return the members of a target, given as a list of them or as a table with options."""
    members: list[str] = value.get(TASKS, []) if isinstance(value, dict) else value
    return members


def members_path(name: str, value: Json) -> KeyPath:
    """Return the key path of the list that contains a target's members."""
    return ("targets", name, TASKS) if isinstance(value, dict) else ("targets", name)


def read_targets(
    given: Mapping[str, Json], place_of: Callable[[KeyPath], str]
) -> dict[str, Target]:
    """Return the targets of a configuration by name.

    The dict is empty if no target is a table: only tables can have options.
    """
    if not any(isinstance(value, dict) for value in given.values()):
        return {}
    found = {}
    for name, value in given.items():
        options = {
            key: Option(name, setting, place_of(("targets", name, *path)))
            for key, path, setting in _settings(value if isinstance(value, dict) else {})
        }
        found[name] = Target(tuple(m for m in members_of(value) if m in given), options)
    return found


def _settings(table: Mapping[str, Json]) -> Iterator[tuple[str, KeyPath, Json]]:
    """Yield the name, the path and the value of each option of a target."""
    for key, value in table.items():
        if key == CONFIG:
            for section, settings in value.items():
                for name, setting in settings.items():
                    yield f"{CONFIG}.{section}.{name}", (CONFIG, section, name), setting
        elif key != TASKS:
            yield key, (key,), value


def chosen_options(
    targets: Mapping[str, Target], words: Iterable[str], given: Collection[str] = ()
) -> dict[str, Option]:
    """Return the options that apply to a command.

    A target also has the options of the targets inside it, but its own options take precedence.

    Raises UsageError: ``target-options-differ`` if two targets set a key to different values.
    """
    named = [word for word in words if word in targets]
    if not named:
        return {}
    found: dict[str, Option] = {}
    problems = []
    keys = {key for target in targets.values() for key in target.options}
    for key in sorted(keys.difference(given)):
        for option in _given_by(targets, named, key):
            first = found.setdefault(key, option)
            if first.value != option.value:
                problems.append(_contradiction(key, first, option))
                break
    if problems:
        raise UsageError(*problems)
    return found


def _given_by(targets: Mapping[str, Target], named: list[str], key: str) -> Iterator[Option]:
    """Yield the options for a key; a target's own option overrides those of targets inside it."""
    waiting, seen = list(reversed(named)), set(named)
    while waiting:
        target = targets[waiting.pop()]
        if key in target.options:
            yield target.options[key]
        else:
            below = [name for name in target.inner if name not in seen]
            seen.update(below)
            waiting.extend(reversed(below))


def _contradiction(key: str, first: Option, second: Option) -> Problem:
    message = (
        f"{first.target!r} and {second.target!r} contradict each other: {key} is "
        f"{first.value!r} in {first.place} and {second.value!r} in {second.place}"
    )
    hint = f"name them in commands of their own, or set {key} on the command line"
    return Problem("target-options-differ", message[:1000], hint)


def as_options(found: Mapping[str, Option]) -> TargetOptions:
    """Convert the result of `chosen_options` to `TargetOptions`."""
    plain: dict[str, Json] = {}
    config: dict[str, dict[str, Json]] = {}
    for key, option in found.items():
        if key.startswith(f"{CONFIG}."):
            _, section, name = key.split(".", 2)
            config.setdefault(section, {})[name] = option.value
        else:
            value = option.value
            plain[key] = tuple(value) if isinstance(value, list) else value
    return TargetOptions(**plain, config=config)
