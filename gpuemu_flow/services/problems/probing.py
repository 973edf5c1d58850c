"""Ask a problem's own code about its inputs, in a sandboxed worker, and check its answers."""

from __future__ import annotations

import contextlib
import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.model.types import DTYPES, Json
from gpuemu_flow.services.problems.model import Argument, ProblemFacts, ReferenceOutput
from gpuemu_flow.tasks.base import program_of
from gpuemu_flow.workers.api import Outcome
from gpuemu_flow.workers.checked import ProgramSession
from gpuemu_flow.workers.pool import Pool

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
        """Return the answer to one request. Raises ProbeError."""
        data = np.frombuffer(json.dumps(request).encode(), np.uint8)
        outputs, outcome = self._session.call({"request": data})
        if not outcome.ok:
            raise ProbeError(_why(outcome))
        answer = outputs.get("result")
        if answer is None or answer.dtype != np.uint8 or answer.nbytes > MOST_ANSWERED:
            raise ProbeError("its code gave no answer that can be read")
        return answer.tobytes()

    def ask_json(self, request: Mapping[str, Json]) -> dict[str, Json]:
        """Return the answer to one request as a JSON object. Raises ProbeError."""
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
    with Pool(1) as pool:
        yield pool


@contextlib.contextmanager
def open_prober(
    probe: str, runtime: Sequence[str], problem: Mapping[str, bytes], pool: Pool
) -> Iterator[Prober]:
    """Yield a prober for a problem."""
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


MOST_ARGUMENTS = 64
MOST_AXES = 8
MOST_NESTED = 20
LONGEST = 1 << 16
KINDS = ("", "one_hot", "probabilities", "symmetric")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def described(answer: Mapping[str, Json]) -> ProblemFacts:
    """Check a probe's answer, and return the facts in it. Raises ProbeError: The answer does not
    have the form that our probes give."""
    try:
        return ProblemFacts(
            init=tuple(_plain(one) for one in _list(answer["init"])),
            arguments=tuple(_argument(one) for one in _list(answer["arguments"])),
            globals={_name(key): _plain(value) for key, value in answer["globals"].items()},
            outputs=tuple(_output(one) for one in _list(answer.get("outputs", []))),
            free=frozenset(str(one) for one in _list(answer.get("free", []))),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ProbeError("its code gave no answer that can be read") from error


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list) or len(value) > MOST_ARGUMENTS:
        raise ValueError("no short list")
    return value


def _name(value: Json) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("no name")
    return value


def _argument(one: Mapping[str, Json]) -> Argument:
    if "name" not in one:
        return Argument(value=_plain(one["value"]))
    shape = tuple(one["shape"])
    if len(shape) > MOST_AXES or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
        raise ValueError("no shape")
    if one["dtype"] not in DTYPES or one.get("kind", "") not in KINDS:
        raise ValueError("no dtype or kind")
    part = one.get("part", "")
    if part not in ("", "upper", "lower"):
        raise ValueError("no part")
    return Argument(
        name=_name(one["name"]),
        shape=shape,
        dtype=one["dtype"],
        floating=one.get("float") is True,
        low=_number(one.get("low")),
        high=_number(one.get("high")),
        kind=one.get("kind", ""),
        part=part,
    )


def _number(value: Json) -> float | None:
    if value is None or type(value) is int:
        return value
    if type(value) is not float:
        raise ValueError("no number")
    return value if math.isfinite(value) else None


def _output(one: Mapping[str, Json]) -> ReferenceOutput:
    rank = one["rank"]
    if type(rank) is not int or not 0 <= rank <= MOST_AXES:
        raise ValueError("no rank")
    return ReferenceOutput(rank, one.get("float") is True, one.get("finite") is True)


def _plain(value: Json, depth: int = 0) -> Json:
    if depth > MOST_NESTED:
        raise ValueError("nested too deep")
    if isinstance(value, str) and len(value) > LONGEST:
        raise ValueError("too long")
    if isinstance(value, list):
        return [_plain(one, depth + 1) for one in _list(value)]
    if isinstance(value, dict):
        if set(value) != {"tuple"}:
            raise ValueError("no tuple")
        return {"tuple": [_plain(one, depth + 1) for one in _list(value["tuple"])]}
    return value
