"""Run a daemon in the foreground: its lock, its log, its sockets and its shutdown."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import logging.handlers
import os
import resource
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from io import TextIOWrapper
from pathlib import Path

import pynng
from msgspec import Struct

from gpuemu_flow import __version__
from gpuemu_flow.build.session import require_trust
from gpuemu_flow.build.signals import handled
from gpuemu_flow.config.load import environment
from gpuemu_flow.config.model import Config
from gpuemu_flow.model.errors import FlowError, Problem, UsageError, did_you_mean
from gpuemu_flow.model.types import Json
from gpuemu_flow.services.daemon import checks, issuing, results, submissions
from gpuemu_flow.services.daemon.files import (
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    DaemonFiles,
    FileLock,
    acquire,
    holder,
    make_place,
    make_private,
    remove,
    write_info,
)
from gpuemu_flow.services.daemon.replies import Fields, invalid
from gpuemu_flow.services.daemon.server import Server
from gpuemu_flow.services.daemon.service import CLOSE_SECONDS, Job, References, Reloading, Service
from gpuemu_flow.wire import MAX_PATH_BYTES, PROTOCOL_VERSION, WireError, default_socket, fits
from gpuemu_flow.wire.tensors import Exchange, exchange_folder
from gpuemu_flow.workers.pool import Pool

log = logging.getLogger("gpuemu_flow.services.daemon")

LOG_BYTES, LOG_FILES = 2 << 20, 3
IDLE_CHECK_SECONDS = 5.0
MOST_DESCRIPTORS = 65_536
SWITCH_SECONDS = 0.001  # switch interval of the GIL: pings must not wait long for busy threads
_LEVELS = {"trace": "DEBUG", "debug": "DEBUG", "info": "INFO", "warn": "WARNING", "error": "ERROR"}


class _PrivateLog(logging.handlers.RotatingFileHandler):
    """A log file that only the user can read, whatever the umask; links are refused."""

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.baseFilename, flags, PRIVATE_FILE)
        os.fchmod(descriptor, PRIVATE_FILE)
        return os.fdopen(descriptor, "a", encoding=self.encoding, errors=self.errors)


class AlreadyRunningError(FlowError):
    """Raised if another daemon already serves this workspace; the exit code is 0."""

    exit_code = 0


def serve(
    root: Path,
    *,
    environ: Mapping[str, str] = os.environ,
    background: bool = False,
    idle_seconds: float = 0.0,
    on_ready: Callable[[Mapping[str, Json]], None] = lambda _: None,
) -> None:
    """Run a daemon until it is told to stop; call from the main thread only. Raises
    AlreadyRunningError: ``daemon-running``. Raises FlowError: The configuration or the cache cannot
    be used, or there is no place for the socket."""
    configured = Reloading(root, environ)
    config = configured.current().workspace.config
    place = make_place(configured.root, environ)
    lock = acquire(place.lock)
    if lock is None:
        raise AlreadyRunningError(
            Problem(
                "daemon-running",
                f"a daemon serves {configured.root} already (process {holder(place.lock)})",
            )
        )
    try:
        with _logging(place, config, to_stderr=not background):
            _serve(configured, place, environ, idle_seconds, on_ready)
    finally:
        remove(place.info)
        lock.release()


def _serve(
    configured: Reloading,
    place: DaemonFiles,
    environ: Mapping[str, str],
    idle_seconds: float,
    on_ready: Callable[[Mapping[str, Json]], None],
) -> None:
    workspace = configured.current().workspace
    references = workspace.config.execution.max_parallel_refs
    require_trust(workspace, environ)
    os.chdir(configured.root)
    workspace.cache.create()
    sys.setswitchinterval(SWITCH_SECONDS)
    _allow_descriptors()
    with Pool(References.sessions_for(references)) as pool:
        # Before the first socket: nng aborts a forked child that opens one after its parent did,
        # and a server that runs already needs no fork of this process.
        pool.start()
        exchange = _make_exchange(place)
        service = Service(configured, pool, exchange)
        server = Server(
            route=pool_of,
            pools=pool_sizes(references),
            ping=service.pong,
            handle=lambda fields, job: handle(service, fields, job),
            max_connections=workspace.config.daemon.max_connections,
        )
        sockets, held = _listen(server, place, workspace.config, environ)
        try:
            # SIGHUP, too: a terminal that hangs up ends a daemon in its foreground.
            numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
            with handled(lambda *_: service.stop.set(), *numbers):
                server.start()
                info = _info(configured.root, place, sockets)
                write_info(place, info)
                log.info(
                    "gpuemu-flow %s: the daemon listens at %s",
                    __version__,
                    ", ".join(map(str, sockets)),
                )
                on_ready(info)
                _wait(service, server, configured.root, idle_seconds)
                log.info("daemon ends")
        finally:
            server.close(CLOSE_SECONDS)
            service.close()
            if exchange is not None:
                exchange.close()
            remove(*sockets)
            for lock in held:
                lock.release()


def _allow_descriptors() -> None:
    """Raise the limit of open file descriptors, since each connection takes one."""
    with contextlib.suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def _make_exchange(place: DaemonFiles) -> Exchange | None:
    folder = exchange_folder(place.folder, place.stem)
    with contextlib.suppress(OSError, WireError):
        folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        exchange = Exchange(folder)
        exchange.clear(0)
        return exchange
    log.warning("%s cannot be used: large tensors travel in messages", folder)
    return None


def _wait(service: Service, server: Server, root: Path, idle_seconds: float) -> None:
    while not service.stop.wait(IDLE_CHECK_SECONDS):
        if not root.is_dir():
            log.warning("the workspace is gone")
            return
        server.expire()
        if service.exchange is not None:
            service.exchange.clear()
        idle = time.monotonic() - server.last_request
        if idle_seconds and idle > idle_seconds and not server.in_progress:
            log.info("nothing was asked for %d seconds", idle)
            return


def _info(root: Path, place: DaemonFiles, sockets: list[Path]) -> dict[str, Json]:
    return {
        "pid": os.getpid(),
        "socket": str(sockets[0]),
        "sockets": [str(path) for path in sockets],
        "root": str(root),
        "version": __version__,
        "protocol_version": PROTOCOL_VERSION,
        "started": time.time(),
        "log": str(place.log),
    }


def _listen(
    server: Server, place: DaemonFiles, config: Config, environ: Mapping[str, str]
) -> tuple[list[Path], list[FileLock]]:
    named = environment(environ).socket
    own = Path(named).absolute() if named else config.daemon.socket_path or place.socket
    reason = _open_socket(server, own)
    if reason:
        raise UsageError(Problem("daemon-socket", f"the socket {own} cannot be used: {reason}"))
    default = default_socket(environ)
    if default == own:
        return [own], []
    reason = make_private(default.parent)
    if reason:
        log.warning("the default socket %s cannot be used: %s", default, reason)
        return [own], []
    with contextlib.suppress(OSError):
        # nng replaces a socket that seems stale. Two daemons that start at once would both do so.
        lock = acquire(default.with_suffix(".lock"))
        if lock is None:
            log.info("another daemon has the default socket %s", default)
            return [own], []
        reason = _open_socket(server, default)
        if not reason:
            return [own, default], [lock]
        log.warning("the default socket %s cannot be used: %s", default, reason)
        lock.release()
    return [own], []


def _open_socket(server: Server, path: Path) -> str:
    if not fits(path):
        return f"its path has more than {MAX_PATH_BYTES} bytes"
    old_mask = os.umask(0o777 & ~PRIVATE_FILE)
    try:
        path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        # nng would take a stale socket's place; what is no socket is none of ours.
        if os.path.lexists(path) and not stat.S_ISSOCK(path.lstat().st_mode):
            return "there is a file that is no socket"
        server.listen(f"ipc://{path}")
        path.chmod(PRIVATE_FILE)
    except pynng.AddressInUse:
        return "another daemon listens there"
    except pynng.NNGException as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        os.umask(old_mask)
    return ""


@contextlib.contextmanager
def _logging(place: DaemonFiles, config: Config, *, to_stderr: bool) -> Iterator[None]:
    level = config.environment.log_level or config.daemon.log_level
    handlers: list[logging.Handler] = []
    with contextlib.suppress(OSError):
        handlers.append(
            _PrivateLog(place.log, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8")
        )
    if to_stderr:
        handlers.append(logging.StreamHandler())
    shape = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    log.setLevel(_LEVELS.get(level, "INFO"))
    log.propagate = False
    for handler in handlers:
        handler.setFormatter(shape)
        log.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()


def main() -> None:
    """Run ``python -m gpuemu_flow.services.daemon``, as clients and ``daemon start`` do."""
    parser = argparse.ArgumentParser(prog="gpuemu_flow.services.daemon")
    parser.add_argument("--root", type=Path, default=Path.cwd())
    parser.add_argument("--ready-fd", type=int, help="told when clients can connect, as JSON")
    parser.add_argument("--idle-seconds", type=float, default=0.0)
    given = parser.parse_args()

    def tell(message: Mapping[str, Json]) -> None:
        if given.ready_fd is not None:
            with contextlib.suppress(OSError):
                os.write(given.ready_fd, json.dumps(dict(message)).encode() + b"\n")
                os.close(given.ready_fd)

    try:
        serve(
            given.root,
            background=given.ready_fd is not None,
            idle_seconds=given.idle_seconds,
            on_ready=tell,
        )
    except FlowError as error:
        problems = [
            {"slug": p.slug, "message": p.message, "hint": p.hint, "file": p.file, "line": p.line}
            for p in error.problems
        ]
        tell({"problems": problems, "exit_code": error.exit_code})
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


# Map each request type of protocol v1 to its handler and its thread pool.


QUICK, TENSORS, REFERENCE, LONG = "quick", "tensors", "reference", "long"


def pool_sizes(references: int) -> dict[str, int]:
    """Return the number of threads of each pool; `references` may run at once."""
    return {QUICK: 2, TENSORS: 2, REFERENCE: max(4, 2 * references), LONG: 4}


Handler = Callable[[Service, Fields, Job], dict[str, Json]]


class RequestKind(Struct, frozen=True):
    """A type of request."""

    pool: str
    handler: Handler


def _shutdown(service: Service, _fields: Fields, _job: Job) -> dict[str, Json]:
    service.stop.set()
    return {"type": "Ok"}


REQUESTS: dict[str, RequestKind] = {  # a ping is answered by the server itself
    "Shutdown": RequestKind(QUICK, _shutdown),
    "ValidateOp": RequestKind(REFERENCE, submissions.validate_op),
    "GetResult": RequestKind(QUICK, results.get_result),
    "ListResults": RequestKind(QUICK, results.list_results),
    "StoreBaseline": RequestKind(QUICK, results.store_baseline),
    "CompareBaseline": RequestKind(QUICK, results.compare_baseline),
    "FuzzOp": RequestKind(LONG, results.fuzz_op),
    "Reproduce": RequestKind(TENSORS, results.reproduce_failure),
    "Minimize": RequestKind(LONG, results.minimize),
    "ListFailures": RequestKind(QUICK, results.list_failures),
    "LintKernel": RequestKind(QUICK, checks.lint_kernel),
    "StoreArtifact": RequestKind(QUICK, checks.store_artifact),
    "StoreArtifactBaseline": RequestKind(QUICK, checks.store_baseline),
    "DiffArtifactBaseline": RequestKind(QUICK, checks.diff_baseline),
    "GetArtifact": RequestKind(QUICK, checks.get_artifact),
    "ListArtifacts": RequestKind(QUICK, checks.list_artifacts),
    "RunCi": RequestKind(LONG, checks.run_ci),
    "GetCiSummary": RequestKind(QUICK, checks.get_ci_summary),
    "GetTestCase": RequestKind(TENSORS, issuing.get_test_case),
    "GetTestBatch": RequestKind(TENSORS, issuing.get_test_batch),
    "SubmitOutput": RequestKind(REFERENCE, submissions.validate_op),
    "SubmitOutputs": RequestKind(REFERENCE, submissions.submit_outputs),
}


def pool_of(kind: str) -> str:
    """Return the pool of a request type. Unknown types go to ``quick``, which refuses them."""
    known = REQUESTS.get(kind)
    return QUICK if known is None else known.pool


def handle(service: Service, message: dict[str, Json], job: Job) -> dict[str, Json]:
    fields = Fields(message, service.exchange)
    known = REQUESTS.get(fields.type)
    if known is None:
        hint = did_you_mean(fields.type, tuple(REQUESTS))
        raise invalid(f"there is no request {fields.type!r}; {hint}")
    return known.handler(service, fields, job)
