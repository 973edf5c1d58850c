"""Find the outputs that an op writes into its inputs instead of returning them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def with_changed_inputs(
    returned: Any, given: Mapping[str, Any], names: Sequence[str], changed: Sequence[str]
) -> Any:
    """Combine the outputs that an op returned with those that it wrote into its inputs. If a
    declared output has the name of an input that the op may change, and is not returned, its value
    is this input after the call. If the op returns nothing, its outputs are the inputs that it may
    change."""
    if not changed or any(name not in given for name in changed):
        return returned
    own = [name for name in names if name in changed]
    rest = [name for name in names if name not in changed]
    if returned is None:
        if own and not rest:
            return {name: given[name] for name in own}
        if max(1, len(names)) == len(changed):
            pairs = zip(names or changed, changed, strict=True)
            return {name: given[source] for name, source in pairs}
    left = _by_name(returned, rest) if own and rest else None
    if left is None:
        return returned
    return {name: left[name] if name in left else given[name] for name in names}


def _by_name(returned: Any, names: Sequence[str]) -> dict[str, Any] | None:
    """Map `names` to the members of a returned value; None if they do not fit together."""
    if isinstance(returned, Mapping):
        if len(returned) == len(names) == 1:
            return dict(zip(names, returned.values(), strict=True))
        return dict(returned) if set(returned) == set(names) else None
    if not isinstance(returned, (tuple, list)):
        return {names[0]: returned} if len(names) == 1 else None
    return dict(zip(names, returned, strict=True)) if len(returned) == len(names) else None
