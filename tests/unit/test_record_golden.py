"""The recorder of golden outputs without a GPU, and the emulator against what was recorded."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_kernels import Case, all_cases

from gpuemu_flow.emulator.launch import load_kernel

ROOT = Path(__file__).resolve().parent.parent.parent
GOLD = ROOT / "tests" / "gold" / "gpu"


@pytest.fixture(scope="module")
def recorder() -> Any:
    spec = importlib.util.spec_from_file_location("rec", ROOT / "scripts" / "record_golden.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class EmulatedDriver:
    """Stands where a GPU would: launches go to the emulator."""

    name, version = "no GPU: the emulator", 0

    def function(self, ptx: bytes, entry: str) -> Any:
        return load_kernel(ptx, "", entry)

    def launch(
        self, function: Any, grid: Any, block: Any, shared: int, arguments: list[Any]
    ) -> list[Any]:
        return list(function.launch(grid, block, arguments, shared=shared, checks=()).buffers)


def compare(case: Case, name: str, folder: Path) -> int:
    """Hold a launch against what was recorded of it; how many buffers were compared."""
    result = case.launch(checks=())
    with np.load(folder / f"{name}.npz") as recorded:
        for number in case.expected:
            here = result.buffers[number]
            assert here is not None
            there = recorded[str(number)].reshape(-1).view(here.dtype).reshape(here.shape)
            if case.rtol or case.atol:
                np.testing.assert_allclose(
                    here.astype("f8"), there.astype("f8"), case.rtol, case.atol, err_msg=name
                )
            else:
                assert here.tobytes() == there.tobytes(), name
    return len(case.expected)


def launches(recorder: Any, folder: Path) -> list[tuple[Case, str]]:
    about = json.loads((folder / "about.json").read_text())
    cases = all_cases(recorder.SEED, recorder.SIZE)
    return list(zip(cases, about["launches"], strict=True))


def test_without_a_driver_it_says_so(recorder: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert recorder.main(["libcuda-that-is-not-there.so.1"]) == 3
    said = capsys.readouterr().err
    assert "no golden outputs were recorded" in said and "cannot be loaded" in said


@pytest.mark.ci
def test_what_is_recorded_can_be_read_and_compared(recorder: Any, tmp_path: Path) -> None:
    names = recorder.record(EmulatedDriver(), tmp_path)
    assert len(names) >= 40
    assert sum(compare(case, name, tmp_path) for case, name in launches(recorder, tmp_path)) >= 40
    case, name = launches(recorder, tmp_path)[0]
    with np.load(tmp_path / f"{name}.npz") as kept:
        damaged = {number: data.copy() for number, data in kept.items()}
    damaged["2"].reshape(-1)[:4] ^= 0xFF
    np.savez_compressed(tmp_path / f"{name}.npz", **damaged)
    with pytest.raises(AssertionError):
        compare(case, name, tmp_path)


@pytest.mark.skipif(not (GOLD / "about.json").is_file(), reason="no outputs of a GPU are recorded")
def test_the_emulator_gives_what_a_gpu_gave(recorder: Any) -> None:
    for case, name in launches(recorder, GOLD):
        compare(case, name, GOLD)
