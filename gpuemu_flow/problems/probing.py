"""Ask a problem's own code about its inputs, in a sandboxed worker of a temporary workspace."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.runners.api import Outcome
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.runners.session import ProgramSession
from gpuemu_flow.tasks.base import program_of
from gpuemu_flow.types import Json

ADAPTERS = Path(__file__).parent / "adapters"
MOST_ANSWERED = 300 << 20
TRY_SECONDS = 40
MEMORY = "6GiB"
_ENVELOPE = "probe_envelope.py"

_CONFIG = f"""\
[project]
name = "probe"

[[ops]]
name = "probe"
op = "probe.py:probe"
reference = "none.py:none"
input_names = ["request"]
dtypes = ["float32"]
isolation = "warm"
timeout = {TRY_SECONDS}
memory_limit = "{MEMORY}"

[ops.schema]
inputs.request = {{ dims = [1], dtype = "uint8" }}
"""


class ProbeError(Exception):
    """Raised if the problem's code gave no answer; its text is the reason, in one line."""


class Prober:
    """Sends requests to the code of one problem. Made by `open_prober`."""

    def __init__(self, session: ProgramSession) -> None:
        self._session = session

    def ask(self, request: Mapping[str, Json]) -> bytes:
        """Return the answer to one request.

        Raises
        ------
        ProbeError
        """
        data = np.frombuffer(json.dumps(request).encode(), np.uint8)
        outputs, outcome = self._session.call({"request": data})
        if not outcome.ok:
            raise ProbeError(_why(outcome))
        answer = outputs.get("result")
        if answer is None or answer.dtype != np.uint8 or answer.nbytes > MOST_ANSWERED:
            raise ProbeError("its code gave no answer that can be read")
        return answer.tobytes()

    def ask_json(self, request: Mapping[str, Json]) -> dict[str, Json]:
        """Return the answer to one request as a JSON object.

        Raises
        ------
        ProbeError
        """
        try:
            found = json.loads(self.ask(request))
        except (ValueError, RecursionError):
            raise ProbeError("its code gave no answer that can be read") from None
        if not isinstance(found, dict):
            raise ProbeError("its code gave no answer that can be read")
        if "not_taken" in found:
            raise ProbeError(str(found["not_taken"])[:300])
        return found


@contextlib.contextmanager
def probe_workers() -> Iterator[Pool]:
    """Yield one pool for the probes of all problems, so that frameworks are imported once."""
    with (
        tempfile.TemporaryDirectory(prefix="gpuemu-import-") as staging,
        Pool(1, staging=Path(staging)) as pool,
    ):
        yield pool


@contextlib.contextmanager
def open_prober(
    probe: str, runtime: Sequence[str], problem: Mapping[str, bytes], pool: Pool
) -> Iterator[Prober]:
    """Yield a prober for a problem.

    Parameters
    ----------
    probe : str
        Name of the file in the folder `ADAPTERS` that defines the function ``probe``.
    runtime : sequence of str
        Names of the files in `ADAPTERS` that this file imports.
    problem : mapping of str to bytes
        The problem's files, by path.
    pool : Pool
        The workers that `probe_workers` yields.
    """
    with tempfile.TemporaryDirectory(prefix="gpuemu-import-") as folder:
        root = Path(folder)
        files = {
            "gpuemu.toml": _CONFIG.encode(),
            "none.py": b"def none(request):\n    return request\n",
            "probe.py": (ADAPTERS / probe).read_bytes(),
            **{
                f"adapters/{name}": (ADAPTERS / name).read_bytes() for name in (*runtime, _ENVELOPE)
            },
            **problem,
        }
        for path, content in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
        workspace = Workspace(root, environ={})
        program = program_of(workspace.graph.tasks["op:probe:float32"].settings)
        with pool.session(program) as session:
            yield Prober(session)


def _why(outcome: Outcome) -> str:
    error = outcome.error
    if error is None:
        return "its code gave no outputs"
    return error.message
