"""Check the ``shard`` object of another machine's report against the schema of reports."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from itertools import islice

from jsonschema import Draft7Validator
from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from gpuemu_flow.types import Json

_LOOKED_AT = 20
_LONGEST = 300


def violation(shard: Json) -> str:
    """Return the most relevant violation of the schema in the ``shard`` object of a report."""
    worst = best_match(islice(_validator().iter_errors(shard), _LOOKED_AT))
    if worst is None:
        return ""
    return f"{worst.json_path.replace('$', 'shard', 1)}: {worst.message}"[:_LONGEST]


@lru_cache
def _validator() -> Validator:
    text = (files("gpuemu_flow.schemas") / "report.schema.json").read_text("utf-8")
    # JSON Schema accepts 1.0 as an integer, but sizes and seeds must not be floats.
    exact = Draft7Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    kind: type[Validator] = extend(  # type: ignore[no-untyped-call]  # its stub has no types
        Draft7Validator, type_checker=exact
    )
    return kind({"$ref": "#/definitions/shard", "definitions": json.loads(text)["definitions"]})
