"""All that reads bytes of strangers: a function for each, the errors it may raise, and seeds."""

from __future__ import annotations

import json
import socket
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from report_samples import recorded

from gpuemu_flow.config.load import check_config
from gpuemu_flow.lint.cubin import read_cubin
from gpuemu_flow.lint.ptx.parser import read_body, read_ptx
from gpuemu_flow.lint.toolchain import parse_nvdisasm_json, parse_ptxas_output
from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.errors import FlowError
from gpuemu_flow.model.types import Case, CheckResult, Failure, FailureKind
from gpuemu_flow.services.problems.gpumode import YamlError, read_yaml
from gpuemu_flow.store.baselines import Baseline, read_file
from gpuemu_flow.store.failures import FailureRecord
from gpuemu_flow.wire import WireError, parse
from gpuemu_flow.wire.tensors import decode_tensors
from gpuemu_flow.workers import script, tensors
from gpuemu_flow.workers.api import OpError
from gpuemu_flow.workers.attempt import MALFORMED, read_outcome
from gpuemu_flow.workers.channel import ChannelClosedError, ChannelJunkError, FrameReader
from gpuemu_flow.workers.checked import read_calls

CORPUS = Path(__file__).parent / "corpus" / "parsers"
REFUSALS = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""Of readers of our own records: whoever calls them takes these for a damaged record."""
LARGEST = 1 << 14


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes
    ----------
    read : callable
        Takes bytes; its result does not matter.
    refusals : tuple of exception types
        What it may raise of bytes that are wrong.
    seeds : tuple of bytes
        Some that are right.
    """

    read: Callable[[bytes], object]
    refusals: tuple[type[BaseException], ...]
    seeds: tuple[bytes, ...]

    def try_on(self, data: bytes) -> None:
        """Read some bytes; raise what no caller expects."""
        try:
            self.read(data)
        except self.refusals:
            pass


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="parsers-"))


def _config(data: bytes) -> object:
    path = _folder() / "gpuemu.toml"
    path.write_bytes(data)
    return check_config(path, environ={"HOME": str(_folder())})


def _ptx(data: bytes) -> object:
    found = read_ptx(data)
    return [read_body(function) for function in found.functions()]


def _message(data: bytes) -> object:
    message = parse(data)
    return decode_tensors(message.get("inputs"), "inputs")


def _frames(data: bytes) -> object:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data[:LARGEST])
        theirs.close()
        reader = FrameReader(ours)
        while True:
            reader.read()


def _answer(data: bytes) -> object:
    answer = json.loads(data)
    return read_outcome(answer, 0, 1, "calls"), read_calls(answer)


def _record(data: bytes) -> object:
    document = json.loads(data)
    for kind in (Case, CheckResult):
        try:
            convert(document, kind, strict=False)
        except REFUSALS:
            pass
    return convert(document, FailureRecord, strict=False)


def _baseline(data: bytes) -> object:
    path = _folder() / "some.baseline"
    path.write_bytes(data)
    return read_file(path)


_PTX = b""".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a, .param .u32 n)
.maxntid 128, 1, 1
{
  .reg .pred %p<2>; .reg .b32 %r<4>; .reg .f32 %f<3>; .reg .b64 %rd<4>;
  .shared .align 4 .b8 tile[512];
  ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x;
  setp.ge.s32 %p1, %r1, 7; @%p1 bra $L_end;
  cvta.to.global.u64 %rd2, %rd1; ld.global.f32 %f1, [%rd2+4];
  fma.rn.f32 %f2, %f1, 0f3F800000, %f1; st.global.f32 [%rd2], %f2;
$L_end:
  ret;
}
"""
_CONFIG = b"""[project]
name = "x"
[validation]
dtypes = ["float32"]
cases = 4
[sandbox]
writable = ["made"]
[[ops]]
name = "x"
op = "numpy:abs"
reference = "numpy:absolute"
input_names = ["x"]
depends = ["*.bin"]
shared = ["lib/*.py"]
env = ["SCALE", "MY_*"]
[ops.schema]
dims = { M = [1, 3], N = { min = 2, max = 40 } }
inputs = { x = ["M", "N"] }
output = { dims = ["M", "N"], dtype = "float32", tolerance = { atol = 1e-5, rtol = 0.1 } }
[[rules]]
name = "r"
outputs = ["made/a"]
command = ["cp", "a", "b"]
"""
_TENSOR = {"shape": [2], "dtype": "float32", "data": "AAAAAAAAgD8="}
_FRAME = b'{"type":"case"}'
_ANSWERED = {
    "type": "called-all", "serial": 1, "error": None,
    "items": [{
        "slots": {"y": [0, [2, 3], [12, 4], "float32"]},
        "violations": [plain(Failure(FailureKind.NON_DETERMINISTIC, "m"))],
        "seconds": 0.5, "printed": "p",
    }],
}  # fmt: skip
_SASS = json.dumps(
    [{"ELF": {"SM": {"major": 8, "minor": 0}}},
     [{"function-name": "k", "start": 0, "length": 16, "other-attributes": {},
       "sass-instructions": [{"opcode": "IADD3", "operands": "R1, R2"}]}]]
).encode()  # fmt: skip

_YAML = b"a: [1, 2]\nb: {c: 'd'}\ne: |\n  text\nf: 2020-01-01\n"
_BASELINE = json.dumps(
    plain(
        Baseline(
            tag="t", created="2026-01-01T00:00:00.000000Z", tool="1", environment={"python": "3"},
            kernels={"k": [{}]}, results={"op": {"f": {}}},
        )
    )
).encode()  # fmt: skip
_RECORDS = (json.dumps(plain(recorded("one"))).encode(),)

TARGETS = {
    "config": Target(_config, (FlowError,), (_CONFIG,)),
    "ptx": Target(_ptx, (), (_PTX,)),
    "cubin": Target(read_cubin, (), (b"\x7fELF\x02\x01\x01" + bytes(120),)),
    "sass": Target(parse_nvdisasm_json, (), (_SASS,)),
    "ptxas": Target(
        lambda data: parse_ptxas_output(data.decode("utf-8", "replace")),
        (),
        (b"ptxas info    : Compiling entry function 'k' for 'sm_80'\n"
         b"ptxas info    : Function properties for k\n    0 bytes stack frame, 4 bytes spill "
         b"stores, 0 bytes spill loads\nptxas info    : Used 32 registers, 368 bytes cmem[0]\n",),
    ),
    "message": Target(
        _message,
        (WireError,),
        (json.dumps({"type": "ValidateOp", "inputs": {"x": _TENSOR}}).encode(),),
    ),
    "frames": Target(
        _frames,
        (ChannelClosedError, ChannelJunkError),
        (struct.pack("<4sI", b"gfr1", len(_FRAME)) + _FRAME,),
    ),
    "answer": Target(_answer, (*MALFORMED, RecursionError), (json.dumps(_ANSWERED).encode(),)),
    "script": Target(
        lambda data: script.decode_response(data, ("y", "z")),
        (OpError,),
        (json.dumps({"outputs": {"y": _TENSOR, "z": _TENSOR}}).encode(),),
    ),
    "blob": Target(
        tensors.decode,
        (tensors.BlobError,),
        (tensors.encode({"y": np.ones((2, 3), np.float32), "z": np.ones(2, bool)}),),
    ),
    "yaml": Target(read_yaml, (YamlError,), (_YAML,)),
    "record": Target(_record, (*REFUSALS, RecursionError), _RECORDS),
    "baseline": Target(_baseline, (FlowError,), (_BASELINE,)),
}  # fmt: skip


def corpus(name: str) -> list[Path]:
    """Return the files of a target's corpus."""
    return sorted(path for path in (CORPUS / name).glob("*") if path.is_file())
