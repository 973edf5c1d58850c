"""Test the source from which a generated workflow installs gpuemu-flow: one that a runner can
reach, and without a secret."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuemu_flow.services.init import installed
from gpuemu_flow.services.init.installed import PipRequirement, find_origin

pytestmark = pytest.mark.ci

COMMIT = "0123456789" * 4
ADDRESS = "https://example.org/team/gpuemu-flow.git"

Record = Callable[[str | None], PipRequirement]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Makes this look like an installation of which pip wrote down that it came from there."""
    monkeypatch.setattr(installed, "_checkout", lambda: None)
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


def git(folder: Path, *arguments: str) -> str:
    words = ["git", "-C", folder, "-c", "user.name=n", "-c", "user.email=e@x", *arguments]
    return subprocess.run(
        words, capture_output=True, text=True, check=True, timeout=600
    ).stdout.strip()


def vcs(url: str, commit: str = COMMIT, kind: str = "git") -> str:
    return json.dumps({"url": url, "vcs_info": {"vcs": kind, "commit_id": commit}})


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}"])
def test_from_an_index_it_is_asked_for_by_version(record: Record, text: str | None) -> None:
    assert record(text) == PipRequirement("gpuemu-flow==9")


@pytest.mark.parametrize(
    ("url", "public"),
    [
        (ADDRESS, ADDRESS),
        ("https://user:secret@example.org/team/gpuemu-flow.git", ADDRESS),
        ("https://secret@example.org:8443/a/b", "https://example.org:8443/a/b"),
        ("ssh://git@example.org/team/gpuemu-flow.git", ADDRESS),
        ("ssh://git@example.org:2222/team/gpuemu-flow.git", ADDRESS),
        ("git@example.org:team/gpuemu-flow.git", ADDRESS),
    ],
)
def test_from_a_repository_it_is_asked_for_by_commit(record: Record, url: str, public: str) -> None:
    found = record(vcs(url))
    assert found == PipRequirement(f"gpuemu-flow @ git+{public}@{COMMIT}")
    assert found.needs_git
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    "text",
    [
        vcs("file:///home/me/gpuemu-flow"),
        vcs("http://example.org/x"),
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


def test_an_archive_is_asked_for_again(record: Record) -> None:
    url = "https://me:secret@example.org/gpuemu_flow-9-py3-none-any.whl"
    found = record(json.dumps({"url": url, "archive_info": {}}))
    assert found == PipRequirement(
        "gpuemu-flow @ https://example.org/gpuemu_flow-9-py3-none-any.whl"
    )


def test_a_clone_counts_once_its_commit_is_pushed(record: Record, tmp_path: Path) -> None:
    clone, remote = tmp_path / "a clone", tmp_path / "remote.git"
    clone.mkdir()
    git(clone, "init", "-q", "-b", "main")
    git(clone, "commit", "-q", "--allow-empty", "-m", "one")
    said = json.dumps({"url": clone.as_uri(), "dir_info": {}})
    assert str(clone) in record(said).doubt, "no remote"
    subprocess.run(["git", "init", "-q", "--bare", remote], check=True, timeout=600)
    git(clone, "remote", "add", "origin", str(remote))
    git(clone, "push", "-q", "origin", "main")
    assert record(said).doubt, "a folder of this machine"
    git(clone, "config", "remote.origin.url", "git@example.org:team/gpuemu-flow.git")
    commit = git(clone, "rev-parse", "HEAD")
    assert record(said) == PipRequirement(f"gpuemu-flow @ git+{ADDRESS}@{commit}")
    git(clone, "commit", "-q", "--allow-empty", "-m", "two")
    assert record(said).doubt, "not pushed"
