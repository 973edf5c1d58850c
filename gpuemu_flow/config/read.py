"""Read one file: bytes, encoding, TOML syntax, positions and types."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tomli
from msgspec import Struct

from gpuemu_flow.config.check import check_table
from gpuemu_flow.config.foreach import Folders, expand_templates
from gpuemu_flow.config.positions import MAX_DEPTH, MAX_TOKEN, KeyPath, scan
from gpuemu_flow.config.report import Reporter, shortened
from gpuemu_flow.config.tables import File
from gpuemu_flow.types import Json

MAX_BYTES = 4 << 20

_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class ConfigSource(Struct):
    """One configuration file as it was read."""

    # Absolute.
    path: Path
    # Problems found so far.
    out: Reporter
    # SHA-256 in hex of the bytes that were read; empty when the file does not exist.
    digest: str = ""
    # Checked keys that the file contains, under their main names.
    tree: dict[str, Json] = {}
    # Patterns of the file names from which the templates of this file take their values.
    listings: tuple[str, ...] = ()


def check_file(raw: Mapping[str, Json], out: Reporter) -> dict[str, Json]:
    """Return the tables of a whole configuration after checking them; report their problems."""
    checked: dict[str, Json] = check_table(File, raw, (), out)
    return checked


def read_source(
    path: Path,
    shown_as: str,
    edited: str | None = None,
    *,
    check: Callable[[Mapping[str, Json], Reporter], dict[str, Json]] = check_file,
    root: Path | None = None,
) -> ConfigSource:
    """Read and check one configuration file.

    A missing file is no problem: the result is then empty.
    """
    source = ConfigSource(path, Reporter(shown_as))
    data = _read_bytes(source) if edited is None else _sized(_encoded(edited), source.out)
    if data is None:
        return source
    source.digest = hashlib.sha256(data).hexdigest()
    text = _decode(data, source.out)
    if text is None:
        return source
    raw = parse_toml(text, source.out)
    if raw is not None:
        folders = Folders(root)
        source.tree = check(expand_templates(raw, source.out, folders), source.out)
        source.listings = tuple(dict.fromkeys(folders.listings))
    return source


def _read_bytes(source: ConfigSource) -> bytes | None:
    """Read a file; return None if it is missing, not a regular file, unreadable or too large."""
    try:
        # Opening a named pipe would wait for a writer for ever.
        descriptor = os.open(source.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                source.out.add("config-unreadable", (), "the configuration is not a regular file")
                return None
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        text = f"the configuration cannot be read: {error.strerror or error}"
        source.out.add("config-unreadable", (), text, "check the owner and the mode of the file")
        return None
    return _sized(data, source.out)


def _encoded(edited: str) -> bytes:
    """Encode an editor's text as UTF-8.

    Surrogates, which UTF-8 does not allow, are encoded too. `_decode` reports them as an error.
    """
    return edited.encode("utf-8", "surrogatepass")


def _sized(data: bytes, out: Reporter) -> bytes | None:
    """Return the bytes; report and return None if there are too many."""
    if len(data) > MAX_BYTES:
        text = f"the configuration has more than {MAX_BYTES >> 20} MiB"
        out.add("config-too-large", (), text, "is this the right file?")
        return None
    return data


def _decode(data: bytes, out: Reporter) -> str | None:
    if data.startswith(_UTF16):
        out.add("config-encoding", (), "the file is UTF-16", "save it as UTF-8")
        return None
    if data.startswith(b"\xef\xbb\xbf"):
        out.problem_at("config-encoding", 1, "the file begins with a byte order mark",
                       "save it as UTF-8 without BOM")  # fmt: skip
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        fault = f"byte 0x{byte:02x} is not UTF-8"
        out.problem_at("config-encoding", line, fault, "save the file as UTF-8")
        return None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        out.problem_at("config-encoding", line, "the file holds a NUL character", "remove it")
        return None
    return text


def parse_toml(text: str, out: Reporter) -> dict[str, Json] | None:
    """Parse TOML text into tables, which are not checked; return None if the syntax is wrong.

    Problems are added to `out`, and ``out.positions`` is set to the lines of the text's keys.
    """
    found = scan(text)
    out.positions = found
    if found.too_deep:
        fault = f"keys or brackets nest deeper than {MAX_DEPTH}"
        out.problem_at("config-syntax", found.too_deep, fault)
        return None
    if found.too_long:
        fault = f"a key or number has more than {MAX_TOKEN} characters"
        out.problem_at("config-syntax", found.too_long, fault)
        return None
    try:
        return tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        _syntax_problem(error, text, out)
    except (ValueError, RecursionError, OverflowError) as error:
        out.problem_at("config-syntax", 0, shortened(str(error)))
    return None


def _syntax_problem(error: tomli.TOMLDecodeError, text: str, out: Reporter) -> None:
    """Report the line at which tomli stopped, or a bracket or quote that is never closed."""
    line, hint = error.lineno, f"column {error.colno}"
    if error.pos >= len(text):
        line, hint = text.rstrip().count("\n") + 1, ""
        if out.positions.unclosed:
            line = out.positions.unclosed
            hint = "what is opened here is never closed"
    message = error.msg.removesuffix(".")
    out.problem_at("config-syntax", line, f"not valid TOML: {shortened(message)}", hint)


def merged(sources: Sequence[ConfigSource]) -> dict[str, Json]:
    """Merge the checked keys of sources, given from the highest priority to the lowest.

    Tables are merged recursively. Any other value, such as an array of tables, is taken whole from
    the file of highest priority that defines it.
    """
    out: dict[str, Json] = {}
    for source in reversed(sources):
        _over(out, source.tree)
    return out


def _over(low: dict[str, Json], high: dict[str, Json]) -> None:
    """Merge `high` over `low`, in place, without changing `high`."""
    for name, value in high.items():
        below = low.get(name)
        if isinstance(value, dict):
            table = dict(below) if isinstance(below, dict) else {}
            _over(table, value)
            low[name] = table
        else:
            low[name] = value


def definer(sources: Sequence[ConfigSource], path: KeyPath, default: ConfigSource) -> ConfigSource:
    """Return the source that defines a merged key; `default` if no source does."""
    for source in sources:
        node: Json = source.tree
        for part in path:
            if not isinstance(node, dict):  # inside an array, which comes from one source
                return source
            if part not in node:
                break
            node = node[part]
        else:
            return source
    return default
