#!/usr/bin/env bash
# The numeric tests, and the verdicts of default runs, under several kernels of OpenBLAS and without
# numpy's own: other processors add in other orders, and nothing may depend on it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
out=build/blas
rm -rf "$out" && mkdir -p "$out"
all=$("$python" -c 'import numpy; print(*numpy._core._multiarray_umath.__cpu_dispatch__)' 2>/dev/null || true)

try() { # kernel, threads, features of numpy that are off
  local name="$1-$2${3:+-baseline}"
  echo "--- $name"
  export OPENBLAS_CORETYPE=$1 OPENBLAS_NUM_THREADS=$2
  if [ -n "${3:-}" ]; then export NPY_DISABLE_CPU_FEATURES=$3; else unset NPY_DISABLE_CPU_FEATURES; fi
  # Two cores for all: threads that wait for one of them would spin.
  "$python" -m pytest -q -n $((2 / $2)) tests/unit/test_workspace_ops.py tests/unit/test_envelope*.py \
    tests/unit/test_evaluations.py tests/unit/test_precision.py
  "$python" tests/quality/verdicts.py >"$out/$name.json"
  cmp "$out/$name.json" "$out/Haswell-1.json"
}

try Haswell 1
try Haswell 2 "$all"
try Prescott 1
