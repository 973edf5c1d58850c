"""Named baselines: any tag of a client is one file, each part comes back, the oldest go first."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from for_each import for_each
from msgspec.structs import replace

from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.store.baselines import (
    MAX_FILE_BYTES,
    ArtifactMetrics,
    Baseline,
    BaselineStore,
    SubmittedResult,
    read_file,
)
from gpuemu_flow.store.cache import OtherFormatError, WorkspaceCache, seal

FIGURES = {
    "sent": ArtifactMetrics("sent", 8, 1, 0, 0, 20, ("ld.global", "st.local"), "Sass", 1),
    "k": ArtifactMetrics("k", 8, 0, 0, 0, 20, (), "Ptx", 1, None, None, "estimate", 7),
}
FULL = Baseline(
    tag="a", created="2026-01-01T00:00:00.000000Z", tool="1", environment={"python": "3"},
    kernels={"k": [{}]}, results={"op": {"f": {}}},
    submitted=(SubmittedResult("op", (1 << 64) - 1, True, math.inf),),
    artifacts=FIGURES, of_run=False,
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    cache = WorkspaceCache(tmp_path / "cache")
    cache.create()
    return BaselineStore(cache)


@pytest.mark.parametrize("tag", ["v1", "a b", "..", "../evil", "a/b", "ä", "→" * 200, "x" * 200])
def test_any_tag_is_one_file_in_the_folder(store: BaselineStore, tag: str, tmp_path: Path) -> None:
    baseline = replace(FULL, tag=tag)
    assert not store.put(baseline)
    assert store.put(baseline), "the second replaces the first"
    assert store.get(tag) == baseline
    assert [path.parent.name for path in tmp_path.rglob("*.baseline")] == ["baselines"]
    store.delete(tag)
    assert store.list() == ()


def test_a_file_under_another_name_is_not_believed(store: BaselineStore, tmp_path: Path) -> None:
    store.put(FULL)
    (path,) = tmp_path.rglob("*.baseline")
    path.rename(path.with_name("b.baseline"))
    with pytest.raises(UsageError):
        store.get("b")


def test_what_another_version_wrote_stays_and_is_named(
    store: BaselineStore, tmp_path: Path
) -> None:
    store.put(FULL)
    (path,) = tmp_path.rglob("*.baseline")
    path.write_bytes(seal({**plain(FULL), "format": 2}))
    with pytest.raises(UsageError, match="stored by another version"):
        store.get("a")
    assert store.list() == ()
    assert path.exists()
    with pytest.raises(OtherFormatError, match="of format 2"):
        Baseline.from_json({**plain(FULL), "format": 2})


def test_what_an_older_version_wrote_has_no_parts_of_clients() -> None:
    data = plain(FULL)
    for name in ("submitted", "artifacts", "of_run"):
        del data[name]
    found = Baseline.from_json(data)
    assert (found.submitted, found.artifacts, found.holds_a_run) == (None, None, True)


@for_each(
    ("name", "value"),
    [("submitted", [{}]), ("submitted", 3), ("submitted", [3]), ("artifacts", {"k": 1}),
     ("artifacts", {"k": {"spill_count": 1}}),
     ("artifacts", []), ("submitted", [{"op": "a", "seed": "x", "passed": 1, "max_abs": 0}])],
)  # fmt: skip
def test_another_form_is_an_error(name: str, value: object) -> None:
    with pytest.raises(ValueError):
        Baseline.from_json({**plain(FULL), name: value})


def test_what_is_no_baseline_is_an_error() -> None:
    for data in ([], None, "baseline", {}, {**plain(FULL), "kind": "another tool's"}):
        with pytest.raises(ValueError, match="is no baseline"):
            Baseline.from_json(data)


def test_a_run_is_compared_with_what_holds_one(store: BaselineStore) -> None:
    bare = replace(FULL, results={}, kernels={})
    store.put(bare)
    with pytest.raises(UsageError, match="nothing-to-compare"):
        store.comparable("a")
    with pytest.raises(UsageError, match="no-baseline"):
        store.newest()
    store.put(replace(bare, of_run=True))
    assert store.comparable("a") == store.newest()


def test_the_oldest_go_first_but_not_the_one_just_stored(store: BaselineStore) -> None:
    for day in (3, 1, 2):
        store.put(replace(FULL, tag=str(day), created=f"2026-01-0{day}T00:00:00.000000Z"))
    assert store.trim(2, "1") == ("2",)
    assert {baseline.tag for baseline in store.list()} == {"1", "3"}
    with pytest.raises(UsageError, match="unknown-baseline"):
        store.get("2")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    path.touch()
    os.truncate(path, MAX_FILE_BYTES + 1)
    with pytest.raises(UsageError, match="larger than 256 MiB"):
        read_file(path)
