"""A process that has loaded what others need, and becomes each of them in a fork of its own.

`warm` and `warm_popen` send it requests. It is run as text, by ``python -c``, and not as a file or
a module: what its forks are seen to have read is the package's, as it is without them.
"""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from pathlib import Path

_LOADED = {
    "gpuemu_flow": (
        "gpuemu_flow.cli.main",
        "gpuemu_flow.cli.progress",
        "gpuemu_flow.build.run",
        "gpuemu_flow.fuzz.causes",
        "gpuemu_flow.fuzz.failures",
        "gpuemu_flow.fuzz.fuzzing",
        "gpuemu_flow.judge.case_evaluator",
        "gpuemu_flow.report.report",
        "gpuemu_flow.report.text",
    ),
    "gpuemu_flow.services.daemon": ("gpuemu_flow.services.daemon.lifecycle",),
    "gpuemu_flow.workers.forkserver": ("gpuemu_flow.workers.forkserver",),
}
_ALL_OF = tuple(
    f"gpuemu_flow.{name}"
    for name in (
        "build", "cases", "config", "fuzz", "judge", "lint", "model", "numerics", "report", "store",
        "tasks", "wire", "workers.sandbox",
    )
)  # fmt: skip
"""Packages all of whose modules commands import sooner or later, a few here and a few there."""
_MAIN = {
    "gpuemu_flow": "gpuemu_flow.front",
    "gpuemu_flow.services.daemon": "gpuemu_flow.services.daemon.lifecycle",
    "gpuemu_flow.workers.forkserver": "gpuemu_flow.workers.forkserver",
}
_FDS = 16
_HIGH = 200


def serve(control):
    """Fork a process for each request; return in that process, with what it is to become."""
    wakeup, wakeup_end = os.pipe()
    os.set_blocking(wakeup_end, False)
    signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    replies = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(wakeup, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == wakeup:
                    os.read(wakeup, 4096)
                    tell_ends(replies)
                    continue
                request, fds, _, _ = socket.recv_fds(control, 1 << 20, _FDS)
                if not request:
                    os._exit(0)
                pid = os.fork()
                if pid == 0:
                    own = {control.fileno(), wakeup, wakeup_end, fds[0], *replies.values()}
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    selector.close()
                    control.detach()
                    for fd in own:
                        os.close(fd)
                    wanted = json.loads(request)
                    place(fds[1:], wanted["places"])
                    return wanted
                replies[pid] = fds[0]
                os.write(fds[0], b"%d\n" % pid)
                for fd in fds[1:]:
                    os.close(fd)


def place(fds, places):
    """Move descriptors to the numbers that they have where the request was made."""
    fcntl = importlib.import_module("fcntl")
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(high, places, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def tell_ends(replies):
    """Tell those who wait for a process how it ended."""
    while replies:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        reply = replies.pop(pid)
        try:
            os.write(reply, b"%d\n" % os.waitstatus_to_exitcode(status))
        except OSError:
            pass  # nobody waits
        os.close(reply)


def load(module, lent):
    """Load what the forks need: once asked for, as most of pytest's workers need not all."""
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as the package does before it imports
    importlib.import_module("runpy")  # as ``python -m`` does
    for name in _LOADED[module]:
        importlib.import_module(name)
    if module == "gpuemu_flow":
        importlib.import_module("gpuemu_flow.cli.main").cli.load_all()
        walk = importlib.import_module("pkgutil").walk_packages
        for name in _ALL_OF:
            package = importlib.import_module(name)
            for _, module_name, _ in walk(package.__path__, f"{name}."):
                importlib.import_module(module_name)
        importlib.import_module("encodings.ascii")
    main = importlib.import_module(_MAIN[module])
    if module == "gpuemu_flow.workers.forkserver":
        main.np.random.seed(0)
        for name in main._FOR_JOBS:
            importlib.import_module(name)
        main.notices.base_records(anew=True)
    elif lent:
        sys.path.insert(0, lent["tests"])
        importlib.import_module("warm_popen").lend(lent["controls"])
        del sys.path[0]
    importlib.import_module("gpuemu_flow.numerics.rng").SeededRng(0).f64(10_000)
    if module != "gpuemu_flow.workers.forkserver":
        digest_what_all_need()
        fields = importlib.import_module("gpuemu_flow.config.fields")
        fields.names_of(importlib.import_module("gpuemu_flow.config.tables").File)
    look_at_types()
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "what is forked must have one thread"
    gc.collect()
    gc.freeze()
    return main


def look_at_types():
    """Let msgspec look at each struct of the package, as whoever reads one first has to."""
    known = importlib.import_module("gpuemu_flow.model.decoding").known
    struct = importlib.import_module("msgspec").Struct
    for name, module in [*sys.modules.items()]:
        if name.startswith("gpuemu_flow."):
            for value in [*vars(module).values()]:
                if isinstance(value, type) and issubclass(value, struct):
                    try:
                        known(value)
                    except (TypeError, NameError):
                        pass  # none that anybody reads


def digest_what_all_need():
    """Digest the package's files and the loaded libraries, as each new workspace has to."""
    files = importlib.import_module("gpuemu_flow.build.files")
    table = files.FileTable(Path("/"))
    importlib.import_module("gpuemu_flow.build.files").own_code_digest(table)
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    for path in {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "/" in line}:
        table.digest(path)


def stream_as_started(stream):
    """Return a text stream for what its descriptor is now, which was the null device before."""
    number = stream.fileno()
    return open(
        number, "w", encoding=stream.encoding, errors=stream.errors, closefd=False,
        buffering=1 if number == 2 or os.isatty(number) else -1,
    )  # fmt: skip


def run():
    """Wait, load, and become each process that is asked for."""
    module, fd, lent = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    control = socket.socket(fileno=fd)
    sys.path[0] = str(Path.cwd())
    control.set_inheritable(False)
    if not control.recv(1, socket.MSG_PEEK):
        os._exit(0)  # nobody ever asked
    main = load(module, lent)
    wanted = serve(control)
    if wanted["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(wanted["environ"])
    os.chdir(wanted["folder"])
    sys.path[0] = wanted["folder"]
    sys.orig_argv[:] = [sys.executable, "-m", module, *wanted["arguments"]]
    file = Path(main.__file__)
    if module == "gpuemu_flow":
        file = file.with_name("__main__.py")
        sys.stdout = stream_as_started(sys.stdout)
        sys.stderr = stream_as_started(sys.stderr)
    sys.argv[:] = [str(file), *wanted["arguments"]]
    main.main()


run()
