"""A run that is killed, interrupted, doubled or short of disk loses nothing that was finished."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from mini_workspace import Mini
from small_disk import small_disk

from gpuemu_flow.store.cache import WorkspaceCache

__all__ = ["small_disk"]

KILLS = int(os.environ.get("RUN_KILLS", "3"))
"""Moments of a run at which it is killed; ``RUN_KILLS=50`` is the full count."""


def verdicts(report: dict[str, Any]) -> list[tuple[Any, ...]]:
    figures = ("op", "dtype", "verdict", "cases", "passed", "max_abs", "max_ulp", "tolerance_used")
    return [tuple(result[name] for name in figures) for result in report["results"]]


def finished_tasks(root: Path) -> set[str]:
    """Tasks whose success is on record, read as the next run would."""
    cache = WorkspaceCache(root / ".gpuemu-cache")
    try:
        return {k.removeprefix("task:") for k in cache.state if cache.state.get(k)}
    finally:
        cache.close()


def workers_of(root: Path) -> list[psutil.Process]:
    """Processes that still work in a workspace."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        command = " ".join(process.info["cmdline"] or ())
        if "gpuemu_flow.workers" in command and str(root) in str(process.info["cwd"]):
            found.append(process)
    return found


@pytest.mark.timeout(1800)
def test_kill_9_at_random_moments(mini: Mini) -> None:
    """Each kill falls into a slice of the run of its own, so that a few reach all of it."""
    words = ("scale", "relu")
    begin = time.monotonic()
    undisturbed = verdicts(mini.run(*words))
    whole_run = time.monotonic() - begin
    moments = random.Random(20261120)
    rounds = interrupted = 0
    while rounds < KILLS or interrupted <= KILLS // 2:
        part = (rounds % KILLS + moments.random()) / KILLS
        rounds += 1
        moment = 0.1 + max(0.0, whole_run - 0.1) * part
        shutil.rmtree(mini.root / ".gpuemu-cache")
        process = mini.popen("run", "-j", "2", *words)
        try:
            process.communicate(timeout=moment)
            whole_run = moment  # the machine is faster than it was
        except subprocess.TimeoutExpired:
            interrupted += 1
            process.kill()
            process.communicate()
        (mini.root / ".gpuemu-cache").mkdir(exist_ok=True)
        kept = finished_tasks(mini.root)
        report = mini.run(*words)
        assert verdicts(report) == undisturbed
        assert not kept & set(report["executed"]), "a finished task ran again"
        assert report["problems"] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.ci
def test_a_signal_ends_a_run_in_good_order(mini: Mini, number: signal.Signals) -> None:
    mini.write(
        "scripts/scale.py",
        """
        import time
        def scale(x):
            time.sleep(60)
        """,
    )
    process = mini.popen("run")
    deadline = time.monotonic() + 600
    while "reference:total:float32" not in _known(mini.root):
        assert time.monotonic() < deadline
        assert process.poll() is None
    process.send_signal(number)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, out + err
    assert "interrupted" in out
    assert "Traceback" not in err
    assert workers_of(mini.root) == []
    kept = finished_tasks(mini.root)
    mini.write("scripts/scale.py", "def scale(x):\n    return x * 3\n")
    report = mini.run()
    assert not kept & set(report["executed"])
    assert {r["verdict"] for r in report["results"]} == {"passed"}


def _known(root: Path) -> set[str]:
    return finished_tasks(root) if (root / ".gpuemu-cache/state/cache.db").exists() else set()


@pytest.mark.ci
def test_two_runs_at_once_both_come_out_right(mini: Mini) -> None:
    processes = [mini.popen("run", "--format", "json") for _ in range(3)]
    outcomes = [(p.communicate(timeout=600), p.returncode) for p in processes]
    assert [code for _, code in outcomes] == [0, 0, 0]
    import json

    reports = [json.loads(out) for (out, _), _ in outcomes]
    assert verdicts(reports[0]) == verdicts(reports[1]) == verdicts(reports[2])
    assert sorted(len(r["executed"]) for r in reports) == [0, 0, 19]
    waited = [err for (_, err), _ in outcomes if "waiting for process" in err]
    assert len(waited) >= 1


def flippable(cache: Path) -> list[list[Path]]:
    """Files that a run may be given damaged; together stand those that do not hide one another.

    Blobs do not: what reads one of them reads no other.
    """
    skipped = {"lock", ".gitignore", "CACHEDIR.TAG"}
    files = sorted(
        p
        for p in cache.rglob("*")
        if p.is_file() and p.name not in skipped and "quarantine" not in p.parts
    )
    groups: dict[Path, list[Path]] = {}
    for path in files:
        kind = path.relative_to(cache)
        alike = Path("blobs") if kind.parts[0] == "blobs" else kind
        groups.setdefault(alike, []).append(path)
    return list(groups.values())


def compare_anew(mini: Mini) -> None:
    """Another policy with the same verdicts: every comparison runs, and reads every blob."""
    mini.edit("gpuemu.toml", "cases = 4", 'cases = 4\nnan_policy = "strict"')


@pytest.mark.ci
def test_a_flipped_byte_in_any_cache_file_is_never_believed(mini: Mini) -> None:
    undisturbed = verdicts(mini.run())
    cache = mini.root / ".gpuemu-cache"
    places = random.Random(7)
    groups = flippable(cache)
    assert {path.parent.name for group in groups for path in group} > {"state", "actions"}
    for group in groups:
        for path in group:
            if not path.exists() or not path.stat().st_size:
                continue
            data = bytearray(path.read_bytes())
            position = places.randrange(len(data))
            data[position] ^= 1 << places.randrange(8)
            path.write_bytes(data)
        assert verdicts(mini.run()) == undisturbed, group
    compare_anew(mini)
    assert verdicts(mini.run()) == undisturbed


@pytest.mark.ci
def test_damaged_blobs_are_set_aside_and_made_again(mini: Mini) -> None:
    undisturbed = verdicts(mini.run())
    cache = mini.root / ".gpuemu-cache"
    blobs = sorted(cache.glob("blobs/*/*.safetensors"))
    for path in blobs:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    compare_anew(mini)
    report = mini.run()
    assert {name.split(":")[0] for name in report["executed"]} == {"compare"}
    assert verdicts(report) == undisturbed
    assert {p["slug"] for p in report["problems"]} == {"cache-damaged"}
    assert len(list((cache / "quarantine").iterdir())) >= 1
    assert mini.run()["problems"] == []


@pytest.mark.ci
def test_a_full_disk_is_a_clear_error_and_the_cache_stays_sound(
    mini: Mini, small_disk: Path
) -> None:
    undisturbed = verdicts(mini.run())
    shutil.rmtree(mini.root / ".gpuemu-cache")
    (mini.root / ".gpuemu-cache").symlink_to(small_disk)
    mini.env["GPUEMU_CACHE_LINK"] = "1"
    filler = small_disk / "filler"
    for kept_free in (4, 16, 64, 160, 300):
        filler.unlink(missing_ok=True)
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        filler.write_bytes(b"\0" * max(0, free - kept_free * 1024))
        done = mini.command("run", code=None)
        assert done.returncode == 3, done.stdout + done.stderr
        assert "no space left" in done.stdout + done.stderr or "full" in done.stdout + done.stderr
    filler.unlink()
    assert verdicts(mini.run()) == undisturbed
