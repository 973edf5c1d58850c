"""Plans and keys are the same in every process, whatever its hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpuemu_flow.store.keys import KeyParts

pytestmark = pytest.mark.ci


def test_the_same_plan_under_any_hash_seed() -> None:
    code = (
        "from gpuemu_flow.cases.plan import plan_cases\n"
        "from gpuemu_flow.cases.op_schema import BUILTIN_SCHEMAS as B\n"
        "import json\n"
        "from gpuemu_flow.model.decoding import plain\n"
        "cases = plan_cases(B['attention'], seed=3, dtype='float32', count=300,"
        " strategies=['core', 'stress'], layouts=['strided', 'contiguous', 'offset'])\n"
        "print(json.dumps(plain(cases)))\n"
    )
    outputs = set()
    for hash_seed in ("0", "1", "12345"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        outputs.add(
            subprocess.run(
                [sys.executable, "-c", code], env=env, check=True, capture_output=True
            ).stdout
        )
    assert len(outputs) == 1


def test_a_key_does_not_depend_on_the_process() -> None:
    program = (
        "from gpuemu_flow.store.keys import KeyParts\n"
        "print(KeyParts('op/1', code={'a.py': '1', 'b.py': '2'}, params={'x': [1.5]}).key())"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    own = KeyParts("op/1", code={"b.py": "2", "a.py": "1"}, params={"x": [1.5]}).key()
    assert keys == {own + "\n"}
