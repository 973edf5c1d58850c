"""A shared cache in an object store such as S3, through fsspec and its package for that store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from gpuemu_flow.errors import Problem, UsageError
from gpuemu_flow.store.remote.transport import (
    BLOCK,
    RemoteError,
    TooLargeError,
    is_key,
)

T = TypeVar("T")
_EXTRAS = {"s3": "gpuemu-flow[s3]", "gs": "gcsfs", "az": "adlfs"}
_NO_CACHES = {"use_listings_cache": False, "skip_instance_cache": True}


class BucketTransport:
    """Stores objects in a bucket, as ``PREFIX/ac/SHA256`` and ``PREFIX/cas/SHA256``.

    Parameters
    ----------
    url : str
        URL such as ``s3://bucket/prefix``. Credentials and endpoint come from the configuration and
        environment of the object store (``AWS_ENDPOINT_URL``).

    Raises
    ------
    UsageError
        ``cache-remote-package``.
    """

    def __init__(self, url: str) -> None:
        scheme, _, path = url.partition("://")
        try:
            import fsspec  # noqa: PLC0415 - an extra

            self._store: Any = fsspec.filesystem(scheme, **_NO_CACHES)
        except ImportError as error:
            hint = f"pip install '{_EXTRAS[scheme]}'"
            text = f"a cache at {scheme}:// needs a package that is not installed: {error}"
            raise UsageError(Problem("cache-remote-package", text, hint)) from error
        self._base = path.rstrip("/")

    def get(self, kind: str, key: str, sink: BinaryIO, limit: int) -> bool:
        def read() -> bool:
            sink.seek(0)
            sink.truncate()
            total = 0
            with self._store.open(self._path(kind, key), "rb", block_size=4 * BLOCK) as file:
                if (file.size or 0) > limit:
                    raise TooLargeError(f"an object of more than {limit >> 20} MiB")
                while block := file.read(BLOCK):
                    total += len(block)
                    sink.write(block)
                    if total > limit:
                        raise TooLargeError(f"an object of more than {limit >> 20} MiB")
            return True

        return bool(_absent_as_none(read))

    def has(self, kind: str, key: str) -> bool:
        return bool(_absent_as_none(lambda: self._store.info(self._path(kind, key)) is not None))

    def put(self, kind: str, key: str, source: bytes | Path) -> None:
        path = self._path(kind, key)
        if isinstance(source, bytes):
            stored = _absent_as_none(lambda: (self._store.pipe_file(path, source), True)[1])
        else:
            stored = _absent_as_none(lambda: (self._store.put_file(str(source), path), True)[1])
        if not stored:
            raise RemoteError("there is no such bucket")

    def close(self) -> None:
        """Do nothing: fsspec keeps its own connections."""

    def _path(self, kind: str, key: str) -> str:
        if not is_key(key):
            raise ValueError(f"no object: {key}")
        return f"{self._base}/{kind}/{key}"


def _absent_as_none(call: Callable[[], T]) -> T | None:
    """Return the result of a call; None if the object does not exist.

    Any other error becomes a RemoteError, since each store's package has its own error types.
    """
    try:
        return call()
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise RemoteError(str(error)[:200], refused=True) from error
    except RemoteError:
        raise
    except Exception as error:
        raise RemoteError(f"{type(error).__name__}: {error}"[:200]) from error
