"""A small real workspace in a temporary folder, driven through the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

from warm import warm_command

CONFIG = """\
[project]
name = "mini"

[validation]
dtypes = ["float32"]
cases = 4
seed = 42

[[ops]]
name = "scale"
op = "scripts/scale.py:scale"
reference = "scripts/scale_ref.py:reference"
input_names = ["x"]
schema = { dims = { N = { min = 1, max = 40 } }, inputs = { x = ["N"] }, output = ["N"] }

[[ops]]
name = "total"
op = "scripts/total.py:total"
reference = "scripts/total_ref.py:reference"
input_names = ["x"]
dtypes = ["float32", "float16"]
[ops.schema]
dims = { M = [1, 3, 8], N = { min = 1, max = 40 } }
inputs = { x = ["M", "N"] }
output = ["M"]

[[ops]]
name = "relu"
op = "scripts/relu.py"
reference = "scripts/relu_ref.py"
input_names = ["x"]
schema = { dims = { N = [1, 7, 32] }, inputs = { x = ["N"] }, output = ["N"] }

[targets]
both = ["scale", "compare:relu:float32"]
"""

SCRIPTS = {
    "scripts/common.py": """
        import numpy as np

        def widen(x):
            return x.astype(np.float32) if x.dtype.itemsize < 4 else x
        """,
    "scripts/scale.py": """
        from common import widen

        def scale(x):
            return (widen(x) * 3).astype(x.dtype)
        """,
    "scripts/scale_ref.py": """
        def reference(x):
            return (x + x + x).astype(x.dtype)
        """,
    "scripts/total.py": """
        import numpy as np
        from common import widen

        def total(x):
            acc = np.zeros(x.shape[0], dtype=np.float32)
            for start in range(0, x.shape[1], 16):
                acc += widen(x[:, start:start + 16]).sum(axis=1, dtype=np.float32)
            return acc.astype(x.dtype)
        """,
    "scripts/total_ref.py": """
        import numpy as np

        def reference(x):
            return x.astype(np.float64).sum(axis=1).astype(x.dtype)
        """,
    "scripts/protocol.py": """
        import base64, json, sys
        import numpy as np

        def read():
            request = json.load(sys.stdin)
            x = request["inputs"]["x"]
            return np.frombuffer(base64.b64decode(x["data"]), x["dtype"]).reshape(x["shape"])

        def tensor(a):
            data = base64.b64encode(np.ascontiguousarray(a).tobytes()).decode()
            return {"shape": list(a.shape), "dtype": str(a.dtype), "data": data}
        """,
    "scripts/relu.py": """
        import json
        import numpy as np
        from protocol import read, tensor

        x = read()
        print(json.dumps(tensor(np.where(x > 0, x, np.where(np.isnan(x), x, x.dtype.type(0))))))
        """,
    "scripts/relu_ref.py": """
        import json
        import numpy as np
        from protocol import read, tensor

        print(json.dumps({"outputs": {"result": tensor(np.maximum(read(), 0))}}))
        """,
}


@dataclass
class Mini:
    """A workspace folder and the command run in it."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    warm: bool = True
    """Commands are forked from a process that has loaded the package: see `warm`."""

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"))
        return path

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.root / name
        text = path.read_text()
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {name}"
        path.write_text(text.replace(old, new))

    def unfence(self) -> None:
        """Let ops write where they like: those of some tests leave marks that the test reads."""
        config = self.root / "gpuemu.toml"
        config.write_text(config.read_text() + '\n[sandbox]\nmode = "off"\n')

    def without_causes(self) -> None:
        """Run no new cases to find the causes of failures: for tests that ask for none."""
        self.edit("gpuemu.toml", "[validation]\n", "[validation]\ncause_budget = 0\n")

    def keep_only(self, op: str) -> None:
        """Take the other ops out of the configuration: for tests that are about one op."""
        path = self.root / "gpuemu.toml"
        head, *tables = path.read_text().partition("[targets]")[0].split("[[ops]]")
        (own,) = [table for table in tables if f'\nname = "{op}"\n' in table]
        path.write_text(f"{head}[[ops]]{own}")

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUEMU", "XDG", "CI"))}
        return {**kept, "HOME": str(self.root / "home"), **self.env}

    def popen(
        self, *arguments: str, folder: Path | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "gpuemu_flow", *arguments],
            cwd=folder or self.root,
            env=self.environment(),
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},
        )

    def command(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        if self.warm:
            done = warm_command(arguments, self.root, self.environment())
        else:
            process = self.popen(*arguments)
            out, err = process.communicate(timeout=600)
            done = subprocess.CompletedProcess(arguments, process.returncode, out, err)
        out, err = done.stdout, done.stderr
        assert "Traceback (most recent call last)" not in err, err
        if code is not None:
            assert done.returncode == code, f"exit {done.returncode}\n{out}\n{err}"
        return done

    def run(self, *arguments: str, code: int | None = 0) -> dict[str, Any]:
        done = self.command("run", "--format", "json", *arguments, code=code)
        try:
            return dict(json.loads(done.stdout))
        except ValueError:
            raise AssertionError(f"not JSON:\n{done.stdout}\n{done.stderr}") from None


def make_mini(folder: Path, *, warm: bool = True) -> Mini:
    """Three ops: two callables that share a helper, one pair of protocol scripts."""
    workspace = Mini(folder, warm=warm)
    workspace.write("gpuemu.toml", CONFIG)
    for name, text in SCRIPTS.items():
        workspace.write(name, text)
    return workspace


ONE_OP = """
[project]
name = "one"
[validation]
dtypes = ["float32"]
cases = 6
cause_budget = 0
strategies = ["{strategy}"]
[[ops]]
name = "it"
op = "op.py:op"
reference = "reference.py:reference"
{keys}
[ops.schema]
{schema}
"""


def make_one_op(
    folder: Path,
    *,
    takes: str,
    op: str,
    reference: str,
    schema: str,
    strategy: str = "normal",
    keys: str = "",
) -> Mini:
    """Write one op, ``it``, with a line of code for its body and one for its reference's."""
    workspace = Mini(folder)
    for name, body in (("op", op), ("reference", reference)):
        code = f"import numpy as np\n\n\ndef {name}({takes}):\n    {body}\n"
        workspace.write(f"{name}.py", code)
    config = ONE_OP.format(strategy=strategy, keys=keys, schema=dedent(schema).strip())
    workspace.write("gpuemu.toml", config)
    return workspace


DOUBLING = """
[project]
name = "doubling"
[validation]
cases = 12
seed = 42
cause_budget = 0
[[ops]]
name = "it"
op = "op.py:f"
reference = "ref.py:f"
{keys}
[ops.schema]
dims = {{ B = [1, 3], N = {{ min = 1, max = 100 }} }}
inputs.x = ["B", "N"]
"""
DOUBLES = "def f(x):\n    return x * 2\n"


def make_doubling(folder: Path, op: str, *, keys: str = "") -> Mini:
    """Write one op, ``it``, with the text of its file, and a reference that doubles its input."""
    workspace = Mini(folder)
    workspace.write("gpuemu.toml", DOUBLING.format(keys=keys))
    workspace.write("op.py", op)
    workspace.write("ref.py", DOUBLES)
    return workspace
