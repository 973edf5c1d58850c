"""Test the place of the user's own cache, and that nothing depends on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuemu_flow.store.cache import open_user_cache
from gpuemu_flow.store.private_files import user_cache_folder


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"XDG_CACHE_HOME": "/var/mine", "HOME": "/home/u"}, "/var/mine/gpuemu-flow"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/u"}, "/home/u/.cache/gpuemu-flow"),
        ({"XDG_CACHE_HOME": "", "HOME": "/home/u"}, "/home/u/.cache/gpuemu-flow"),
    ],
)
def test_its_folder(environ: dict[str, str], folder: str) -> None:
    assert user_cache_folder(environ) == Path(folder)


def test_it_keeps_what_is_put_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for expected in (None, {"a": 1}):
        cache = open_user_cache()
        assert cache is not None
        assert cache.actions.get("key") == expected
        cache.actions.put("key", {"a": 1})
        assert (tmp_path / "gpuemu-flow/actions/cache.db-wal").exists()
        cache.close()
        assert not (tmp_path / "gpuemu-flow/actions/cache.db-wal").exists()
    assert (tmp_path / "gpuemu-flow" / "CACHEDIR.TAG").is_file()


def test_without_a_place_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert open_user_cache() is None
