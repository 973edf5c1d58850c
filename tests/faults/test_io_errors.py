"""One file operation of the cache fails, or all from one on: said, and the next run is right.

The suite tries a sample of the operations; ``FAULT_OPERATIONS=300`` tries more.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from daemon_workspace import Served
from mini_workspace import Mini, make_mini
from native import preloadable
from small_disk import small_disk
from test_run_damage import verdicts

from gpuemu_flow.client import ClientError

__all__ = ["small_disk"]

COUNT = int(os.environ.get("FAULT_OPERATIONS", "4"))
ALL = 1 << 30
SLUGS = {
    errno.EIO: ("cache-io-error", "cache-result"),
    errno.ENOSPC: ("cache-disk-full",),
}
"""Problems that name the disk, by the error."""


def faulty(mini: Mini, library: str, **fault: object) -> subprocess.CompletedProcess[str]:
    """Run with one operation that fails, in the command's own process."""
    variables = {f"FAULT_{name.upper()}": str(value) for name, value in fault.items()}
    variables |= {"LD_PRELOAD": library, "FAULT_FOLDER": "/.gpuemu-cache"}
    return subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", "run"],
        cwd=mini.root,
        env={**mini.environment(), **variables, "FAULT_PARENT": str(os.getpid())},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.timeout(7200)
def test_an_operation_that_fails(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    library = preloadable(tmp_path_factory, "faulty_io")
    mini = make_mini(tmp_path / "workspace")
    mini.keep_only("scale")
    log = tmp_path / "count"
    faulty(mini, library, kind="write", at=ALL, count=0, errno=0, log=log)
    operations = int(log.read_text())
    assert operations > 100, "the operations are not seen"
    expected = verdicts(mini.run())
    rng = random.Random(15)
    for number in range(COUNT):
        kind = "read" if number % 4 == 3 else "write"
        code = (errno.EIO, errno.ENOSPC)[number % 2 if kind == "write" else 0]
        at = int(operations * (number + rng.random()) / COUNT * (0.25 if kind == "read" else 1))
        shutil.rmtree(mini.root / ".gpuemu-cache", ignore_errors=True)
        done = faulty(
            mini, library, kind=kind, at=at, count=(1, 1, 1, 1, ALL)[number % 5], errno=code
        )
        said = done.stdout + done.stderr
        told = f"{os.strerror(code)} at {kind} {at}: {said}"
        assert "Traceback" not in said and "task-broke" not in said, told
        assert done.returncode in (0, 3), told
        assert done.returncode == 0 or any(slug in said for slug in SLUGS[code]), told
        report = mini.run()
        assert verdicts(report) == expected, told
        assert report["problems"] == [], told
        assert not list((mini.root / ".gpuemu-cache").glob("quarantine/*")), told


def test_what_a_full_disk_does_not_take_is_not_acknowledged(small_disk: Path) -> None:
    """Each result that a client was told of is there once the disk has room again."""
    served = Served(small_disk)
    known: set[int] = set()
    try:
        served.start()
        filler = small_disk / "filler"
        x = [1.0, 2.0]
        with served.client() as client:
            known.add(client.validate_op("double", {"x": x}, [2.0, 4.0]).seed)
            free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
            filler.write_bytes(bytes(max(0, free - (48 << 10))))
            with pytest.raises(ClientError) as caught:
                for _ in range(2000):
                    known.add(client.validate_op("double", {"x": x}, [2.0, 4.0]).seed)
        assert "full" in str(caught.value) or "space" in str(caught.value), caught.value
        filler.unlink()
        with served.client() as client:
            known.add(client.validate_op("double", {"x": x}, [2.0, 4.0]).seed)
        served.kill()
        served.start()
        with served.client() as client:
            assert known <= {result.seed for result in client.list_results(10_000)}
    finally:
        served.stop()
