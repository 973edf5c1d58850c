"""Run compiled kernels (PTX) in the emulator, and report its findings as failures."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from gpuemu_flow.emulator.cases import launch_cases
from gpuemu_flow.emulator.described import (
    BufferText,
    DescribedLaunches,
    LaunchText,
    ScalarText,
    read_described,
)
from gpuemu_flow.emulator.findings import CheckFinding
from gpuemu_flow.emulator.launch import (
    Argument,
    BufferArgument,
    Kernel,
    PointerArgument,
    ScalarArgument,
    StructArgument,
    load_kernel,
)
from gpuemu_flow.emulator.layout import lay_out_members
from gpuemu_flow.lint.ptx.model import PlainPtx, plain_ptx
from gpuemu_flow.model.errors import FlowError
from gpuemu_flow.model.syntax import ExpressionError, compute, solve
from gpuemu_flow.model.types import CodePlace, Failure, FailureKind, KernelFinding
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.workers.api import MOST_PRINTED, OpError, Program, RunError, op_error
from gpuemu_flow.workers.callable import as_left
from gpuemu_flow.workers.channel import Watch
from gpuemu_flow.workers.tensors import name_outputs

# Run cases that reach a worker together, with one launch for all cases of equal shapes.


Inputs = Mapping[str, np.ndarray]
Outputs = dict[str, np.ndarray]
RunTogether = Callable[[Sequence[Inputs]], "list[Outputs] | None"]
_Key = tuple[tuple[str, str, tuple[int, ...], bytes], ...]

MAX_BYTES = 1 << 27
"""Maximum size of the inputs of cases that are run together."""


class Beforehand:
    """Cache of outputs of cases that were run before they were requested. Outputs are stored under
    the bytes of their inputs. Each output is returned only once, so that a repeated call is run
    again."""

    def __init__(self, run: RunTogether) -> None:
        self._run = run
        self._ready: dict[_Key, Outputs] = {}

    def expect(self, cases: Sequence[Inputs]) -> None:
        """Run the cases that can share a launch; leave the others to single calls."""
        self._ready = {}
        if sum(array.nbytes for inputs in cases for array in inputs.values()) > MAX_BYTES:
            return
        groups: dict[object, dict[_Key, Inputs]] = {}
        for inputs in cases:
            key = _key(inputs)
            groups.setdefault(tuple(part[:3] for part in key), {})[key] = inputs
        for group in groups.values():
            if len(group) < 2:
                continue
            found = self._run(list(group.values()))
            if found is not None:
                self._ready.update(zip(group, found, strict=True))

    def take(self, inputs: Inputs) -> Outputs | None:
        """Remove and return the stored outputs for some inputs; None if there are none."""
        return self._ready.pop(_key(inputs), None) if self._ready else None


def _key(inputs: Inputs) -> _Key:
    return tuple((n, str(a.dtype), a.shape, a.tobytes()) for n, a in inputs.items())


_SHORT = {"i": "int", "u": "uint", "f": "float"}
_KINDS = {
    "init": FailureKind.UNINITIALIZED_READ,
    "race": FailureKind.RACE,
    "sync": FailureKind.BARRIER,
    "trap": FailureKind.TRAP,
}


def failure_of(
    finding: CheckFinding, root: str, ptx: PlainPtx | None = None, ptx_file: str = ""
) -> Failure:
    """Convert a check's finding to a failure."""
    code_line = int if ptx is None else ptx.number

    def moved(place: CodePlace) -> CodePlace:
        if ptx_file and ptx is not None and not place.line:
            place = replace(place, file=ptx_file, line=ptx.line(place.code))
        return near(place, root, ptx_file)

    return kernel_failure(finding.typed(code_line).moved(moved))


def near(place: CodePlace, root: str, beside: str = "") -> CodePlace:
    """Return a place whose file is relative to the workspace if it lies inside, or `beside`."""
    prefix = root + "/"
    file = os.path.normpath(place.file) if place.file.startswith("/") else place.file  # nvcc's ..
    if beside and not file.startswith(prefix):
        other = Path(beside).parent / file.rpartition("/")[2]
        file = str(other) if other.is_file() else file
    return replace(place, file=file.removeprefix(prefix))


def kernel_failure(finding: KernelFinding) -> Failure:
    """Return the failure that a finding is."""
    kind = _KINDS.get(finding.check)
    if kind is None:
        writes = " writes " in f" {finding.message}"
        kind = FailureKind.OUT_OF_BOUNDS if writes else FailureKind.OUT_OF_BOUNDS_READ
        if finding.rule == "misaligned":
            kind = FailureKind.MISALIGNED
    return Failure.of_kernel(kind, finding)


class EmulatedRunner:
    """Launches the kernels of one PTX file as the configuration describes. Raises OpError:
    ``emulator-unsupported`` and the emulator's other slugs."""

    hint = ""

    def __init__(self, program: Program) -> None:
        self._program = program
        text, dims = program.argv
        described = read_described(json.loads(text), _ignore)
        if described is None:
            raise OpError(RunError("emulator-launch", "the launch cannot be read"))
        self._described: DescribedLaunches = described
        self._dims: dict[str, list[str | int]] = json.loads(dims)
        self._found: list[Failure] = []
        self.printed = ""
        self._beforehand = Beforehand(self._run_together)
        path = Path(program.path)
        try:
            data = self._data = path.read_bytes()
        except OSError as error:
            message = f"{path.name} cannot be read: {error.strerror}"
            raise OpError(RunError("emulator-no-file", message, file=program.path)) from None
        try:
            self._kernels = [
                load_kernel(data, program.path, launch.entry) for launch in described.launches
            ]
        except FlowError as error:
            raise op_error(error) from None

    def call(self, inputs: Inputs, watch: Watch) -> dict[str, np.ndarray]:
        """Launch the kernels and return the outputs by name. Raises OpError: The launch is
        impossible for these inputs, or the emulator fails, for example because a kernel does not
        end."""
        self._found, self.printed = [], ""
        try:
            with watch:
                ready = self._beforehand.take(inputs)
                return self._run(inputs) if ready is None else ready
        except ExpressionError as error:
            raise OpError(RunError("emulator-launch", str(error))) from None
        except FlowError as error:
            raise op_error(error) from None

    def expect(self, cases: Sequence[Inputs]) -> None:
        """Run those of the given cases that can share a launch, and keep their outputs. A later
        call for one of these cases returns the outputs that were kept."""
        self._beforehand.expect(cases)

    def violations(self) -> Sequence[Failure]:
        """Return the findings of the checks in the latest call."""
        return self._found

    def _run(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """Launch the kernels, and return the outputs by name."""
        shapes = {name: tuple(array.shape) for name, array in inputs.items()}
        names = {**self._sizes(shapes), **self._numbers(inputs)}
        buffers = self._buffers(inputs, names, shapes)
        for launch, kernel in zip(self._described.launches, self._kernels, strict=True):
            self._launch(kernel, launch, names, shapes, buffers)
        named = self._outputs(buffers)
        left = {name: buffers[name].data for name in self._program.leaves}
        named.update(as_left(left, named))
        for name, array in inputs.items():
            after = buffers[name].data
            if after.tobytes() != np.ascontiguousarray(array).tobytes():
                self._write_back(name, array, after)
        return named

    def _run_together(self, cases: Sequence[Inputs]) -> list[dict[str, np.ndarray]] | None:
        """Run cases of equal shapes together, kernel by kernel; return None if impossible."""
        if self._described.backend == "c":
            return None
        shapes = {name: tuple(array.shape) for name, array in cases[0].items()}
        try:
            names = self._sizes(shapes)
            all_buffers = [self._buffers(inputs, names, shapes) for inputs in cases]
            for launch, kernel in zip(self._described.launches, self._kernels, strict=True):
                if not self._launch_together(kernel, launch, names, shapes, all_buffers):
                    return None
        except (ExpressionError, FlowError):  # the single calls will report the error
            return None
        for inputs, buffers in zip(cases, all_buffers, strict=True):
            for name, array in inputs.items():
                if buffers[name].data.tobytes() != np.ascontiguousarray(array).tobytes():
                    return None
        return [self._outputs(buffers) for buffers in all_buffers]

    def _launch_together(
        self, kernel: Kernel, launch: Any, names: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...]], all_buffers: list[dict[str, BufferArgument]],
    ) -> bool:  # fmt: skip
        grid = [compute(t, names, shapes) for t in launch.grid]
        block = [compute(t, names, shapes) for t in launch.block]
        if launch.cluster:  # blocks of a cluster may wait for each other
            return False
        made = [self._arguments(launch, names, shapes, buffers) for buffers in all_buffers]
        lists, taken = [arguments for arguments, _ in made], made[0][1]
        found = launch_cases(
            kernel, grid, block, lists, shared=compute(launch.shared, names, shapes),
            checks=self._described.checks,
        )  # fmt: skip
        if found is None:
            return False
        for buffers, after in zip(all_buffers, found, strict=True):
            _take(taken, after, buffers)
        return True

    def _outputs(self, buffers: Mapping[str, BufferArgument]) -> dict[str, np.ndarray]:
        outputs = {made.name: buffers[made.name].data for made in self._described.outputs}
        only = next(iter(outputs.values())) if len(outputs) == 1 else outputs
        return name_outputs(only, self._program.output_names)

    def _buffers(
        self, inputs: Inputs, names: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, BufferArgument]:
        described = self._described
        buffers: dict[str, BufferArgument] = {}
        for name, array in inputs.items():
            buffers[name] = BufferArgument(np.ascontiguousarray(array), name=name)
        default = next(iter(inputs.values())).dtype
        for made in (*described.outputs, *described.scratch):
            if made.name not in buffers:
                buffers[made.name] = _buffer(made, names, shapes, default)
        return buffers

    def _numbers(self, inputs: Inputs) -> dict[str, int]:
        """Return the inputs that are integers; the description of a launch may use their names."""
        found = {name: v for name, v in inputs.items() if name in self._program.scalars}
        return {name: int(v.item()) for name, v in found.items() if v.dtype.kind in "iub"}

    def _sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Return the sizes of the schema's dims, found from the shapes of the inputs."""
        names: dict[str, int] = {}
        texts: list[tuple[str, int]] = []
        for tensor, dims in self._dims.items():
            for dim, extent in zip(dims, shapes.get(tensor, ()), strict=False):
                if isinstance(dim, str) and dim.isidentifier():
                    names.setdefault(dim, extent)
                elif isinstance(dim, str):
                    texts.append((dim, extent))
        return names | solve(texts, names)

    def _launch(
        self, kernel: Kernel, launch: Any, names: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...]], buffers: dict[str, BufferArgument],
    ) -> None:  # fmt: skip
        grid = [compute(t, names, shapes) for t in launch.grid]
        block = [compute(t, names, shapes) for t in launch.block]
        if 0 in grid:  # nothing to do, as for a launch over an empty tensor in host code
            return
        arguments, taken = self._arguments(launch, names, shapes, buffers)
        result = kernel.launch(
            grid, block, arguments, shared=compute(launch.shared, names, shapes),
            checks=self._described.checks, backend=self._described.backend,
            cluster=[compute(t, names, shapes) for t in launch.cluster],
        )  # fmt: skip
        self.printed = (self.printed + result.printed)[:MOST_PRINTED]
        if result.findings:
            program, ptx = self._program, plain_ptx(self._data)
            own = program.path if program.kind == "ptx" else ""
            found = [self._doubted(finding, buffers) for finding in result.findings]
            self._found += [failure_of(f, program.root, ptx, own) for f in found]
        _take(taken, result.buffers, buffers)

    def _doubted(
        self, finding: CheckFinding, buffers: Mapping[str, BufferArgument]
    ) -> CheckFinding:
        """Say that nobody declared the dtype of an output that wider accesses leave."""
        for made in self._described.outputs:
            dtype = buffers[made.name].data.dtype
            access = re.search(rf" (\d+) bytes at (?:.* )?{re.escape(made.name)}\[", finding.words)
            wider = access is not None and int(access[1]) > dtype.itemsize
            if wider and finding.rule == "out-of-bounds" and not made.dtype:
                doubt = f" ({made.name} has the dtype of the first input, {dtype}: if the kernel "
                doubt += f"writes another, say it, {made.name} = {{ dims = [...], dtype = ... }})"
                return replace(finding, words=finding.words + doubt)
        return finding

    def _arguments(
        self, launch: LaunchText, names: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...]], buffers: Mapping[str, BufferArgument],
    ) -> tuple[list[Argument], list[str]]:  # fmt: skip
        """Return a launch's arguments, and for each the name of its buffer, or an empty string."""

        def buffer(name: str) -> BufferArgument:
            if name not in buffers:
                what = "args and symbols name"
                raise ExpressionError(f"{what} {name!r}, which is no input, output or scratch")
            return buffers[name]

        arguments: list[Argument] = []
        taken = [text if isinstance(text, str) else "" for text in launch.arguments]
        beside: list[Argument] = []
        for number, text in enumerate(launch.arguments):
            if isinstance(text, ScalarText):
                arguments.append(_scalar(text, names, shapes))
            elif isinstance(text, str):
                first = taken.index(text)
                is_again = first < number
                arguments.append(PointerArgument(first, 0) if is_again else buffer(text))
            else:
                data, offsets = lay_out_members([
                    bytes(8) if isinstance(m, str) else _scalar(m, names, shapes).data
                    for m in text.members
                ])  # fmt: skip
                pointers = []
                for member, offset in zip(text.members, offsets, strict=True):
                    if not isinstance(member, str):
                        continue
                    if member not in taken:
                        taken.append(member)
                        beside.append(replace(buffer(member), beside=True))
                    pointers.append((offset, taken.index(member)))
                arguments.append(StructArgument(data, tuple(pointers)))
        for symbol, name in launch.symbols:
            taken.append(name)
            beside.append(replace(buffer(name), beside=True, symbol=symbol))
        return [*arguments, *beside], taken

    def _write_back(self, name: str, array: np.ndarray, after: np.ndarray) -> None:
        if array.flags.writeable:
            array[...] = after
        else:
            message = f"the kernel changed its input {name!r}"
            self._found.append(Failure(FailureKind.INPUT_MODIFIED, message, name))


def _take(
    taken: Sequence[str], after: Sequence[np.ndarray | None], buffers: dict[str, BufferArgument]
) -> None:
    """Replace the content of the buffers by the result of a launch."""
    for name, data in zip(taken, after, strict=True):
        if name and data is not None:
            buffers[name] = BufferArgument(data, name=name)


def _ignore(where: tuple[str, ...], text: str, hint: str) -> None:
    """Ignore a fault in a launch, since it was reported when the configuration was read."""


def _buffer(
    made: BufferText, names: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]],
    default: np.dtype[Any],
) -> BufferArgument:  # fmt: skip
    shape = tuple(compute(text, names, shapes) for text in made.dims)
    if any(extent < 0 for extent in shape):
        raise ExpressionError(f"{made.name} has the shape {shape}")
    dtype = numpy_dtype(made.dtype) if made.dtype else default
    return BufferArgument(np.zeros(shape, dtype), made.fill == "zero", made.name)


def _scalar(
    text: ScalarText, names: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
) -> ScalarArgument:
    dtype = np.dtype(_SHORT[text.type[0]] + text.type[1:])
    value = text.value if isinstance(text.value, float) else compute(text.value, names, shapes)
    if dtype.kind == "f":
        return ScalarArgument(np.array(value).astype(dtype).tobytes())
    limits = np.iinfo(dtype)
    if not limits.min <= int(value) <= limits.max:
        raise ExpressionError(f"{text.value!r} is {value}, which does not fit into {text.type}")
    return ScalarArgument(np.array(int(value)).astype(dtype).tobytes())
