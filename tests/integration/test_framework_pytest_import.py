"""Comparisons in files of tests are imported; `score` tells right kernels from wrong ones.

By default a few problems with one wrong kernel; ``IMPORT_PROBLEMS=all`` tries all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from collection_scores import MOST, chosen, scored
from pytest_problems import PYTEST

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("name", chosen(PYTEST, "embedding", "ragged_heads"))
@pytest.mark.ci
def test_a_file_of_tests_is_scored(tmp_path: Path, name: str) -> None:
    library = PYTEST[name].library
    if library != "numpy":
        pytest.importorskip(library, reason=f"no {library}")
    PYTEST[name].write(tmp_path / "theirs", name, most=MOST)
    told = scored(tmp_path, "pytest", f"theirs/test_{name}.py")
    assert "left out" not in told


def test_twenty_files_of_tests_are_written() -> None:
    assert len(PYTEST) == 20
