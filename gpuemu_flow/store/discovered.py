"""Store and compare the inputs that programs were seen to use, and make keys from them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Protocol, TypeVar

from gpuemu_flow.let_through import ANY, is_general, is_named
from gpuemu_flow.observed import ConfiguredEnv, Observation
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.types import Json

if TYPE_CHECKING:
    from gpuemu_flow.store.cache import JsonStore

T = TypeVar("T")
VERSION = 1
ALL_NAMED = "**"
"""At the end of a name that a configuration lets through, with all that begin so."""
MAX_SETS = 8
"""Sets of inputs that are kept per program: each branch that is switched back to needs one."""


@dataclass(frozen=True)
class Discovered:
    """Names of everything that a program was seen to depend on, without its content.

    Paths below the workspace are relative to it, others absolute or below a prefix of the
    interpreter; see `inputs.discovery`.

    Attributes
    ----------
    files, links, missed, listed : frozenset of str
        Paths of files that were read, of links on the way to files, of files that were looked for
        and do not exist, and of folders that were listed, in this order.
    modules, sized : frozenset of str
        Paths of folders that were listed for the modules in them, and of folders that were listed
        with the sizes of their entries.
    looked : frozenset of str
        Paths that existed when a program asked for them.
    packages : frozenset of str
        ``SITE|NAME`` of distributions that files belong to.
    pythons : frozenset of str
        Folders of standard libraries.
    variables : frozenset of str
        Names of environment variables.
    untracked : frozenset of str
        Reasons why more may have been used than is named here.
    """

    files: frozenset[str] = frozenset()
    links: frozenset[str] = frozenset()
    missed: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    sized: frozenset[str] = frozenset()
    looked: frozenset[str] = frozenset()
    packages: frozenset[str] = frozenset()
    pythons: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    untracked: frozenset[str] = frozenset()

    def __or__(self, other: Discovered) -> Discovered:
        """Join two sets; return one of them unchanged if it includes the other."""
        if other.within(self):
            return self
        return Discovered(*(getattr(self, f.name) | getattr(other, f.name) for f in fields(self)))

    def within(self, other: Discovered) -> bool:
        """Tell whether `other` includes every name of this set."""
        return all(getattr(self, f.name) <= getattr(other, f.name) for f in fields(self))

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON; `from_json` is its inverse. Empty parts are left out."""
        return {
            f.name: sorted(getattr(self, f.name)) for f in fields(self) if getattr(self, f.name)
        }

    @classmethod
    def from_json(cls, data: Json) -> Discovered:
        """Rebuild from the result of `to_json`.

        Raises
        ------
        ValueError
            The data is no result of `to_json`.
        """
        if not isinstance(data, dict):
            raise ValueError("no set of inputs")
        known = {f.name for f in fields(cls)}
        for name, values in data.items():
            sound = isinstance(values, list) and all(isinstance(v, str) for v in values)
            if name not in known or not sound:
                raise ValueError(f"no set of inputs: {name}")
        return cls(**{name: frozenset(values) for name, values in data.items()})


def visible(name: str, names: Iterable[str]) -> bool:
    """Tell whether a program may see a variable, or all variables that match a pattern ``NAME*``.

    Parameters
    ----------
    names : iterable of str
        The variables that the configuration lets through.
    """
    if name.endswith(ALL_NAMED):
        return name[: -len(ANY)] in names
    return name.endswith(ANY) or is_general(name) or is_named(name, names)


class Lookup(Protocol):
    """A lookup of the present states of the inputs that a set names."""

    def discover(self, seen: Observation, given: ConfiguredEnv) -> Discovered:
        """Convert an observation to a set; `given` variables belong to the configuration."""

    def parts(self, names: Discovered) -> dict[str, str]:
        """Return the state of each input by a name such as ``file lib/table.npy``."""

    def moved(self, names: Discovered, since: int) -> list[str]:
        """Return the inputs that were written to since a time that `now` returned."""

    def now(self) -> int:
        """Return the file system's time in ns."""


class KnownInputs:
    """The sets of inputs that are known for one static key, newest first. Not thread-safe.

    A result's key joins the static key with the states of all inputs that were seen while it was
    computed. The result is found again whenever these inputs are in the same states.

    Parameters
    ----------
    actions : JsonStore
        The action cache.
    static : str
        Digest of all that is known before a program runs.
    lookup : Lookup

    Attributes
    ----------
    place : str
        Key of the sets in the action cache.
    """

    def __init__(self, actions: JsonStore, static: str, lookup: Lookup) -> None:
        self._actions = actions
        self._static = static
        self._lookup = lookup
        self.place = digest_json(["inputs", VERSION, static])
        self._sets: list[Discovered] | None = None

    def sets(self) -> list[Discovered]:
        """Return the known sets, newest first."""
        if self._sets is None:
            found = self._actions.get(self.place)
            try:
                self._sets = [Discovered.from_json(d) for d in found] if found else []
            except (TypeError, ValueError):
                self._sets = []
        return self._sets

    def candidates(self) -> list[tuple[Discovered, str]]:
        """Return each known set with the key of results that are valid for its present inputs."""
        return [(names, self.key(names)) for names in self.sets()]

    def key(self, names: Discovered) -> str:
        """Return the key of results computed from the present state of these inputs."""
        return digest_json([self._static, self._lookup.parts(names)])

    def add(self, names: Discovered) -> str:
        """Store a set as the newest one, and return its key for the present state of its inputs."""
        known = self.sets()
        if not known or known[0] != names:
            self._sets = [names, *(k for k in known if k != names)][:MAX_SETS]
            self._actions.put(self.place, [k.to_json() for k in self._sets])
        return self.key(names)


class SeenInputs:
    """The inputs of running programs, and the keys of their results. Thread-safe.

    Parameters
    ----------
    actions : JsonStore
        The action cache.
    static : str
        Digest of all that is known before a program runs.
    lookup : Lookup
    start : Discovered
        Inputs that belong to the set from the start.
    force : bool
        True: no earlier result is found.

    Attributes
    ----------
    used : Discovered
        Everything that the found or computed results depend on.
    """

    def __init__(
        self,
        actions: JsonStore,
        static: str,
        lookup: Lookup,
        start: Discovered | None = None,
        *,
        force: bool = False,
    ) -> None:
        self._lookup = lookup
        self._known = KnownInputs(actions, static, lookup)
        self._names = start or Discovered()
        self._begun = lookup.now()
        self._earlier = [] if force else self._known.candidates()
        self._last: dict[str, Observation] = {}
        self._lock = threading.Lock()
        self._joined: Discovered | None = None
        self.used = Discovered()

    def find(self, get: Callable[[str], T | None]) -> T | None:
        """Return the first result that `get` finds under a key that is valid now."""
        for names, shared in self._earlier:
            found = get(shared)
            if found is not None:
                self.join(names)
                return found
        return None

    @property
    def place(self) -> str:
        """Return the key under which the action cache holds the sets."""
        return self._known.place

    def key_of(self, names: Discovered) -> str:
        """Return the key of results that depend on the present state of these inputs."""
        return self._known.key(names)

    @property
    def names(self) -> Discovered:
        """Return the inputs that the keys of new results contain."""
        return self._names

    def moved(self) -> bool:
        """Tell whether an input of the results was written to since this object was made."""
        with self._lock:
            return bool(self._lookup.moved(self._names, self._begun))

    def add(self, names: Discovered) -> None:
        """Add the inputs of results that came from elsewhere, and keep them as a known set."""
        self.join(names)
        with self._lock:
            self._known.add(names)

    def learn(self, who: str, seen: Observation, given: ConfiguredEnv) -> None:
        """Add the inputs that a program was seen to use so far; known inputs change nothing."""
        with self._lock:
            if self._last.get(who) is seen:
                return
            self._last[who] = seen
            names = self._lookup.discover(seen, given)
            self._names |= names
            self.used |= names

    def join(self, names: Discovered) -> None:
        """Add the inputs of an earlier result that new results depend on."""
        if names is self._joined:
            return  # as for nearly every case; sets only grow
        if not names.within(self.used) or not names.within(self._names):
            with self._lock:
                self._names |= names
                self.used |= names
        self._joined = names

    def key(self) -> str | None:
        """Return the key of results computed until now; None if an input changed meanwhile.

        An input counts as changed if it was written to since this object was made.
        """
        with self._lock:
            if self._lookup.moved(self._names, self._begun):
                return None
            return self._known.add(self._names)
