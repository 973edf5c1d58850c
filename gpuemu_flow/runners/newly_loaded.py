"""Find the modules that were loaded after an earlier moment, without touching the others.

Copying ``sys.modules`` changes the reference count of every name in it, and thus writes to the
memory of all these names. A forked process could then no longer share that memory with its fork
server.
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
        """Return the names of modules added after this moment; all names if any were removed."""
        added = max(0, len(sys.modules) - self.count)
        newest = _newest(added + 1)
        return newest[:-1] if newest and newest[-1] == self.last else list(sys.modules)


def _newest(count: int) -> list[str]:
    """Return the names of the `count` modules that were added last, newest first."""
    try:
        return list(islice(reversed(sys.modules), count))
    except RuntimeError:  # another thread has just imported something
        return list(sys.modules)[: -count - 1 : -1]
