"""Test the source from which a generated workflow installs gpuemu-flow: one that a runner can
reach, and without a secret."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuemu_flow.services.init.installed import PipRequirement, find_origin

pytestmark = pytest.mark.ci

COMMIT = "0123456789" * 4
ADDRESS = "https://example.org/team/gpuemu-flow.git"

Record = Callable[[str | None], PipRequirement]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Makes this look like an installation of which pip wrote down that it came from there."""
    folder = tmp_path / "site" / "gpuemu_flow-9.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: gpuemu-flow\nVersion: 9\n")
    monkeypatch.syspath_prepend(str(folder.parent))

    def write(text: str | None) -> PipRequirement:
        (folder / "direct_url.json").unlink(missing_ok=True)
        if text is not None:
            (folder / "direct_url.json").write_text(text)
        return find_origin("9")

    return write


def vcs(url: str, commit: str = COMMIT, kind: str = "git") -> str:
    return json.dumps({"url": url, "vcs_info": {"vcs": kind, "commit_id": commit}})


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}"])
def test_from_an_index_it_is_asked_for_by_version(record: Record, text: str | None) -> None:
    assert record(text) == PipRequirement("gpuemu-flow==9")


def test_from_a_repository_it_is_asked_for_by_commit(record: Record) -> None:
    found = record(vcs(ADDRESS))
    assert found == PipRequirement(f"gpuemu-flow @ git+{ADDRESS}@{COMMIT}")
    assert found.needs_git


@pytest.mark.parametrize(
    "text",
    [
        vcs("file:///home/me/gpuemu-flow"),
        vcs("http://example.org/x"),
        vcs("https://user:secret@example.org/team/gpuemu-flow.git"),
        vcs("ssh://git@example.org/team/gpuemu-flow.git"),
        vcs("https://example.org/$(touch owned)/x"),
        vcs("https://example.org/x\n- run: echo"),
        vcs("https://example.org/x' && touch 'owned"),
        vcs(ADDRESS, commit="main"),
        vcs(ADDRESS, commit=COMMIT + "; x"),
        json.dumps({"url": "file:///home/me/x.whl", "archive_info": {}}),
        json.dumps({"url": "file:///nowhere/at%20all", "dir_info": {}}),
    ],
)
def test_what_no_runner_can_reach_is_doubted(record: Record, text: str) -> None:
    found = record(text)
    assert found.requirement == "gpuemu-flow==9"
    assert found.doubt
    assert "secret" not in repr(found)


def test_an_archive_is_asked_for_again(record: Record) -> None:
    url = "https://example.org/gpuemu_flow-9-py3-none-any.whl"
    found = record(json.dumps({"url": url, "archive_info": {}}))
    assert found == PipRequirement(f"gpuemu-flow @ {url}")
