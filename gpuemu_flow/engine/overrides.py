"""Changes that a command line makes to the configuration."""

from __future__ import annotations

from gpuemu_flow.quick_dataclass import dataclass


@dataclass(frozen=True)
class Overrides:
    """Changes that a command line makes to the configuration.

    Attributes
    ----------
    seed : int or None
        Master seed of all ops.
    draw_seed : bool
        It is drawn anew, whatever the configuration says.
    ci : str
        ``quick`` or ``thorough``: the cases are those that ``[ci]`` asks for, where it does.
    cases : int or None
        Cases of each op and dtype.
    """

    seed: int | None = None
    draw_seed: bool = False
    ci: str = ""
    cases: int | None = None
