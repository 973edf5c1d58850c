"""Types that several threads read first at the same time: `gpuemu_flow.model.decoding`."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading
from msgspec import Struct, defstruct, field
from gpuemu_flow.model.decoding import convert

sys.setswitchinterval(1e-7)
for turn in range(300):
    parts = [defstruct(f"P{turn}_{n}", [(f"f{k}", int, 0) for k in range(40)]) for n in range(8)]
    whole = defstruct(f"W{turn}", [(f"p{n}", part) for n, part in enumerate(parts)])
    data = {f"p{n}": {} for n in range(8)}
    start = threading.Barrier(4)
    def read(wanted, data):
        start.wait()
        convert(data, wanted)
    threads = [threading.Thread(target=read, args=(whole, data)) for _ in range(3)]
    threads.append(threading.Thread(target=read, args=(parts[-1], {})))
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print("read")
"""


def test_many_threads_read_a_type_first() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr
