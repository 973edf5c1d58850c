"""Export a recorded failure as a test file, which needs only numpy, the op and a tensor file."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from gpuemu_flow.errors import Problem, UsageError
from gpuemu_flow.in_place import with_changed_inputs
from gpuemu_flow.numerics.dtypes import ML_DTYPES_NAMES, dtype_name
from gpuemu_flow.numerics.layouts import describe, place, sentinel
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.reports import pytest_template as template
from gpuemu_flow.reports.export_outputs import Array, Arrays, Expectation, ExpectedOutputs
from gpuemu_flow.reports.python_source import PythonSource, literal
from gpuemu_flow.runners import blobs
from gpuemu_flow.runners.api import DEFAULT_OUTPUT, Program
from gpuemu_flow.runners.arguments import pinned
from gpuemu_flow.runners.codec import kwarg_text
from gpuemu_flow.runners.script_style import function_to_call
from gpuemu_flow.store.atomic import write_atomic
from gpuemu_flow.store.failures import FailureRecord
from gpuemu_flow.store.keys import digest_bytes
from gpuemu_flow.types import DTYPE_ALIASES, FailureKind, Json, number_to_json

__all__ = ["Expectation", "PytestExport", "render"]

START_SECONDS = 30.0  # for an interpreter to start and load the op, besides the op's own time
MANY_REPEATS, FEW_REPEATS = 20, 8  # calls; interpreters to start
_LUCKY = (FailureKind.NON_DETERMINISTIC.value, FailureKind.UNWRITTEN.value)
_ID = re.compile(r"[0-9a-f]{6,64}")
_TAGS = {
    "F16": "float16", "F32": "float32", "F64": "float64", "I8": "int8", "I16": "int16",
    "I32": "int32", "I64": "int64", "U8": "uint8", "U16": "uint16", "U32": "uint32",
    "U64": "uint64", "BOOL": "bool", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}  # fmt: skip


@dataclass(frozen=True)
class PytestExport:
    """An exported test: the test file and its tensor file.

    Attributes
    ----------
    file_name, text : str
        The test.
    tensors_name : str
    tensors : bytes
        The test's data: inputs, expected values, tolerances.
    """

    file_name: str
    text: str
    tensors_name: str
    tensors: bytes

    def write(self, folder: Path) -> Path:
        """Write the test file and its tensor file, and return the path of the test file.

        Raises
        ------
        StoreError
            The folder cannot be written to.
        """
        write_atomic(folder / self.tensors_name, self.tensors)
        write_atomic(folder / self.file_name, self.text.encode("ascii"))
        return folder / self.file_name


def render(
    record: FailureRecord,
    program: Program,
    inputs: Arrays,
    expectation: Expectation,
    *,
    folder: Path,
    file_name: str = "",
) -> PytestExport:
    """Return the test file of a failure, with its tensors.

    The test loads the op from its present path. If `folder` is inside the workspace, the test's
    paths into the workspace are relative, so that it can be committed with the workspace.

    Parameters
    ----------
    record : FailureRecord
        The failure, with the memory layouts of the inputs.
    program : Program
        The op.
    inputs : mapping of str to ndarray
        The exact values, in the op's order.
    expectation : Expectation
    folder : Path
        Folder to which the files will be written.
    file_name : str
        Name of the test file; ``test_repro_<id>.py`` by default. The tensor file has the same stem.

    Raises
    ------
    UsageError
        ``export-no-reference``: the reference failed, or there is nothing to compare the outputs
        with. ``export-value``: a keyword argument cannot be written as a literal.
        ``export-triton``: the op is a host function of Triton kernels, which cannot run without
        this package. ``export-framework``: the op takes a framework's tensors, or several tensors
        in one argument. ``export-compiled``: the op is a compiled kernel.
    """
    _refuse_without_reference(record, expectation)
    if program.kind == "triton":
        message = f"{program.function} launches Triton kernels, which need our interpreter to run"
        hint = "write a test with gpuemu_flow.frameworks.triton.load"
        raise UsageError(Problem("export-triton", message, hint))
    if program.kind in ("torch", "jax") or program.groups:
        what = "joins several tensors in one argument" if program.groups else "takes tensors"
        message = f"{program.function} {what}, which our runner makes"
        hint = "mark a test with pytest.mark.gpuemu, which gets such inputs: see docs/pytest.md"
        raise UsageError(Problem("export-framework", message, hint))
    if program.kind == "ptx":
        message = f"{Path(program.path).name} is a compiled kernel, which needs our emulator to run"
        hint = "run it with `gpuemu-flow emulate`, or `gpuemu-flow reproduce`"
        raise UsageError(Problem("export-compiled", message, hint))
    usable = _ID.fullmatch(record.id) is not None
    name = record.id if usable else digest_bytes(ascii(record.id).encode())[:12]
    file_name = file_name or f"test_repro_{name}.py"
    tensors_name = f"{Path(file_name).stem}.safetensors"
    test = _Test(record, program, inputs, expectation, Path(folder).absolute())
    try:
        text = test.text(f"test_repro_{name}", tensors_name)
    except TypeError as error:
        raise UsageError(Problem("export-value", str(error), "check the op's kwargs")) from None
    return PytestExport(file_name, text, tensors_name, blobs.encode(test.tensors))


def _refuse_without_reference(record: FailureRecord, expectation: Expectation) -> None:
    if record.kind == FailureKind.GENERATOR.value:
        message = f"in failure {record.id} an input could not be made, so that the op never ran"
        raise UsageError(Problem("export-no-reference", message, "fix the function of the input"))
    if record.kind == FailureKind.REFERENCE.value:
        message = f"in failure {record.id} it was the reference that failed, not the op"
        raise UsageError(Problem("export-no-reference", message, "fix the reference first"))
    if not expectation.expected and record.kind != FailureKind.EXECUTION.value:
        message = f"the reference gives no values for failure {record.id}"
        raise UsageError(Problem("export-no-reference", message, "run `gpuemu-flow reproduce`"))


class _Test:
    """Collects the constants and the tensors of one test."""

    def __init__(
        self,
        record: FailureRecord,
        program: Program,
        inputs: Arrays,
        expectation: Expectation,
        folder: Path,
    ) -> None:
        self._record = record
        # The test passes this case's scalars as keyword arguments.
        program, inputs = pinned(program, inputs)
        self._program = program
        self._inputs = inputs
        self._folder = folder
        self._function = _function_of(program)
        self._expected = ExpectedOutputs(expectation, inputs)
        self.tensors: dict[str, Array] = dict(self._expected.tensors)

    def text(self, test: str, tensors_name: str) -> str:
        """Return the whole file."""
        in_process = bool(self._function)
        body = self._callable_parts(test) if in_process else self._script_parts(test)
        constants = {
            "HERE": PythonSource("os.path.dirname(os.path.abspath(__file__))"),
            "TENSORS": tensors_name,
            "FAILURE": self._facts(),
            "ROOT": self._root(),
            **(self._callable_constants() if in_process else self._script_constants()),
            "OUTPUTS": self._outputs(),
            "REPEATS": self._repeats(),
            "EXPECTED": self._expected.outputs,
            "PASSED": "the case passes",
        }
        assigned = [f"{name} = {literal(value)}" for name, value in constants.items()]
        extended = self._extended()
        needs = "numpy, ml_dtypes" if extended else "numpy"
        used = {dtype_name(array.dtype) for array in self.tensors.values()}
        extra = {name: PythonSource(f"np.dtype(ml_dtypes.{name})") for name in extended}
        types = {
            tag: extra.get(name, PythonSource(f"np.dtype({name!r})"))
            for tag, name in _TAGS.items()
            if name in used
        }
        assigned += [f"DTYPES = {literal(types)}", f"EXTENDED = {literal(extra)}"]
        head = template.HEAD.format(needs=needs)
        imports = _imports("\n".join(body), extended)
        return (
            "\n\n".join((head + "\n" + imports, "\n".join(assigned) + "\n", *body)).rstrip() + "\n"
        )

    def _repeats(self) -> int:
        """Return how often the test repeats the first call, to compare the outputs bit by bit.

        The number is larger if the failure is of a kind that not every call shows. It is 0 for an
        op that is declared as not deterministic, since its outputs may differ.
        """
        if not self._program.deterministic:
            return 0
        if self._record.kind in _LUCKY:
            return MANY_REPEATS if self._function else FEW_REPEATS
        return 1

    def _facts(self) -> dict[str, Json]:
        """Return facts about the failure, for people who read the test."""
        record = self._record
        return {
            "op": record.op,
            "seed": record.seed,
            "dtype": record.dtype,
            "shapes": {name: list(array.shape) for name, array in self._inputs.items()},
            "layout": record.layout,
            "strategy": record.strategy,
            "kind": record.kind,
            "message": record.message,
            "index": None if record.index is None else list(record.index),
            "expected": number_to_json(record.expected),
            "actual": number_to_json(record.actual),
            "reproduce": record.reproduce,
        }

    def _root(self) -> PythonSource:
        root = Path(self._program.root)
        if self._folder.is_relative_to(root):
            relative = os.path.relpath(root, self._folder)
            return PythonSource(f"os.path.normpath(os.path.join(HERE, {literal(relative)}))")
        return PythonSource(literal(str(root)))

    def _path(self, path: str) -> PythonSource:
        """Return Python source for a path, relative to ``ROOT`` if it is inside the workspace."""
        if path and Path(path).is_relative_to(self._program.root):
            relative = Path(path).relative_to(self._program.root).as_posix()
            return PythonSource(f"os.path.join(ROOT, {literal(relative)})")
        return PythonSource(literal(path))

    def _extended(self) -> list[str]:
        """Return the dtypes of inputs and outputs that numpy itself lacks."""
        used = {dtype_name(array.dtype) or "" for array in self.tensors.values()}
        used |= {name for output in self._expected.outputs.values() for name in output["dtypes"]}
        used |= {dtype_name(array.dtype) or "" for array in self._inputs.values()}
        return [name for name in ML_DTYPES_NAMES if name in used]

    def _callable_constants(self) -> dict[str, Json]:
        program = self._program
        folder = [self._path(str(Path(program.path).parent))] if program.path else []
        inputs = {}
        for number, (name, values) in enumerate(self._inputs.items()):
            layout = self._record.layouts.get(name, "contiguous")
            where = place(layout, values.shape, values.dtype.itemsize, guarded=True)
            inputs[name] = {
                "tensor": self._keep(f"input_{number}", values),
                "offset": where.offset,
                "strides": list(where.strides),
                "nbytes": where.nbytes,
                "writable": where.writable,
                "fill": sentinel(values.dtype).hex(),
            }
        where_it_lies = (
            {"PROGRAM": self._path(program.path)} if program.path else {"MODULE": program.module}
        )
        return {
            **where_it_lies,
            "FUNCTION": self._function,
            "PATHS": [*folder, PythonSource("ROOT")],
            "KWARGS": dict(program.kwargs),
            "ENVIRONMENT": dict(program.env),
            **self._process_constants(),
            "SEED": self._record.seed,
            "MUTATES": list(program.mutates),
            **self._in_place(),
            "INPUTS": inputs,
        }

    def _in_place(self) -> dict[str, Json]:
        """Return two constants of the test.

        ``IN_PLACE`` maps each output to the input that holds it if the op returns None.
        ``RETURNED`` lists the outputs that the op returns if it returns a value.
        """
        names, mutates = self._outputs(), self._program.mutates
        own = {name: name for name in self._inputs}
        held = with_changed_inputs(None, own, names, mutates)
        rest = [name for name in names if name not in mutates]
        return {"IN_PLACE": held or {}, "RETURNED": rest or names}

    def _outputs(self) -> list[str]:
        return list(self._program.output_names) or [DEFAULT_OUTPUT]

    @property
    def _own_process(self) -> bool:
        """Tell whether the test of a callable op runs the op in a separate process."""
        return self._record.kind == FailureKind.EXECUTION.value or bool(self._program.python)

    def _process_constants(self) -> dict[str, Json]:
        program = self._program
        if not self._own_process:
            return {}
        limit = {} if program.memory_limit is None else {"MEMORY_LIMIT": program.memory_limit}
        # Three calls: one before the judged call, the judged one, and a repetition of it.
        seconds = 3 * program.timeout + START_SECONDS
        return {"PYTHON": program.python, "TIMEOUT": seconds, **limit}

    def _script_constants(self) -> dict[str, Json]:
        program = self._program
        path = self._path(program.path)
        command: list[Json] = [path, *program.argv]
        environment: dict[str, Json] = {}
        if program.kind == "script":
            own = PythonSource(literal(program.python) if program.python else "sys.executable")
            command.insert(0, own)
            paths = 'filter(None, (ROOT, os.environ.get("PYTHONPATH")))'
            environment["PYTHONPATH"] = PythonSource(f"os.pathsep.join({paths})")
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        inputs = {
            name: {
                "tensor": self._keep(f"input_{number}", values),
                "strides": list(
                    describe(self._record.layouts.get(name, "contiguous"), values.shape)
                ),
            }
            for number, (name, values) in enumerate(self._inputs.items())
        }
        return {
            "COMMAND": command,
            "KWARGS": {name: kwarg_text(value) for name, value in program.kwargs.items()},
            "ENVIRONMENT": {**environment, **program.env},
            "TIMEOUT": program.timeout + START_SECONDS,
            "ALIASES": DTYPE_ALIASES,
            "INPUTS": inputs,
        }

    def _callable_parts(self, test: str) -> list[str]:
        ending = template.TEST_DIRECT.format(test=test)
        if self._own_process:
            limit = "" if self._program.memory_limit is None else template.MEMORY_LIMIT
            ending = template.TEST_CHILD.format(test=test, limit=limit)
        return [
            template.READ_TENSORS,
            template.LAY_OUT,
            template.LOAD_FILE if self._program.path else template.LOAD_MODULE,
            template.CALL,
            *self._expected.comparison(),
            template.CHECK_CALLABLE,
            ending,
        ]

    def _script_parts(self, test: str) -> list[str]:
        return [
            template.READ_TENSORS,
            template.RUN_SCRIPT,
            *self._expected.comparison(),
            template.CHECK_SCRIPT,
            template.TEST_DIRECT.format(test=test),
        ]

    def _keep(self, name: str, values: Array) -> str:
        self.tensors[name] = values
        return name


def _function_of(program: Program) -> str:
    """Return the name of the function that the runner would call; empty for protocol programs."""
    if program.kind in ("callable", "numpy"):
        return program.function
    if program.kind != "script":
        return ""
    try:
        return function_to_call(Path(program.path).read_bytes(), program.path)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ""  # the test then fails with the interpreter's own words


def _imports(code: str, extended: Sequence[str]) -> str:
    """Return the import lines of the modules that the code uses."""
    wanted = [name for name in _STANDARD if re.search(rf"(?<![\w.]){name}\.\w", code)]
    names = sorted({*wanted, "os", "sys"})
    third_party = ["ml_dtypes"] if extended else []
    return "\n".join(
        [f"import {name}" for name in names]
        + [""]
        + [f"import {name}" for name in third_party]
        + ["import numpy as np"]
    )


_STANDARD = (
    "base64", "ctypes", "importlib", "inspect", "json", "random", "resource", "subprocess", "types",
)  # fmt: skip
