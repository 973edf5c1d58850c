"""A shared cache that is down, lies, or holds what somebody else put there: the same verdicts."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
from pathlib import Path

import pytest
from cache_server import FAULTS, requests, served
from mini_workspace import Mini
from shared_workspace import clone, make_original, programs, results, slugs
from stored_snapshot import results as stored_results
from whole import sample

from gpuemu_flow.store.remote_cache import Entry, EntryError, decode, encode

SAID = {
    "stalls": "cache-remote-unreachable",
    "drips": "cache-remote-unreachable",
    "500": "cache-remote-unreachable",
    "429": "cache-remote-unreachable",
    "redirects": "cache-remote-unreachable",
    "garbage": "cache-remote-unreachable",
    "closes": "cache-remote-unreachable",
    "truncates": "cache-remote-unreachable",
    "encodes": "",
    "403": "cache-remote-refused",
    "lies": "cache-remote-damaged",
    "swaps": "",
    "endless": "cache-remote-damaged",
    "bomb": "cache-remote-damaged",
    "loses": "",
    "429-twice": "",
    "500-puts": "",
    "403-puts": "",
}
assert set(SAID) == set(FAULTS)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mini, Path, str]:
    """Make an original, a cache that it filled, and the text of its results."""
    folder = tmp_path_factory.mktemp("warm")
    share = folder / "share"
    share.mkdir()
    original = make_original(folder / "original", f"file://{share}")
    return original, share, results(original.run())


@pytest.mark.parametrize("fault", sample([*FAULTS], 2))
def test_the_verdicts_are_the_same(
    warm: tuple[Mini, Path, str], tmp_path: Path, fault: str
) -> None:
    original, full, expected = warm
    share = tmp_path / "share"
    shutil.copytree(full, share)
    with served(share, fault) as url:
        other = clone(original, tmp_path / "clone", GPUEMU_CACHE_REMOTE=url)
        other.env |= {"GPUEMU_CACHE_MODE": "write", "GPUEMU_CACHE_TIMEOUT": "0.5"}
        report = other.run()
    said, report["problems"] = report["problems"], []
    assert results(report) == expected
    assert stored_results(other) == stored_results(original)
    assert [each["slug"] for each in said] == ([SAID[fault]] if SAID[fault] else [])
    assert all(each["warning"] and url in each["message"] for each in said)


@pytest.mark.parametrize("fault", ["500-puts", "403-puts", "429-twice", "stalls"])
def test_storing_in_a_cache_that_is_ill(tmp_path: Path, fault: str) -> None:
    share = tmp_path / "share"
    with served(share, fault) as url:
        original = make_original(tmp_path / "original", url, GPUEMU_CACHE_TIMEOUT="0.5")
        report = original.run()
    assert report["results"][0]["verdict"] == "passed"
    expected = {
        "500-puts": ["cache-remote-unreachable"],
        "403-puts": ["cache-remote-refused"],
        "429-twice": [],
        "stalls": ["cache-remote-unreachable"],
    }
    assert slugs(report) == expected[fault]
    if fault == "429-twice":
        with served(share) as url:
            assert _is_whole(original, url, tmp_path)


def _is_whole(original: Mini, url: str, folder: Path) -> bool:
    programs(original)
    other = clone(original, folder / "clone", GPUEMU_CACHE_REMOTE=url)
    other.run()
    return programs(other) == []


def test_no_entry_is_stored_before_its_blobs(tmp_path: Path) -> None:
    """Whatever the moment at which a client dies, an entry names nothing that is not there."""
    share = tmp_path / "share"
    with served(share) as url:
        make_original(tmp_path / "original", url).run()
    seen: set[str] = set()
    for method, path, _ in requests(share):
        kind, key = path.strip("/").split("/")
        if method == "PUT" and kind == "cas":
            seen.add(key)
        elif method == "PUT":
            entry = decode(key, (share / "ac" / key).read_bytes(), None)
            assert set(entry.blobs) <= seen


def test_a_port_where_nobody_listens(warm: tuple[Mini, Path, str], tmp_path: Path) -> None:
    original, _, expected = warm
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    other = clone(original, tmp_path / "clone", GPUEMU_CACHE_REMOTE=f"http://127.0.0.1:{port}")
    report = other.run()
    assert slugs(report) == ["cache-remote-unreachable"]
    report["problems"] = []
    assert results(report) == expected


def test_ctrl_c_while_the_server_stalls(tmp_path: Path) -> None:
    share = tmp_path / "share"
    with served(share, "stalls") as url:
        original = make_original(tmp_path / "original", url, GPUEMU_CACHE_TIMEOUT="3600")
        process = original.popen("run")
        while not requests(share):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        process.communicate()


def _hostile(share: Path, how: str) -> None:
    """Put something else in the place of each object."""
    rng = random.Random(1)
    for path in sorted(share.glob("*/*")):
        data = path.read_bytes()
        path.unlink()
        if how == "links":
            path.symlink_to("/dev/zero")
        elif how == "pipes":
            os.mkfifo(path)
        elif how == "folders":
            path.mkdir()
        elif how == "sparse":
            with path.open("wb") as file:
                file.truncate(1 << 40)
        elif how == "empty":
            path.write_bytes(b"")
        elif how == "halves":
            path.write_bytes(data[: len(data) // 2])
        elif how == "flips":
            place = rng.randrange(len(data))
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        elif how == "noise":
            path.write_bytes(rng.randbytes(len(data)))
        elif how == "longer":
            path.write_bytes(data + b"\x2a\x05hello")


@pytest.mark.parametrize(
    "how",
    ["links", "pipes", "folders", "sparse", "empty", "halves", "flips", "noise", "longer"],
)
def test_a_share_that_anybody_can_write_to(
    warm: tuple[Mini, Path, str], tmp_path: Path, how: str
) -> None:
    original, full, expected = warm
    share = tmp_path / "share"
    shutil.copytree(full, share)
    _hostile(share, how)
    other = clone(original, tmp_path / "clone", GPUEMU_CACHE_REMOTE=f"file://{share}")
    other.env["GPUEMU_CACHE_MODE"] = "read"
    report = other.run()
    report["problems"] = []
    assert results(report) == expected


def test_folders_of_a_share_that_are_links(warm: tuple[Mini, Path, str], tmp_path: Path) -> None:
    original, _, _ = warm
    share, elsewhere = tmp_path / "share", tmp_path / "elsewhere"
    share.mkdir()
    elsewhere.mkdir()
    for kind in ("ac", "cas"):
        (share / kind).symlink_to(elsewhere)
    other = clone(original, tmp_path / "clone", GPUEMU_CACHE_REMOTE=f"file://{share}")
    assert slugs(other.run()) == ["cache-remote-unreachable"]
    assert not list(elsewhere.iterdir())


WRONG = (None, 0, -1, 10**400, "", "x" * 100, [], {}, [None], {"a": None}, True, [[[[1]]]], "NaN")


@pytest.mark.ci
def test_entries_of_a_stranger_whose_values_are_wrong(
    warm: tuple[Mini, Path, str], tmp_path: Path
) -> None:
    """Any value of any record may be anything: it is used as nothing, or as the run itself."""
    original, full, _ = warm
    rng = random.Random(7)
    for turn in range(6):
        share = tmp_path / f"share{turn}"
        shutil.copytree(full, share)
        for path in sorted((share / "ac").iterdir()):
            entry = decode(path.name, path.read_bytes(), None)
            records = json.loads(json.dumps(dict(entry.records)))
            _spoil(records, rng)
            path.write_bytes(encode(path.name, Entry(records, entry.blobs), None))
        other = clone(original, tmp_path / f"clone{turn}", GPUEMU_CACHE_REMOTE=f"file://{share}")
        other.env["GPUEMU_CACHE_MODE"] = "read"
        done = other.command("run", "--format", "json", code=None)
        assert done.returncode in (0, 1, 4), done.stderr
        report = json.loads(done.stdout)
        assert "task-broke" not in slugs(report), report["problems"]


def _spoil(records: dict[str, object], rng: random.Random) -> None:
    """Replace one value somewhere below each record."""
    for key in records:
        place: list | dict = records  # type: ignore[type-arg]
        name: str | int = key
        while isinstance(place[name], (dict, list)) and place[name] and rng.random() < 0.8:
            place = place[name]
            name = rng.choice(sorted(place) if isinstance(place, dict) else range(len(place)))
        place[name] = rng.choice(WRONG)


def test_bytes_that_are_no_entry() -> None:
    """Each entry with one byte changed, cut or added is the same entry or none."""
    name = "ab" * 32
    entry = Entry({"cd" * 32: {"ok": True, "n": [1, 2.5, None]}}, {"ef" * 32: 300, "01" * 32: 0})
    secret = b"0123456789abcdef"
    data = encode(name, entry, secret)
    assert decode(name, data, secret) == entry
    assert decode(name, data, None) == entry
    for place in range(len(data)):
        for other in (data[:place], data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :]):
            try:
                found = decode(name, other, secret)
            except EntryError:
                continue
            assert found == entry, "the blobs beside the signed content are not read"
    with pytest.raises(EntryError):
        decode("00" * 32, data, secret)
