"""Test in fresh interpreters: few imports, and no dependence on hash seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuemu_flow.model.types import Case, CheckResult, Failure, FailureKind, InputSpec, Verdict
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.failures import FailureRecord, FailureStore
from gpuemu_flow.store.keys import KeyParts

pytestmark = pytest.mark.ci


def test_the_same_plan_under_any_hash_seed() -> None:
    code = (
        "from gpuemu_flow.cases.plan import plan_cases\n"
        "from gpuemu_flow.cases.op_schema import BUILTIN_SCHEMAS as B\n"
        "import json\n"
        "cases = plan_cases(B['attention'], seed=3, dtype='float32', count=300,"
        " strategies=['core', 'stress'], layouts=['strided', 'contiguous', 'offset'])\n"
        "print(json.dumps([c.to_json() for c in cases]))\n"
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


def test_loading_imports_nothing_heavy() -> None:
    code = (
        "import sys, gpuemu_flow.config.load; "
        "print([m for m in ('numpy', 'doit', 'jsonschema', 'rich', 'click', 'ml_dtypes') "
        "if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_ml_dtypes_is_imported_only_for_its_types() -> None:
    program = (
        "import sys, numpy as np; from gpuemu_flow.numerics import dtypes as d;"
        "d.numpy_dtype('float16'); d.to_float32(np.zeros(2, 'f2')); d.dtype_name(np.dtype('V2'));"
        "sys.exit('ml_dtypes' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_naming_a_case_does_not_import_numpy() -> None:
    program = (
        "import sys; from gpuemu_flow.cases.protocol_v1 import SequenceConfig, case_at;"
        "case_at(SequenceConfig(1), ['x'], 0); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_importing_the_generator_does_not_import_numpy() -> None:
    program = (
        "import sys; from gpuemu_flow.numerics.rng import SeededRng; SeededRng(1).gen_u64();"
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_records_outlive_their_process(tmp_path: Path) -> None:
    code = """if True:
        import sys
        from pathlib import Path
        from gpuemu_flow.store.failures import FailureStore
        from gpuemu_flow.store.cache import WorkspaceCache
        (record,) = FailureStore(WorkspaceCache(Path(sys.argv[1]))).list()
        print(record.id, record.op)
        """
    case = Case(3, 7, "float32", "strided", "special", (InputSpec("x", (2, 9), "float32"),))
    wrong = CheckResult(Verdict.FAILED, (Failure(FailureKind.NAN, "a NaN", "y", (1, 8)),))
    cache = WorkspaceCache(tmp_path / ".gpuemu-cache")
    cache.create()
    record = FailureRecord.of("a b", case, wrong, source="run")
    wanted = FailureStore(cache).add(record, b"stands for a safetensors file")
    cache.close()
    done = subprocess.run(
        [sys.executable, "-c", code, str(cache.folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"{wanted} a b"
