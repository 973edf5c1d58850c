"""Load numpy with one thread for its matrix products, as the product's own processes do.

`conftest` imports this before anything that loads numpy. With a thread for each core, the threads
of several workers wait for one another in busy loops: tests of small products cost ten times as
much. The variables are as before afterwards, so that programs which tests start see none of it.
"""

from __future__ import annotations

import importlib
import os

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_absent = [name for name in VARIABLES if name not in os.environ]
os.environ.update(dict.fromkeys(_absent, "1"))
importlib.import_module("numpy")
for _name in _absent:
    del os.environ[_name]
