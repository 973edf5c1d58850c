"""`dataclass` as the standard library's, but quick to make: each command loads some 200 of them.

The standard library writes and compiles the text of up to six functions for each class. Here only
``__init__`` is compiled; the other methods are closures over the fields' names.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - what a type checker knows
else:
    import dataclasses
    from operator import attrgetter

    _MISSING = dataclasses.MISSING

    def dataclass(cls=None, /, *, frozen=False, eq=True, kw_only=False):
        """Make a dataclass; the options are the standard library's, and there are no others."""
        if cls is None:
            return lambda given: _make(given, frozen, eq, kw_only)
        return _make(cls, frozen, eq, kw_only)

    def _make(cls, frozen, eq, kw_only):
        if cls.__doc__ is None:
            cls.__doc__ = cls.__name__  # else the signature is found out for it
        explicit_hash = cls.__dict__.get("__hash__", _MISSING)
        own_hash = explicit_hash is not _MISSING and (
            explicit_hash is not None or "__eq__" not in cls.__dict__
        )
        options = {"init": not frozen, "repr": False, "eq": False, "kw_only": kw_only}
        cls = dataclasses.dataclass(**options)(cls)
        fields = dataclasses.fields(cls)
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = _repr
        if frozen:
            cls.__init__ = _init(cls, fields)
            cls.__setattr__ = _refuse_to_set
            cls.__delattr__ = _refuse_to_delete
        if eq:
            key = _key([field.name for field in fields if field.compare])
            if "__eq__" not in cls.__dict__:
                cls.__eq__ = _eq(key)
            if not own_hash:
                cls.__hash__ = _hash(key) if frozen else None
        return cls

    def _init(cls, fields):
        """Compile ``__init__`` of a frozen class."""
        known = {"_set": object.__setattr__, "_MISSING": _MISSING}
        positional, by_name, body = [], [], []
        for field in fields:
            name = field.name
            value = name
            default = ""
            if field.default_factory is not _MISSING:
                known[f"_made_{name}"] = field.default_factory
                value = f"_made_{name}() if {name} is _MISSING else {name}"
                default = "=_MISSING"
                if not field.init:
                    value = f"_made_{name}()"
            elif field.default is not _MISSING:
                known[f"_default_{name}"] = field.default
                default = f"=_default_{name}"
            if field.init:
                (by_name if field.kw_only else positional).append(name + default)
            elif field.default_factory is _MISSING:
                continue
            body.append(f" _set(_self, {name!r}, {value})")
        if hasattr(cls, "__post_init__"):
            body.append(" _self.__post_init__()")
        given = ["_self", *positional, *(["*", *by_name] if by_name else [])]
        text = f"def __init__({', '.join(given)}):\n" + ("\n".join(body) or " pass")
        found = {}
        exec(text, known, found)  # noqa: S102 - of names of fields, which are identifiers
        made = found["__init__"]
        made.__qualname__ = f"{cls.__qualname__}.__init__"
        made.__module__ = cls.__module__
        made.__annotations__ = {field.name: field.type for field in fields if field.init}
        made.__annotations__["return"] = None
        return made

    def _key(names):
        """Return a function that gives the values that count when two objects are compared."""
        if len(names) > 1:
            return attrgetter(*names)
        return lambda self: tuple(getattr(self, name) for name in names)

    def _eq(key):
        def equal(self, other):
            if other.__class__ is self.__class__:
                return key(self) == key(other)
            return NotImplemented

        return equal

    def _hash(key):
        return lambda self: hash(key(self))

    def _repr(self):
        shown = [field.name for field in dataclasses.fields(self) if field.repr]
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{self.__class__.__qualname__}({values})"

    def _refuse_to_set(self, name, value):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def _refuse_to_delete(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
