"""Read YAML that somebody else wrote: plain data, of limited size and depth, without aliases."""

from __future__ import annotations

from typing import Any

from gpuemu_flow.errors import Problem, RunnerError
from gpuemu_flow.types import Json

LARGEST = 1 << 20
DEEPEST = 20
MOST_NODES = 50_000


class YamlError(Exception):
    """Raised for invalid or unsupported YAML; the message says why, in one line."""


def read_yaml(data: bytes) -> Json:
    """Parse YAML to plain data: mappings, lists, texts, numbers, booleans and None.

    Aliases are refused because a few lines of them can expand to gigabytes. Tags other than those
    of plain data are refused, too.

    Raises YamlError. Raises RunnerError: ``import-needs-yaml``.
    """
    try:
        import yaml  # noqa: PLC0415
    except ImportError:
        text = "task.yml is YAML, and PyYAML is not installed"
        hint = "python -m pip install 'gpuemu-flow[gpumode]'"
        raise RunnerError(Problem("import-needs-yaml", text, hint)) from None
    if len(data) > LARGEST:
        raise YamlError(f"it has more than {LARGEST} bytes")
    try:
        _look(yaml, yaml.parse(data, Loader=yaml.SafeLoader))
        found = yaml.load(data, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise YamlError(f"it is no YAML{where}") from None
    except (ValueError, OverflowError, RecursionError, MemoryError, TypeError, KeyError) as error:
        raise YamlError(f"it is no YAML that can be read: {type(error).__name__}") from None
    return _plain(found)


def _look(yaml: Any, events: Any) -> None:
    """Raise YamlError for text with aliases, or text that is too long or too deeply nested."""
    depth = 0
    for count, event in enumerate(events):
        if isinstance(event, yaml.events.AliasEvent):
            raise YamlError(f"it has an alias in line {event.start_mark.line + 1}")
        depth += isinstance(event, yaml.events.CollectionStartEvent)
        depth -= isinstance(event, yaml.events.CollectionEndEvent)
        if depth > DEEPEST or count > MOST_NODES:
            raise YamlError("it is too deep or too long")


def _plain(value: Any) -> Json:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if value is None or type(value) in (str, bool, int, float):
        return value
    return str(value)  # dates
