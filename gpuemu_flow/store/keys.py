"""Action keys: the digests under which results are stored, and the inputs that they cover."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct, field, to_builtins

from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.let_through import ANY, is_general, is_named
from gpuemu_flow.model.types import ConfiguredEnv, Json, Observation

if TYPE_CHECKING:
    from gpuemu_flow.store.cache import JsonStore

TRIGGERS = ("code", "params", "input", "env")
OBSERVED = "observed"
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_SORTED = msgspec.json.Encoder(order="sorted")
_MAX_DEPTH = 6  # of a part whose differences are named one by one
_OF_CODE = ("file", "link", "missing", "folder")


class BuildReason(Struct, frozen=True):
    """One reason why a task would run."""

    part: str
    name: str = ""
    old: Json = None
    new: Json = None

    @property
    def what(self) -> str:
        """Return the name of the changed part, such as ``code.scripts/softmax.py``."""
        return f"{self.part}.{self.name}" if self.name else self.part

    @property
    def trigger(self) -> str:
        """Return the member of `TRIGGERS` to which the part belongs, else the part itself. Observed
        files belong to ``code``; observed variables and packages belong to ``env``."""
        if self.part != OBSERVED:
            return self.part
        return "code" if self.name.partition(" ")[0] in _OF_CODE else "env"

    def to_json(self) -> dict[str, Json]:
        return {"what": self.what, "old": self.old, "new": self.new}


def canonical(value: Json) -> bytes:
    """Encode a JSON value in a unique way: sorted keys, no blanks, ASCII. Raises ValueError: The
    value contains a NaN or an infinity."""
    return _CANONICAL.encode(value).encode()


def encoded(value: object) -> bytes:
    """Encode a record, or a result without NaN and infinities: equal ones give equal bytes. This
    takes a tenth of the time of `canonical`, which names in bytes that are no text still need."""
    try:
        return _SORTED.encode(value)
    except (TypeError, UnicodeEncodeError):
        return canonical(to_builtins(value, order="sorted"))


def digest_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digest_json(value: Json) -> str:
    return digest_bytes(canonical(value))


def digest_record(value: object) -> str:
    """Return the digest of a value that `encoded` takes."""
    return digest_bytes(encoded(value))


class KeyParts(Struct, frozen=True):
    """Everything that decides whether a task must run, grouped by kind."""

    stage: str
    code: Mapping[str, str] = field(default_factory=dict)
    params: Json = None
    input: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    observed: Mapping[str, str] = field(default_factory=dict)

    def key(self) -> str:
        return digest_json(to_builtins(self))


def changed_parts(old: Mapping[str, Json], new: Mapping[str, Json]) -> list[BuildReason]:
    found: list[BuildReason] = []
    for part in ("stage", *TRIGGERS, OBSERVED):
        _differences(part, (), old.get(part), new.get(part), found)
    return found


def _differences(
    part: str, names: tuple[str, ...], old: Json, new: Json, found: list[BuildReason]
) -> None:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict) and len(names) < _MAX_DEPTH:
        for key in sorted({*old, *new}):
            _differences(part, (*names, key), old.get(key), new.get(key), found)
    else:
        found.append(BuildReason(part, ".".join(names), old, new))


# The inputs that programs were seen to use, and keys from them.


VERSION = 2
ALL_NAMED = "**"
"""Suffix of a configured variable name that stands for all variables with this prefix."""
MAX_SETS = 8
"""Number of sets of inputs to keep per program. Each Git branch may need its own set."""


class Discovered(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Names, without content, of everything that a program was seen to use. Paths in the workspace
    are relative to it. Other paths are absolute, or relative to a prefix of the interpreter; see
    `build.discovery`."""

    files: frozenset[str] = frozenset()
    links: frozenset[str] = frozenset()
    missed: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    looked: frozenset[str] = frozenset()
    packages: frozenset[str] = frozenset()
    pythons: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    untracked: frozenset[str] = frozenset()

    def __or__(self, other: Discovered) -> Discovered:
        """Return the union; if this set includes the other, return this set itself."""
        if other.within(self):
            return self
        return Discovered(*(getattr(self, f) | getattr(other, f) for f in self.__struct_fields__))

    def within(self, other: Discovered) -> bool:
        return all(getattr(self, f) <= getattr(other, f) for f in self.__struct_fields__)

    @property
    def stored(self) -> dict[str, list[str]]:
        """Return the sets that are not empty, sorted, as they are stored."""
        found: dict[str, list[str]] = to_builtins(self, order="deterministic")
        return found


def visible(name: str, names: Iterable[str]) -> bool:
    """Tell whether a program may see an environment variable, or all variables of a pattern."""
    if name.endswith(ALL_NAMED):
        return name[: -len(ANY)] in names
    return name.endswith(ANY) or is_general(name) or is_named(name, names)


class Lookup(Protocol):
    """Looks up the present states of observed inputs."""

    def discover(self, seen: Observation, given: ConfiguredEnv) -> Discovered:
        """Return the names of the observed inputs. `given` is the configuration of environment
        variables. Variables that it sets are left out. Variables of the user that it passes on are
        included."""

    def parts(self, names: Discovered) -> dict[str, str]:
        """Return the state of each input, by a key such as ``file lib/table.npy``."""

    def moved(self, names: Discovered, since: int) -> list[str]:
        """Return the inputs that were written to after `since`, a time that `now` returned."""

    def now(self) -> int:
        """Return the time of the file system's clock in ns."""


class KnownInputs:
    """The known sets of observed inputs for one static key, newest first. Not thread-safe. A
    result's key combines the static key with the states of all inputs that were observed while the
    result was computed. The result is found again when these inputs have the same states."""

    def __init__(self, actions: JsonStore, static: str, lookup: Lookup) -> None:
        self._actions = actions
        self._static = static
        self._lookup = lookup
        self.place = digest_json(["inputs", VERSION, static])
        self._sets: list[Discovered] | None = None

    def sets(self) -> list[Discovered]:
        if self._sets is None:
            found = self._actions.get(self.place)
            try:
                self._sets = convert(found or [], list[Discovered])
            except ValueError:
                self._sets = []
        return self._sets

    def candidates(self) -> list[tuple[Discovered, str]]:
        """Return the known sets of inputs, newest first, each with a key. Results that depend on
        these inputs in their present states are stored under the key."""
        return [(names, self.key(names)) for names in self.sets()]

    def key(self, names: Discovered) -> str:
        """Return the key of results that depend on the inputs `names` in their present states."""
        return digest_json([self._static, self._lookup.parts(names)])

    def add(self, names: Discovered) -> str:
        """Store a set of inputs as the newest known set, and return its `key`."""
        known = self.sets()
        if not known or known[0] != names:
            self._sets = [names, *(k for k in known if k != names)][:MAX_SETS]
            self._actions.put(self.place, [k.stored for k in self._sets])
        return self.key(names)


class SeenInputs:
    """Collects the inputs of running programs, and makes keys for the results. Thread-safe."""

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
        # Known sets of inputs, newest first, each with the key of results on their present states.
        self.earlier = [] if force else self._known.candidates()
        self._last: dict[str, Observation] = {}
        self._lock = threading.Lock()
        self._joined: Discovered | None = None
        self.used = Discovered()

    @property
    def place(self) -> str:
        """Return the key under which the action cache stores the known sets."""
        return self._known.place

    def key_of(self, names: Discovered) -> str:
        """Return the key of results that depend on these inputs in their present states."""
        return self._known.key(names)

    @property
    def names(self) -> Discovered:
        return self._names

    def moved(self) -> bool:
        """Tell whether an input of the results was written to after this object was made."""
        with self._lock:
            return bool(self._lookup.moved(self._names, self._begun))

    def add(self, names: Discovered) -> None:
        """Add the inputs of results that come from elsewhere, and store them as a known set."""
        self.join(names)
        with self._lock:
            self._known.add(names)

    def learn(self, who: str, seen: Observation, given: ConfiguredEnv) -> None:
        """Add the inputs that a program was seen to use so far. `who` names the program; for
        `given`, see `Lookup.discover`. Does nothing if `seen` is the very object that the last call
        for this program passed."""
        with self._lock:
            if self._last.get(who) is seen:
                return
            self._last[who] = seen
            names = self._lookup.discover(seen, given)
            self._names |= names
            self.used |= names

    def join(self, names: Discovered) -> None:
        """Add the inputs of an earlier result, since new results depend on that result."""
        if names is self._joined:
            return  # as for nearly every case; sets only grow
        if not names.within(self.used):  # nor are those all in `_names`
            with self._lock:
                self._names |= names
                self.used |= names
        self._joined = names

    def key(self) -> str | None:
        """Return the key of the results computed so far; None if an input changed meanwhile. An
        input counts as changed if it was written to after this object was made. If none has
        changed, the inputs are also stored as the newest known set."""
        with self._lock:
            if self._lookup.moved(self._names, self._begun):
                return None
            return self._known.add(self._names)
