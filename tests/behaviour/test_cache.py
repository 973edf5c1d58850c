"""``gpuemu-flow cache``: figures, cleaning, checks, and results pushed and pulled by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cache_server import requests, served
from mini_workspace import Mini
from shared_workspace import make_original


@pytest.fixture
def share(tmp_path: Path) -> Path:
    folder = tmp_path / "share"
    folder.mkdir()
    return folder


@pytest.fixture
def original(tmp_path: Path, share: Path) -> Mini:
    return make_original(tmp_path / "original", f"file://{share}")


def stats(workspace: Mini) -> dict[str, object]:
    return dict(json.loads(workspace.command("cache", "stats", "--format", "json").stdout))


def test_stats_count_what_is_there(original: Mini, share: Path) -> None:
    empty = stats(original)
    assert empty["answers"] == "yes"
    original.run()
    full = stats(original)
    files = {kind: list((share / kind).iterdir()) for kind in ("ac", "cas")}
    assert full["shared"] == {
        "entries": len(files["ac"]),
        "entry_bytes": sum(path.stat().st_size for path in files["ac"]),
        "blobs": len(files["cas"]),
        "blob_bytes": sum(path.stat().st_size for path in files["cas"]),
    }
    assert full["own"]["blobs"] > 0  # type: ignore[operator, index]
    assert f"shared cache: file://{share} (write)" in original.command("cache", "stats").stdout


def test_stats_without_a_shared_cache(original: Mini) -> None:
    original.env["GPUEMU_CACHE_REMOTE"] = "none"
    assert "shared cache: none" in original.command("cache", "stats").stdout
    said = original.command("cache", "gc", "--remote", "--size", "0", code=2).stderr
    assert "cache-remote-none" in said


def test_gc_of_both_caches(original: Mini, share: Path) -> None:
    original.run()
    assert original.command("cache", "gc").stdout.startswith("deleted 0 files")
    assert not original.command("cache", "gc", "--size", "0").stdout.startswith("deleted 0 files")
    assert stats(original)["own"]["blobs"] == 0  # type: ignore[index]
    original.command("cache", "gc", "--remote", code=2)
    original.command("cache", "gc", "--remote", "--size", "1 parsec", code=2)
    half = sum(path.stat().st_size for path in share.glob("*/*")) // 2
    original.command("cache", "gc", "--remote", "--size", str(half))
    assert 0 < sum(path.stat().st_size for path in share.glob("*/*")) <= half
    assert original.run()["results"][0]["verdict"] == "passed"


def test_verify_finds_a_damaged_object(original: Mini) -> None:
    original.run()
    assert ": 0 damaged" in original.command("cache", "verify").stdout
    blob = next((original.root / ".gpuemu-cache" / "blobs").glob("*/*"))
    blob.write_bytes(b"other")
    assert blob.stem in original.command("cache", "verify", code=1).stderr


def test_clear(original: Mini, share: Path) -> None:
    original.run()
    assert "emptied" in original.command("cache", "clear").stdout
    assert list(share.glob("*/*"))


def test_a_share_that_is_not_mounted_has_no_size(tmp_path: Path) -> None:
    original = make_original(tmp_path / "original", f"file://{tmp_path}/share/cache")
    told = original.command("cache", "stats").stdout
    assert f"does not answer: there is no folder {tmp_path}/share\n" in told
    assert set(stats(original)["shared"].values()) == {None}
    (tmp_path / "share").mkdir()
    assert "answers; 0 entries" in original.command("cache", "stats").stdout


def test_a_server_does_not_list_what_it_holds(tmp_path: Path, share: Path) -> None:
    with served(share) as url:
        original = make_original(tmp_path / "original", url)
        done = original.command("cache", "gc", "--remote", "--size", "0", code=2)
        assert "cache-remote-unlisted" in done.stderr
        assert stats(original)["answers"] == "yes"
    assert "does not answer" in original.command("cache", "stats").stdout
    assert requests(share)
