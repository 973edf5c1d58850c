"""A small form of `benchmarks/bench_hostile.py`: all requests answered, descriptors as before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench_hostile.py"


@pytest.mark.ci
def test_mutated_requests_and_slow_connections_leave_nothing_behind() -> None:
    words = [sys.executable, str(SCRIPT), "--requests", "400", "--connections", "60", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["unanswered"] == 0
    assert sum(found["answers"].values()) == 400
    assert "InternalError" not in found["answers"]
    assert found["ping_slow_ms"]["pings"] > 0
