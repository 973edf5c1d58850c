"""One of several processes that use one cache: ``cache_actor.py CACHE NAME FIRST ACTIONS``.

Each action stores a record, a blob or a set of records, or reads what this or another process
stored. Each line of its output acknowledges one action, after it; a wrong answer ends it.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from gpuemu_flow.model.types import Json
from gpuemu_flow.store.cache import WorkspaceCache

LARGE = 40_000  # bytes of a value that has a file of its own beside the database


def value_of(key: str) -> Json:
    """Return the value that every process stores under a key."""
    pad = "x" * (LARGE if key.endswith("7") else 20)
    return {"key": key, "pad": pad}


def blob_of(key: str) -> bytes:
    return f"blob of {key}\n".encode() * 50


def action(cache: WorkspaceCache, actor: str, number: int, rng: random.Random) -> str:
    """Do one action, and return what it acknowledges."""
    key, kind = f"{actor}:{number}", number % 5
    if actor == "replace":
        for store in (cache.state, cache.actions):
            store.put("large7", value_of("large7"))
        return "replaced"
    if kind == 0:
        cache.actions.put(key, value_of(key))
        return f"actions {key}"
    if kind == 1:
        cache.state.put_many([(f"{key}:{n}7", value_of(f"{key}:{n}7")) for n in range(3)])
        return f"many {key}"
    if kind == 2:
        return f"blob {cache.blobs.write(blob_of(key))} {key}"
    if kind == 3:
        cache.state.put("shared7", value_of("shared7"))
        return "state shared7"
    other = f"actor{rng.randrange(8)}:{rng.randrange(number + 1) // 5 * 5}"
    if cache.actions.get(other) not in (None, value_of(other)):
        raise SystemExit(f"wrong answer for {other}")
    if cache.state.get("shared7") != value_of("shared7"):  # this process stored it, too
        raise SystemExit("what all processes store is not there")
    return "read"


def check(cache: WorkspaceCache, acknowledged: str) -> None:
    """Fail unless what was acknowledged is there."""
    kind, *words = acknowledged.split()
    if kind in ("actions", "state"):
        store = cache.actions if kind == "actions" else cache.state
        assert store.get(words[0]) == value_of(words[0]), acknowledged
    elif kind == "many":
        for n in range(3):
            key = f"{words[0]}:{n}7"
            assert cache.state.get(key) == value_of(key), acknowledged
    elif kind == "blob":
        assert cache.blobs.read(words[0]) == blob_of(words[1]), acknowledged


def main() -> None:
    """Act, and acknowledge each action once it is done."""
    folder, actor, first, count = Path(sys.argv[1]), *sys.argv[2:5]
    cache = WorkspaceCache(folder)
    cache.create()
    rng = random.Random(f"{actor}{os.getpid()}")
    for number in range(int(first), int(count)):
        said = action(cache, actor, number, rng)
        os.write(1, f"{number} {said}\n".encode())
    assert not cache.problems, cache.problems


if __name__ == "__main__":
    main()
