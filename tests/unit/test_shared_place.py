"""The shared cache that is used, what may be sent there, and the names a stranger may ask for."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest
from for_each import for_each

from gpuemu_flow.model.errors import Problem
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.keys import Discovered
from gpuemu_flow.store.remote_cache import (
    ACTION,
    Entry,
    RemoteError,
    SharedCache,
    Transport,
    encode,
    name_of,
    place_of,
)

HEADER = {"GPUEMU_CACHE_HEADER": "Authorization: x"}
FAR = "https://cache.example.org/x"


@for_each(
    ("remote", "environ", "mode", "is_sent"),
    [
        (FAR, HEADER, "read", False),
        (FAR, {**HEADER, "GPUEMU_CACHE_REMOTE": FAR}, "write", True),
        ("https://evil.example.org/x", {**HEADER, "GPUEMU_CACHE_REMOTE": FAR}, "write", True),
        (FAR, {"GPUEMU_CACHE_MODE": "write"}, "read", False),
        ("s3://bucket/x", {}, "read", False),
        ("file:///mnt/share", HEADER, "write", False),
        ("http://127.0.0.1:80/x", HEADER, "write", False),
        ("http://localhost/x", {}, "write", False),
        ("http://127.0.0.1.example.org/x", {}, "read", False),
        (FAR, {"GPUEMU_CACHE_REMOTE": FAR, "GPUEMU_CACHE_MODE": "read"}, "read", False),
    ],
)
def test_the_environment_grants(
    remote: str, environ: dict[str, str], mode: str, is_sent: bool
) -> None:
    place = place_of(remote, "write", environ)
    assert place is not None
    assert (place.mode, bool(place.header)) == (mode, is_sent)
    assert place.url == environ.get("GPUEMU_CACHE_REMOTE", remote)


def test_none_of_the_environment_stands_above_the_file() -> None:
    assert place_of(FAR, "write", {"GPUEMU_CACHE_REMOTE": "none"}) is None
    assert place_of("", "write", {}) is None


def shared_cache(tmp_path: Path) -> tuple[SharedCache, Transport, list[Problem]]:
    cache = WorkspaceCache(tmp_path / "cache")
    cache.create()
    told: list[Problem] = []
    folder = Transport(f"file://{tmp_path}/share", patience=10.0)
    found = SharedCache(
        folder, "here", cache.actions, cache.blobs, cache.files, told.append, threading.Event(),
        writes=True,
    )  # fmt: skip
    return found, folder, told


def test_a_stranger_asks_for_variables_that_no_program_sees(tmp_path: Path) -> None:
    """Else the key of the second question would tell a server of a secret that can be guessed."""
    cache, folder, _ = shared_cache(tmp_path)
    place = "ab" * 32
    sets = [
        Discovered(variables=frozenset({"AWS_SECRET"})),
        Discovered(variables=frozenset({"OMP_NUM_THREADS", "SCALE", "OMP_*"})),
        Discovered(variables=frozenset({"**"})),
        Discovered(variables=frozenset({"SCALE*"})),
        Discovered(files=frozenset({"a\0b"})),
        Discovered(files=frozenset({""})),
        Discovered(files=frozenset({"a" * 5000})),
    ]
    entry = Entry({place: [names.stored for names in sets]})
    name = name_of("inputs", place)
    folder.put(ACTION, name, encode(name, entry, None))
    assert cache.sets(place, ("SCALE",)) == [sets[1], sets[3]]


def test_sets_of_others_stay_when_one_is_added(tmp_path: Path) -> None:
    place = "cd" * 32
    first, second = (Discovered(files=frozenset({name})) for name in "ab")
    for names in (first, second, first):
        cache, _, told = shared_cache(tmp_path)
        cache.store_set(place, names, ())
        cache.finish()
        assert told == []
    cache, _, _ = shared_cache(tmp_path)
    assert cache.sets(place, ()) == [second, first]


def test_a_file_that_others_may_read_holds_what_was_put(tmp_path: Path) -> None:
    folder = Transport(f"file://{tmp_path}/share", patience=10.0)
    folder.put(ACTION, "ef" * 32, b"content")
    sink = io.BytesIO()
    assert folder.get(ACTION, "ef" * 32, sink, 100)
    assert sink.getvalue() == b"content"
    assert [path.name for path in (tmp_path / "share" / "ac").iterdir()] == ["ef" * 32]
    with pytest.raises(ValueError, match="no object"):
        folder.put(ACTION, "../../etc/passwd", b"")


def test_what_cannot_be_stored_leaves_nothing(tmp_path: Path) -> None:
    share = Transport(f"file://{tmp_path}/share", patience=10.0)
    with pytest.raises(RemoteError):
        share.put(ACTION, "ab" * 32, tmp_path / "a blob that is gone")
    blocked = tmp_path / "share" / "ac"
    blocked.parent.mkdir(exist_ok=True)
    blocked.write_text("no folder")
    with pytest.raises(RemoteError):
        share.put(ACTION, "ab" * 32, b"content")
    assert blocked.read_text() == "no folder"


def test_a_share_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    """As a mount does whose server is gone: no read of it returns, nor can it be interrupted."""
    (tmp_path / "ac").mkdir()
    path = tmp_path / "ac" / ("ab" * 32)
    path.write_bytes(b"content")
    share = Transport(f"file://{tmp_path}", patience=0.2)
    sink = io.BytesIO()

    def hang(_: bytes) -> int:
        threading.Event().wait()
        return 0

    sink.write = hang  # type: ignore[method-assign, assignment]
    with pytest.raises(RemoteError, match="longer than"):
        share.get(ACTION, "ab" * 32, sink, 100)
