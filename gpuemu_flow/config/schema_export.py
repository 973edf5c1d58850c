"""Write ``schemas/gpuemu.schema.json``, the JSON Schema of gpuemu.toml, from the tables of keys.

Editors use it; gpuemu-flow's own checks are stricter and say more (``python -m
gpuemu_flow.config.schema_export > schemas/gpuemu.schema.json``).
"""

from __future__ import annotations

import json
import sys

from gpuemu_flow.config.tables import FILE
from gpuemu_flow.types import Json


def json_schema() -> dict[str, Json]:
    """Return the JSON Schema, draft 7."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "gpuemu.toml",
        "description": "Configuration of a gpuemu-flow workspace.",
        **FILE.schema(),
    }


def schema_text() -> str:
    """Return `json_schema` as text, the content of the file in the repository."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
