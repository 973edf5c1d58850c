"""Find the modules that were loaded since an earlier moment, without touching all others.

To copy ``sys.modules`` is to write to the memory of every name in it, since reference counts
change. A forked process could then no longer share this memory with its fork server.
"""

from __future__ import annotations

import sys
from itertools import islice

from gpuemu_flow.quick_dataclass import dataclass


@dataclass(frozen=True)
class Moment:
    """A state of ``sys.modules``.

    Attributes
    ----------
    count : int
        Number of loaded modules.
    last : str
        Name of the module that was added last.
    """

    count: int
    last: str

    @classmethod
    def now(cls) -> Moment:
        """Return the present state of ``sys.modules``."""
        return cls(len(sys.modules), next(iter(_newest(1)), ""))

    def since(self) -> list[str]:
        """Return the names of the modules that were added since; all names if some were removed."""
        added = max(0, len(sys.modules) - self.count)
        newest = _newest(added + 1)
        return newest[:-1] if newest and newest[-1] == self.last else list(sys.modules)


def _newest(count: int) -> list[str]:
    """Return the names of the modules that were added last, the newest first."""
    try:
        return list(islice(reversed(sys.modules), count))
    except RuntimeError:  # another thread has just imported something
        return list(sys.modules)[: -count - 1 : -1]
