"""Test which files count as the user's own."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gpuemu_flow.client import identity


@pytest.mark.parametrize(
    ("path", "own"),
    [
        (__file__, True),
        ("/home/me/project/ops.py", True),
        ("/home/me/.local/lib/python3.11/site-packages/torch/nn/functional.py", False),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", False),
        (np.__file__, False),
        (json.__file__, False),
        (identity.__file__, False),
        ("<frozen importlib._bootstrap>", False),
        (None, False),
        ("", False),
    ],
)
def test_installed_code_is_not_the_user_s(path: str | None, own: bool) -> None:
    assert identity.is_own(path) is own
