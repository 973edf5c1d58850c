"""Read the fields of a request with the types that protocol v1 requires."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Any

import msgspec
from numpy.typing import NDArray

from gpuemu_flow.cases.protocol_v1 import SequenceConfig
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import UsageError, did_you_mean
from gpuemu_flow.model.types import Json
from gpuemu_flow.services.daemon.replies import RequestError
from gpuemu_flow.wire import WireError
from gpuemu_flow.wire.tensors import Exchange, decode_tensor, decode_tensors, json_type

MAX_NAME = 200  # characters of an op's, kernel's or baseline's name
MAX_KWARGS = 256
_MISSING: Json = object()
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


Text = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]


class ClientInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client says of itself."""

    id: Text | None = None
    name: Text | None = None
    host: Text | None = None
    user: Text | None = None
    origin: Text | None = None
    pid: Annotated[int, msgspec.Meta(gt=0, lt=1 << 32)] | None = None


class Fields:
    """Typed access to the fields of one request.

    A method that reads a field raises RequestError ``InvalidRequest`` if the field violates the
    protocol.
    """

    def __init__(
        self, fields: dict[str, Json], exchange: Exchange | None = None, kind: str = ""
    ) -> None:
        self._exchange = exchange
        self._fields = fields
        payload = self._fields.get("payload")
        if isinstance(payload, dict):
            # The documentation nests the fields; the published client does not.
            self._fields = {**payload, **self._fields}
        self.type = kind or self.name("type")

    def _get(self, name: str, default: Json = _MISSING) -> Json:
        value = self._fields.get(name, default)
        if value is _MISSING:
            raise invalid(f"{self._fields.get('type', 'the request')} lacks {name!r}")
        return value

    def has(self, name: str) -> bool:
        """Tell whether a field is present and not null."""
        return self._fields.get(name) is not None

    def name(self, name: str) -> str:
        """Return a string field that holds a name: not empty, not too long, and printable."""
        value = self.string(name)
        if not value or len(value) > MAX_NAME or _CONTROL.search(value):
            raise invalid(f"{name} must be a name of 1 to {MAX_NAME} printable characters")
        return value

    def string(self, name: str) -> str:
        """Return a string field with any content."""
        value = self._get(name)
        if not isinstance(value, str):
            raise invalid(f"{name} must be a string, not {json_type(value)}")
        return value

    @property
    def reply_exchange(self) -> Exchange | None:
        """Return the exchange for large tensors of the reply; None if the client cannot use it."""
        return self._exchange if self.flag("exchange", default=False) else None

    def optional_name(self, name: str) -> str | None:
        """Return a name, or None when the field is missing or null."""
        return self.name(name) if self.has(name) else None

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """Return an integer in a range; `default` if the field is missing."""
        value = self._get(name, _MISSING if default is None else default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise invalid(f"{name} must be an integer, not {_shown(value)}")
        if not low <= value <= high:
            raise invalid(f"{name} must lie between {low} and {high}")
        return value

    def u64(self, name: str) -> int:
        """Return an unsigned 64-bit integer, such as a seed."""
        return self.integer(name, 0, (1 << 64) - 1)

    def flag(self, name: str, default: bool | None = None) -> bool:
        """Return a boolean; `default` if the field is missing."""
        value = self._get(name, _MISSING if default is None else default)
        if not isinstance(value, bool):
            raise invalid(f"{name} must be true or false, not {json_type(value)}")
        return value

    def choice(self, name: str, known: tuple[str, ...]) -> str:
        """Return the word of `known` that equals a field, ignoring case."""
        value = self.string(name)
        for word in known:
            if value.lower() == word.lower():
                return word
        raise invalid(f"{name} {value[:60]!r} is unknown; {did_you_mean(value[:60], known)}")

    def tensor(self, name: str) -> NDArray[Any]:
        """Return one tensor."""
        try:
            return decode_tensor(self._get(name), name, self._exchange)
        except WireError as error:
            raise invalid(str(error)) from None

    def tensors(self, name: str) -> dict[str, NDArray[Any]]:
        """Return all tensors of a field, by name."""
        try:
            return decode_tensors(self._get(name), name, self._exchange)
        except WireError as error:
            raise invalid(str(error)) from None

    def kwargs(self) -> dict[str, Json]:
        """Return the op's keyword arguments.

        Clients of protocol v1 send strings. Our own clients send JSON values of any type.
        """
        value = self._get("kwargs", {})
        if not isinstance(value, dict):
            raise invalid(f"kwargs must be an object, not {json_type(value)}")
        if len(value) > MAX_KWARGS:
            raise invalid(f"{len(value)} kwargs are more than {MAX_KWARGS}")
        for name, item in value.items():
            if isinstance(item, float) and not item - item == 0:
                raise invalid(f"kwargs.{name} must be finite")
        return dict(value)

    def counts(self, name: str, names: Collection[str]) -> dict[str, int]:
        """Return a field that maps some of `names` to positive integers; {} if it is missing."""
        value = self._get(name, None)
        if value is None:
            return {}
        fits = isinstance(value, dict) and all(
            type(count) is int and count > 0 and key in names for key, count in value.items()
        )
        if not fits:
            raise invalid(f"{name} must be an object of input names and positive integers")
        return dict(value)

    def client(self) -> dict[str, Json]:
        """Return the client's description of itself, an extension of protocol v1; {} if none."""
        if not self.has("client"):
            return {}
        try:
            found: dict[str, Json] = msgspec.to_builtins(convert(self.object("client"), ClientInfo))
        except msgspec.ValidationError as error:
            raise invalid(f"client: {error}") from None
        for name, text in found.items():
            if isinstance(text, str) and not text.isprintable():
                raise invalid(f"client.{name} must be printable")
        return found

    def objects(self, name: str, most: int) -> list[Fields]:
        """Return the JSON objects in an array of at most `most` items."""
        value = self._get(name)
        if not isinstance(value, list):
            raise invalid(f"{name} must be an array, not {json_type(value)}")
        if len(value) > most:
            raise invalid(f"{len(value)} {name} are more than {most}")
        for number, item in enumerate(value):
            if not isinstance(item, dict):
                raise invalid(f"{name}[{number}] must be an object, not {json_type(item)}")
        return [Fields(item, self._exchange, self.type) for item in value]

    def object(self, name: str) -> dict[str, Json]:
        """Return the JSON object in a field, unchanged."""
        value = self._get(name)
        if not isinstance(value, dict):
            raise invalid(f"{name} must be an object, not {json_type(value)}")
        return value

    def fuzz_config(self) -> SequenceConfig:
        """Return the configuration of a fuzz run or of test cases."""
        try:
            return SequenceConfig.from_json(self._get("fuzz_config"))
        except UsageError as error:
            problem = error.problems[0]
            hint = f"; {problem.hint}" if problem.hint else ""
            raise invalid(f"{problem.message}{hint}") from None


def invalid(message: str) -> RequestError:
    """Return the error for a request that violates the protocol."""
    return RequestError("InvalidRequest", message)


def _shown(value: Json) -> str:
    return str(value)[:40] if isinstance(value, float) else json_type(value)
