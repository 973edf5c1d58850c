"""Options of an import, whatever the format."""

from __future__ import annotations

from pathlib import Path

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json

SEED = 42


@dataclass(frozen=True)
class Options:
    """Options of an import.

    Attributes
    ----------
    candidates : tuple of Path
        Further files or folders with candidates.
    small : bool
        True to scale sizes down.
    varied : bool
        True to try other sizes than those of the problem.
    cases : int
        Number of cases per op.
    into : Path
        Folder of the workspace.
    """

    candidates: tuple[Path, ...] = ()
    small: bool = False
    varied: bool = True
    cases: int = 12
    into: Path = Path()


def halved(value: Json, cap: int) -> Json:
    """Halve a size until it is at most `cap` (0: no cap); return other values unchanged."""
    while cap and type(value) is int and value > cap:
        value //= 2
    return value
