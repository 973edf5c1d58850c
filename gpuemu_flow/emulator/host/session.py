"""One process's device: takes the requests of its libcudart, launches kernels, keeps findings."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from gpuemu_flow.emulator.clusters import check_dimensions, size_of
from gpuemu_flow.emulator.decode import decode_program, is_cuda_header
from gpuemu_flow.emulator.described import DEFAULT_CHECKS
from gpuemu_flow.emulator.effects.checking import items_of
from gpuemu_flow.emulator.errors import BudgetError, LaunchError
from gpuemu_flow.emulator.findings import plain_function
from gpuemu_flow.emulator.global_races import MoreWrittenError
from gpuemu_flow.emulator.host.arena import HOST_VISIBLE, DeviceArena, DeviceBlock
from gpuemu_flow.emulator.host.fatbin import link, read_image
from gpuemu_flow.emulator.host.places import Places
from gpuemu_flow.emulator.ir import GlobalVariable, KernelProgram
from gpuemu_flow.emulator.launch import DEFAULT_BUDGET, Kernel, choose_entry, read_entries
from gpuemu_flow.emulator.layout import initial_value
from gpuemu_flow.emulator.memory import GLOBAL_BASE, READ_ONLY, WRITTEN
from gpuemu_flow.emulator.mutants import PtxFolder, kernel_alone
from gpuemu_flow.emulator.native.backend import LARGE
from gpuemu_flow.emulator.state import KernelLaunch
from gpuemu_flow.emulator.types import SIZES
from gpuemu_flow.model.errors import FlowError, Problem
from gpuemu_flow.model.types import CodePlace, KernelFinding

_PARAMETERS, _PARAMETER_ROOM = 4096, 32768
_WORKSPACE, _WORKSPACE_ROOM = 40960, 4096
"""Offsets of what the emulator keeps in the device's memory, below the host's allocations."""

_INVALID_CONFIGURATION, _TIMEOUT, _ASSERT, _FAILED, _NOT_SUPPORTED = 9, 702, 710, 719, 801
SLOW = 500_000_000
"""Work of a launch, in thread instructions, from which on numpy only describes findings."""

LAUNCH_WORK = LARGE // 150
"""What a launch by numpy costs beyond its work: after 150 small launches, C pays, too."""

NEAR = 16
"""Blocks before and after the one with a mistake whose findings numpy describes."""

MAX_SHOWN = 50
"""Most findings that are shown as they come; the rest is counted, and in the report."""


class Options(msgspec.Struct, frozen=True):
    """What a user asks of `exec`."""

    checks: tuple[str, ...] = DEFAULT_CHECKS
    backend: str = "auto"
    budget: int = DEFAULT_BUDGET
    leaks: bool = False
    quiet: bool = False
    arch: int = 80
    planted: str = ""


class KernelUse(msgspec.Struct):
    """How often a kernel was launched, and what that cost."""

    launches: int = 0
    repeated: int = 0
    instructions: int = 0
    backends: dict[str, int] = msgspec.field(default_factory=dict)
    note: str = ""


class HostReport(msgspec.Struct):
    """What was found in one process."""

    findings: list[KernelFinding] = msgspec.field(default_factory=list)
    problems: list[str] = msgspec.field(default_factory=list)
    kernels: dict[str, KernelUse] = msgspec.field(default_factory=dict)

    def add(self, other: HostReport) -> None:
        self.findings += other.findings
        self.problems += [p for p in other.problems if p not in self.problems]
        for name, use in other.kernels.items():
            mine = self.kernels.setdefault(name, KernelUse())
            mine.launches += use.launches
            mine.repeated += use.repeated
            mine.instructions += use.instructions
            mine.note = mine.note or use.note
            for backend, count in use.backends.items():
                mine.backends[backend] = mine.backends.get(backend, 0) + count


class _Loaded:
    """One module: its kernels, and the addresses of its variables."""

    def __init__(self, text: bytes, file: str) -> None:
        self.entries = {e.name: e for e in read_entries(text, file)}
        self.kernels: dict[str, Kernel] = {}
        self.addresses: dict[str, int] = {}
        module = next(iter(self.entries.values())).module
        self.items: dict[str, int] = {}
        self.variables: dict[str, GlobalVariable] = {}
        found = [v for v in module.variables if v.space in ("global", "const") and not v.external]
        numbers = {v.name: n for n, v in enumerate(found)}
        for variable in found:
            self.items[variable.name] = variable.align or 1
            try:
                self.variables[variable.name] = initial_value(variable, module, numbers)
            except FlowError:  # matters only to kernels that use the variable, which say so
                continue

    def kernel(self, name: str) -> Kernel:
        if name not in self.kernels:
            self.kernels[name] = Kernel(decode_program(self.entries[name]))
        return self.kernels[name]


class Session:
    """The emulator's side of one process that uses the device."""

    def __init__(
        self, connection: socket.socket, memfd: int, pid: int, size: int, options: Options
    ) -> None:
        self._connection = connection
        self._options = options
        self._checks = frozenset(options.checks)
        self._planted = PtxFolder(Path(options.planted) if options.planted else None)
        self._places = Places(pid)
        self._arena = DeviceArena(memfd, size, self._places)
        self._modules: dict[int, _Loaded | str] = {}
        self._found: dict[tuple[Any, ...], KernelFinding] = {}
        self._work: dict[tuple[int, str], int] = {}
        self._vain: dict[tuple[int, str], int] = {}
        self._steady: dict[tuple[Any, ...], tuple[int, int, bytes]] = {}
        self._changes = 0
        self._epoch = 0
        self._shown = 0
        self.report = HostReport()
        for start, room, name in (
            (_PARAMETERS, _PARAMETER_ROOM, "the parameters"),
            (_WORKSPACE, _WORKSPACE_ROOM, "the barrier of the grid"),
        ):
            self._arena.add(start, room, 1 if start == _PARAMETERS else 4, name, ())
            self._arena.buffers[-1].given = name
        self._arena.write(_WORKSPACE, bytes(_WORKSPACE_ROOM), WRITTEN)

    def serve(self) -> HostReport:
        answers = {
            "module": self._on_module, "bind": self._on_bind, "entry": self._on_entry,
            "launch": self._on_launch, "bye": self._on_bye, "sync": lambda *_: b"ok",
            "report": self._on_report,
        }  # fmt: skip
        notes = {
            "allocate": self._on_allocate, "free": self._on_free, "name": self._on_name,
            "share": self._on_share, "finding": self._on_finding, "unwritten": self._on_unwritten,
            "unsupported": self._on_unsupported, "source": self._on_source,
            "problem": self._on_problem,
        }  # fmt: skip
        for message in self._messages():
            head, _, rest = message.partition(b"\n")
            kind, *words = head.decode(errors="replace").split(" ")
            if kind in notes:
                self._changes += kind in ("allocate", "free")
                notes[kind](words, rest)
                continue
            reply = answers[kind](words, rest)
            try:
                self._connection.sendall(struct.pack("<Q", len(reply)) + reply)
            except OSError:
                break
            if kind == "bye":
                break
        self.report.findings = list(self._found.values())
        return self.report

    def _messages(self) -> Iterator[bytes]:
        stream = self._connection.makefile("rb", buffering=1 << 20)
        while len(head := stream.read(8)) == 8:
            (size,) = struct.unpack("<Q", head)
            message = stream.read(size)
            if len(message) != size:
                return
            yield message

    # ---------------------------------------------------------------- notes
    def _on_allocate(self, words: list[str], _rest: bytes) -> None:
        start, size, flags = map(int, words[:3])
        self._arena.add(start, size, flags, words[3], tuple(map(int, words[4:])))

    def _on_free(self, words: list[str], _rest: bytes) -> None:
        self._arena.remove(int(words[0]), tuple(map(int, words[1:])))

    def _on_share(self, words: list[str], _rest: bytes) -> None:
        block = self._arena.at(int(words[0]))
        if block is not None:
            block.flags |= HOST_VISIBLE

    def _on_name(self, words: list[str], _rest: bytes) -> None:
        block = self._arena.at(int(words[0]))
        if block is not None:
            block.given, block.given_item = " ".join(words[2:]), int(words[1])

    def _on_problem(self, _words: list[str], rest: bytes) -> None:
        self._complain(rest.decode(errors="replace"))

    def _on_source(self, words: list[str], rest: bytes) -> None:
        file, _, line = rest.decode(errors="replace").rpartition(":")
        self._places.sources[words[0]] = CodePlace(file, int(line))

    def _on_finding(self, words: list[str], rest: bytes) -> None:
        if words[0] not in self._checks:
            return
        if words[2].startswith("@"):
            file, _, line = words[2][1:].replace("\1", " ").rpartition(":")
            place = CodePlace(file, int(line))
        else:
            place = self._places.of(tuple(map(int, words[2:])))
        self._add(KernelFinding(
            words[0], words[1], "", "", self._named(rest.decode(errors="replace")), place, None,
            (0, 0, 0), (0, 0, 0), 1,
        ))  # fmt: skip

    def _on_unwritten(self, words: list[str], rest: bytes) -> None:
        if not self._arena.is_padding(int(words[0]), int(words[1])):
            self._on_finding(["init", "never-written", *words[2:]], rest)

    def _named(self, text: str) -> str:
        out, at = [], 0
        while at < len(text):
            opened = text.find("{", at)
            shut = text.find("<", at)
            first = min(x for x in (opened, shut, len(text)) if x >= 0)
            out.append(text[at:first])
            if first == len(text):
                break
            end = text.find("}" if text[first] == "{" else ">", first)
            digits = text[first + 1 : end]
            if not digits.isdigit():
                out.append(text[first])
                at = first + 1
                continue
            if text[first] == "<":
                out.append(self._arena.freed(int(digits)))
            else:
                block = self._arena.at(int(digits))
                out.append(_full_name(block) if block is not None else "memory")
            at = end + 1
        return "".join(out)

    def _on_unsupported(self, words: list[str], _rest: bytes) -> None:
        place = self._places.of(tuple(int(w) for w in words if w.isdigit()))
        name = " ".join(w for w in words if not w.isdigit())
        where = f"{place}: " if place.line else ""
        self._complain(f"{where}{name} is not supported: it returns error 801")

    # ---------------------------------------------------------------- modules
    def _on_module(self, words: list[str], images: bytes) -> bytes:
        number, at, texts = int(words[0]), 0, []
        try:
            for size in map(int, words[1:]):
                texts.append(read_image(images[at : at + size], self._options.arch))
                at += size
            made = _Loaded(link(texts), f"module {number}")
        except FlowError as error:
            self._modules[number] = _one_line(error)
            self._complain(_one_line(error))
            return b"problem"
        self._modules[number] = made
        return b"ok\n" + self._unbound(made, made.variables.values())

    def _unbound(self, module: _Loaded, variables: Sequence[GlobalVariable] | Any) -> bytes:
        lines = [
            f"variable {v.name} {v.size} {int(v.constant)}\n"
            for v in variables
            if v.name not in module.addresses and v.size
        ]
        return "".join(lines).encode()

    def _on_bind(self, words: list[str], rest: bytes) -> bytes:
        module = self._modules[int(words[0])]
        assert isinstance(module, _Loaded)
        fresh = []
        for line in rest.decode().splitlines():
            name, address = line.split()
            module.addresses[name] = int(address)
            fresh.append(name)
        for name in fresh:
            variable, at = module.variables[name], module.addresses[name] - GLOBAL_BASE
            data = bytearray(variable.initial.ljust(variable.size, b"\0"))
            for offset, target, added in variable.pointers:
                data[offset : offset + 8] = struct.pack("<Q", module.addresses[target] + added)
            self._arena.write(at, bytes(data), READ_ONLY if variable.constant else WRITTEN)
            block = self._arena.at(at)
            if block is not None:
                block.given, block.given_item = _plain(name), module.items.get(name, 1)
        return b"ok"

    def _exchange(self, module: _Loaded, name: str) -> None:
        """Take a kernel's code from the folder of planted bugs, if it is there."""
        text = kernel_alone(module.entries[name])
        self._planted.launched(text)
        if (other := self._planted.exchanged(text)) is not text:
            module.entries[name] = choose_entry(read_entries(other, name), name, name)

    def _on_entry(self, words: list[str], _rest: bytes) -> bytes:
        module = self._modules[int(words[0])]
        assert isinstance(module, _Loaded)
        if words[1] not in module.entries:
            return b"none"
        try:
            if self._options.planted:
                self._exchange(module, words[1])
            program = module.kernel(words[1]).program
        except FlowError as error:
            self._complain(_one_line(error))
            return f"problem {_one_line(error)}".encode()
        for variable in program.globals:
            module.variables.setdefault(variable.name, variable)
        self._arena.stored |= _stored(program)
        pairs = " ".join(f"{p.offset} {p.size}" for p in program.parameters)
        static = sum(region.size for region in program.shared)
        head = (
            f"ok {len(program.parameters)} {program.parameter_bytes + 16} {static} "
            f"{program.local_bytes} {program.max_threads or 1024} {pairs}\n"
        )
        return head.encode() + self._unbound(module, program.globals)

    # ---------------------------------------------------------------- launches
    def _on_launch(self, words: list[str], block: bytes) -> bytes:
        number, name = int(words[0]), words[1]
        grid, threads, shared = words[2:5], words[5:8], int(words[8])
        cluster = tuple(map(int, words[9:12]))
        changes, cooperative = int(words[12]), words[13] == "1"
        sites = tuple(map(int, words[14:]))
        module = self._modules[number]
        assert isinstance(module, _Loaded)
        kernel = module.kernel(name).for_checks(self._checks)
        use = self.report.kernels.setdefault(_plain(name), KernelUse())
        use.launches += 1
        key = (number, name, *words[2:12], block)
        state = (changes + self._changes, self._epoch)
        steady = self._steady.get(key)
        if steady is not None and steady[:2] == state:
            if steady[2] == self._arena.shared_with_host():
                use.repeated += 1
                return b"0\n"
            self._epoch += 1
        try:
            shape = check_dimensions(
                kernel.program, tuple(map(int, grid)), tuple(map(int, threads)), shared,
                cluster if all(cluster) else (),
            )  # fmt: skip
        except LaunchError as error:
            self._complain(_one_line(error))
            return f"{_INVALID_CONFIGURATION}\n".encode()

        symbols = [module.addresses.get(v.name, 0) for v in kernel.program.globals]

        def fresh() -> KernelLaunch:
            return KernelLaunch(
                kernel.program, self._arena, shape.grid, shape.block, block,  # type: ignore[arg-type]
                GLOBAL_BASE + _PARAMETERS, symbols, shared, self._checks, self._options.budget,
                cluster=shape.cluster,
                workspace=GLOBAL_BASE + _WORKSPACE if cooperative else 0,
            )  # fmt: skip

        self._arena.write(_PARAMETERS, block, READ_ONLY)
        try:
            launch, backend, note = self._run(kernel, fresh, (number, name), size_of(shape.cluster))
        except BudgetError as error:
            self._arena.journal.clear()
            self._complain(_one_line(error))
            return f"{_TIMEOUT}\n".encode()
        use.instructions += launch.executed
        use.backends[backend] = use.backends.get(backend, 0) + 1
        use.note = note or use.note
        code = self._take_findings(launch, sites, shape.grid, shape.block)
        if self._arena.journal.unchanged():
            if not launch.printed and not code:
                self._steady[key] = (*state[:1], self._epoch, self._arena.shared_with_host())
        else:
            self._epoch += 1
        self._arena.journal.clear()
        return f"{code}\n".encode() + "".join(launch.printed).encode()

    def _run(
        self, kernel: Kernel, fresh: Any, key: tuple[int, str], together: int
    ) -> tuple[KernelLaunch, str, str]:
        """Run a launch by C if its kernel has had enough work to pay for a compiler."""
        launch, native = fresh(), kernel._native
        ids = np.arange(launch.blocks)
        work = launch.threads * launch.blocks * native._weighted_steps()
        self._work[key] = self._work.get(key, 0) + work + LAUNCH_WORK
        wished = self._options.backend
        if wished == "auto":
            worth = self._work[key] >= LARGE and self._vain.get(key, 0) < 3
            wished = "c" if worth else "numpy"
        if launch.workspace:
            wished = "numpy"
        chosen = native.choose(wished, launch.threads, launch.blocks, self._checks, together)
        if chosen.compiled:
            if native.run(launch, ids):
                return launch, "c", ""
            self._arena.journal.restore()
            if work >= SLOW and launch.failed >= 0:
                some = np.unique(np.clip(launch.failed + np.arange(-NEAR, NEAR + 1), 0, ids[-1]))
                described = self._by_numpy(kernel, fresh, some)
                self._arena.journal.restore()
                launch = fresh()
                if described.findings() and native.run(launch, ids, lenient=True):
                    launch.take_findings(described)
                    return launch, "c", f"findings are those of {len(some)} blocks"
                self._arena.journal.restore()
        launch = self._by_numpy(kernel, fresh, ids)
        if chosen.compiled and not launch.findings():
            self._vain[key] = self._vain.get(key, 0) + 1
        return launch, "numpy", chosen.note

    def _by_numpy(self, kernel: Kernel, fresh: Any, ids: Any) -> KernelLaunch:
        written: frozenset[int] = frozenset()
        while True:
            launch: KernelLaunch = fresh()
            try:
                kernel.run(launch, ids, written=written)
            except MoreWrittenError as more:
                self._arena.journal.restore()
                written = more.written
            else:
                return launch

    def _take_findings(
        self, launch: KernelLaunch, sites: tuple[int, ...], grid: Any, block: Any
    ) -> int:
        code = 0
        for found in launch.findings():
            finding = found.typed()
            if _is_of_cuda(finding):
                continue
            where = self._places.of_launch(sites)
            if where.line and is_cuda_header(finding.place.file):
                finding = replace(finding, place=where)  # in a kernel of CUB or thrust
            self._add(
                replace(finding, kernel=_plain(finding.kernel)),
                f"{_plain(finding.kernel)}<<<{_size(grid)}, {_size(block)}>>>"
                + (f" at {where}" if where.line else ""),
            )
            if finding.check == "trap":
                code = _ASSERT if finding.rule == "assertion" else _FAILED
        return code

    # ---------------------------------------------------------------- the end
    def _on_report(self, _words: list[str], _rest: bytes) -> bytes:
        """Give what was found to a host that asks between its calls, and forget it."""
        self.report.findings = list(self._found.values())
        data = msgspec.msgpack.encode(self.report)
        self.report = HostReport()
        self._found.clear()
        return data

    def _on_bye(self, _words: list[str], _rest: bytes) -> bytes:
        if self._options.leaks:
            for block in self._arena.buffers:
                if not block.flags & 4 and block.start > _WORKSPACE:
                    words = f"{block.what} of {block.size:,} bytes was never freed"
                    name = block.given or block.source.name
                    self._add(KernelFinding(
                        "leak", "never-freed", "", "", f"{name}: {words}" if name else words,
                        block.source.place, None, (0, 0, 0), (0, 0, 0), 1,
                    ))  # fmt: skip
        return b"ok"

    def _add(self, finding: KernelFinding, launched: str = "") -> None:
        finding = finding.moved(self._places.in_source)
        place = finding.place
        at = (finding.kernel, finding.instruction, place.file, place.line or place.code)
        key = (finding.check, finding.rule, *at)
        known = self._found.get(key)
        if known is not None:
            self._found[key] = replace(known, count=known.count + finding.count)
            return
        self._found[key] = finding
        self._shown += 1
        if self._shown <= MAX_SHOWN:
            self._say(str(finding))
            if launched:
                self._say(f"    in {launched}")

    def _complain(self, text: str) -> None:
        if text not in self.report.problems:
            self.report.problems.append(text)
            self._say(text)

    def _say(self, text: str) -> None:
        if not self._options.quiet:
            print(f"========= {text}", file=sys.stderr, flush=True)


def _is_of_cuda(finding: KernelFinding) -> bool:
    """Tell whether what was found is how CUDA's own kernels are. CUB orders blocks by relaxed
    accesses: its tiles are read before their state says so. That holds on every GPU, but not by the
    memory model that the check knows. It also moves values of threads that have none."""
    there = finding.there
    return is_cuda_header(finding.place.file) and (
        finding.rule == "unwritten-register"
        or (
            finding.rule.startswith("between-blocks")
            and there is not None
            and is_cuda_header(there.file)
        )
    )


def _stored(program: KernelProgram) -> int:
    """Return the sizes in bytes of a kernel's stores to global memory, as bits of a number."""
    found = 0
    for step in program.steps:
        if step.opcode.base == "st" and step.opcode.space in ("global", ""):
            found |= SIZES.get(step.opcode.type, 0) * len(items_of(step.operands[1]))
    return found


def _full_name(block: DeviceBlock) -> str:
    place = block.source.place
    made = f", {block.what} at {place}" if place.line else ""
    return f"{block.name} ({block.size:,} bytes{made})"


def _plain(name: str) -> str:
    return plain_function(name) or name


def _size(sizes: tuple[int, int, int]) -> str:
    x, y, z = sizes
    return str(x) if y == z == 1 else f"({x},{y})" if z == 1 else f"({x},{y},{z})"


def _one_line(error: FlowError) -> str:
    problem: Problem = error.problems[0]
    where = f"{problem.file}:{problem.line}: " if problem.line else ""
    return f"{problem.slug}: {where}{problem.message}" + (
        f"; {problem.hint}" if problem.hint else ""
    )
