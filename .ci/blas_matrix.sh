#!/usr/bin/env bash
# The numeric tests, and the verdicts of default runs, under two kernels of OpenBLAS, with other
# numbers of threads, with and without numpy's own code for this processor: others add in other
# orders, and nothing may depend on it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
out=build/blas
rm -rf "$out" && mkdir -p "$out"
all=$("$python" -c 'import numpy; print(*numpy._core._multiarray_umath.__cpu_dispatch__)' 2>/dev/null || true)

OPENBLAS_CORETYPE=Haswell OPENBLAS_NUM_THREADS=1 \
  "$python" tests/quality/verdicts.py >"$out/one.json"
export OPENBLAS_CORETYPE=Prescott OPENBLAS_NUM_THREADS=2 NPY_DISABLE_CPU_FEATURES=$all
"$python" tests/quality/verdicts.py >"$out/other.json"
cmp "$out/one.json" "$out/other.json"
"$python" -m pytest -q tests/unit/test_envelope*.py tests/unit/test_evaluations.py \
  tests/unit/test_precision.py
