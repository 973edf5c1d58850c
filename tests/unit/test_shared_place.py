"""The shared cache that is used, what may be sent there, and the names a stranger may ask for."""

from __future__ import annotations

import io
import shutil
import threading
from pathlib import Path

import pytest
from for_each import for_each

from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.keys import Discovered
from gpuemu_flow.store.remote_cache import (
    ACTION,
    Entry,
    EntryError,
    RemoteError,
    SharedCache,
    TooLargeError,
    Transport,
    decode,
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


@for_each(
    ("name", "value", "says"),
    [
        ("REMOTE", "ftp://secret/x", "it is no URL of a cache: "),
        ("REMOTE", "https://secret:0/x", "it is no URL of a cache: "),
        ("REMOTE", "https://host/a secret", "it is no URL of a cache: "),
        ("REMOTE", "https://host/secret\u200b", "it is no URL of a cache: "),
        ("REMOTE", "https://host:99999/x", "Port out of range 0-65535"),
        ("REMOTE", "https://user:secret@host/x", "it has a user or a query; "),
        ("REMOTE", "https://secret@host/x", "it has a user or a query; "),
        ("REMOTE", "https://host/x?secret", "it has a user or a query; "),
        ("REMOTE", "https://host/x#secret", "it has a user or a query; "),
        ("REMOTE", "file://secret/x", "a file's URL has three slashes "),
        ("REMOTE", "file:secret", "a file's URL has three slashes "),
        ("REMOTE", "https://", "it names no host"),
        ("MODE", "secret", "it is neither read nor write"),
        ("HEADER", "secret", "it is not NAME: VALUE"),
        ("HEADER", "a name: secret", "it is not NAME: VALUE"),
        ("HEADER", "n\u00e4me: secret", "it is not NAME: VALUE"),
        ("HEADER", "name: ", "it is not NAME: VALUE"),
        ("HEADER", "name: secret\r\nother: x", "it is not NAME: VALUE"),
        ("HEADER", "name: s\u00e9cret", "it holds letters beyond ASCII"),
        ("KEY", "secret of 15 by", "it has less than 16 bytes"),
        *(("TIMEOUT", time, "it is no number of seconds") for time in ("x", "nan", "0", "3601")),
    ],
)  # fmt: skip
def test_what_the_environment_says_wrongly(name: str, value: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        place_of(FAR, "read", {f"GPUEMU_CACHE_{name}": value})
    (problem,) = caught.value.problems
    assert problem.slug == "cache-remote-value"
    assert problem.message.startswith(f"GPUEMU_CACHE_{name} cannot be used: {says}")
    assert "secret" not in problem.message


def test_what_the_environment_may_say() -> None:
    said = {"HEADER": "X-Key:  a b ", "KEY": "a key of 16 byte", "TIMEOUT": "3600", "MODE": "read"}
    for url in ("http://host:1/x", "s3://b/x", "gs://b/x", "az://b/x", "file:///x", FAR):
        place = place_of("", "write", {"GPUEMU_CACHE_REMOTE": url})
        assert place is not None
        assert (place.url, place.mode, place.header, place.secret) == (url, "write", (), None)
        assert (place.problems, place.patience) == ((), 10.0)
        more = {f"GPUEMU_CACHE_{name}": value for name, value in said.items()}
        place = place_of("", "write", {"GPUEMU_CACHE_REMOTE": url, **more})
        assert place is not None
        assert (place.mode, place.header) == ("read", ("X-Key", "a b"))
        assert (place.secret, place.patience) == (b"a key of 16 byte", 3600.0)


def shared_cache(
    tmp_path: Path, *, writes: bool = True
) -> tuple[SharedCache, Transport, list[Problem]]:
    cache = WorkspaceCache(tmp_path / "cache")
    cache.create()
    told: list[Problem] = []
    folder = Transport(f"file://{tmp_path}/share", patience=10.0)
    found = SharedCache(
        folder, "here", cache.actions, cache.blobs, cache.files, told.append, threading.Event(),
        writes=writes,
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
    blocked.unlink()
    (tmp_path / "elsewhere").mkdir()
    blocked.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RemoteError, match="ac is a link"):
        share.put(ACTION, "ab" * 32, b"content")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@for_each(
    ("errors", "attempts", "says"),
    [
        ([OSError("a"), OSError("b")], 3, ""),
        ([OSError("a"), OSError("b"), OSError("c")], 3, "^c$"),
        ([PermissionError(13, "no")], 1, "^no$"),
        ([RemoteError("it")], 1, "^it$"),
        ([FileNotFoundError()], 1, "absent"),
    ],
)
def test_what_fails_is_tried_three_times(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    errors: list[Exception],
    attempts: int,
    says: str,
) -> None:
    monkeypatch.setattr("gpuemu_flow.store.remote_cache.PAUSES", (0.001, 0.001))
    share = Transport(f"file://{tmp_path}", patience=10.0)
    share.put(ACTION, "ab" * 32, b"content")
    sink, left, tried = io.BytesIO(), [*errors], []

    def write(data: bytes) -> int:
        tried.append(data)
        if left:
            raise left.pop(0)
        threading.Event().wait(0.15)  # longer than the first glance at it
        return io.BytesIO.write(sink, data)

    sink.write = write  # type: ignore[method-assign, assignment]
    if says.startswith("^"):
        with pytest.raises(RemoteError, match=says) as caught:
            share.get(ACTION, "ab" * 32, sink, 100)
        assert caught.value.refused == isinstance(errors[0], PermissionError)
    else:
        assert share.get(ACTION, "ab" * 32, sink, 100) is not bool(says)
    assert len(tried) == attempts


def test_a_share_that_takes_nothing_is_left_in_peace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def refuse(*_: object) -> None:
        tried.append(1)
        raise RemoteError("the disk is full")

    monkeypatch.setattr(Transport, "put", refuse)
    cache, _, told = shared_cache(tmp_path)
    for number in range(200):
        cache.store([f"{number:064}"], {f"{number:064}": 1}, ())
    cache.finish()
    assert len(tried) < 50
    (problem,) = told
    assert problem.message.endswith("gets no more results: the disk is full")


def test_who_only_reads_stores_nothing(tmp_path: Path) -> None:
    cache, _, told = shared_cache(tmp_path, writes=False)
    assert not cache.writes
    cache.store(["ab" * 32], {"ab" * 32: 1}, [cache._blobs.write(b"one")])
    cache.store_set("cd" * 32, Discovered(files=frozenset("a")), ())
    cache.finish()
    assert (told, (tmp_path / "share").exists()) == ([], False)


def test_another_machine_gets_what_was_stored_if_it_is_whole(tmp_path: Path) -> None:
    records = {"ab" * 32: {"verdict": "passed"}, "cd" * 32: [1.5]}
    keys = [*records, "ef" * 32]
    first, _, told = shared_cache(tmp_path)
    blobs = [first._blobs.write(text) for text in (b"one", b"two")]
    first.store(keys, records, blobs)
    first.store(["00" * 32], {"00" * 32: 1}, ["11" * 32])  # a blob that nobody has
    first.finish()
    (tmp_path / "share" / "cas" / blobs[1]).write_bytes(b"other")
    shutil.rmtree(tmp_path / "cache")
    other, _, said = shared_cache(tmp_path)
    assert not other.promises(blobs[0])
    assert other.fetch(keys) is False, "one of them has no result"
    assert {key: other._actions.get(key) for key in keys} == {**records, "ef" * 32: None}
    assert other.fetch(["00" * 32]) is False
    assert other._actions.get("00" * 32) is None
    assert [other.promises(blob) for blob in (*blobs, "11" * 32)] == [True, True, False]
    other.fetch_blobs(["", *blobs, "11" * 32])
    assert [other._blobs.read(blob) for blob in (*blobs, "11" * 32)] == [b"one", None, None]
    assert [problem.slug for problem in said] == ["cache-remote-damaged"]
    assert list((tmp_path / "cache" / "staging").iterdir()) == told == []
    other.store(keys[:1], {keys[0]: 2}, ())
    other.finish()
    assert shared_cache(tmp_path)[0].fetch(keys[:1]) is True


def test_an_object_is_as_large_as_its_reader_allows(tmp_path: Path) -> None:
    folder = Transport(f"file://{tmp_path}/share", patience=10.0)
    folder.put(ACTION, "ef" * 32, b"content")
    assert folder.get(ACTION, "ef" * 32, io.BytesIO(), 7)
    with pytest.raises(TooLargeError):
        folder.get(ACTION, "ef" * 32, io.BytesIO(), 6)
    assert folder.has(ACTION, "ef" * 32) is True
    for absent in (folder.has(ACTION, "00" * 32), folder.get(ACTION, "00" * 32, io.BytesIO(), 6)):
        assert not absent


def test_an_entry_is_believed_as_it_was_signed() -> None:
    entry = Entry({"ab" * 32: {"a": [1, float("inf")]}}, {"cd" * 32: 7})
    for secret, key, says in (
        (None, None, ""), (b"one", b"one", ""), (b"one", None, ""),
        (None, b"one", "it has no signature"), (b"one", b"two", "it has another key's signature"),
    ):  # fmt: skip
        data = encode("name", entry, secret)
        if not says:
            assert decode("name", data, key) == entry
        else:
            with pytest.raises(EntryError, match=says) as caught:
                decode("name", data, key)
            assert caught.value.forged
    signed = encode("name", entry, b"one")
    with pytest.raises(EntryError, match="another key's"):
        decode("other", signed, b"one")
    for damaged in (b"", b"x" + signed, signed[:60], signed[:-1], signed + b"x"):
        with pytest.raises(EntryError, match=r"not an entry|not that of an entry") as caught:
            decode("name", damaged, None)
        assert not caught.value.forged


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
