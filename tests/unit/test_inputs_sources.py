"""Test that the files which a script runs are found without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuemu_flow.build.sources import Closure, SourceIndex


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "scripts/op.py": "import json\nimport numpy as np\nfrom lib import tiles\nimport sibling\n",
        "scripts/sibling.py": "from . import nothing\n",
        "scripts/lib/__init__.py": "",
        "scripts/lib/tiles.py": "from .masks import tail\nfrom lib import deep\n",
        "scripts/lib/masks.py": "def tail(): ...\n",
        "scripts/lib/deep/__init__.py": "from . import inner\n",
        "scripts/lib/deep/inner.py": "import shared.util\n",
        "shared/util.py": "",
        "scripts/lib/unused.py": "",
        "pkg/mod.py": "def inside():\n    import torch\n    from scripts.lib import masks\n",
        "scripts/late.py": "import importlib\nm = importlib.import_module('lib.masks')\n",
        "scripts/broken.py": "def (:\nimport lib.masks\n",
        "scripts/alone.py": "x = 1\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_imports_are_followed_through_packages_and_relative_names(root: Path) -> None:
    assert SourceIndex(root).closure(root / "scripts/op.py") == Closure(
        (
            "scripts/lib/__init__.py",
            "scripts/lib/deep/__init__.py",
            "scripts/lib/deep/inner.py",
            "scripts/lib/masks.py",
            "scripts/lib/tiles.py",
            "scripts/op.py",
            "scripts/sibling.py",
            "shared/util.py",
        ),
        ("numpy",),
    )


def test_imports_inside_functions_and_by_constant_name_count(root: Path) -> None:
    index = SourceIndex(root)
    assert index.closure(root / "pkg/mod.py") == Closure(
        ("pkg/mod.py", "scripts/lib/__init__.py", "scripts/lib/masks.py"), ("torch",)
    )
    assert "scripts/lib/masks.py" in index.closure(root / "scripts/late.py").files


def test_a_script_that_does_not_parse_is_its_own_only_source(root: Path) -> None:
    assert SourceIndex(root).closure(root / "scripts/broken.py").files == ("scripts/broken.py",)


def test_a_cycle_of_imports_ends(root: Path) -> None:
    (root / "scripts/a.py").write_text("import b\n")
    (root / "scripts/b.py").write_text("import a\n")
    assert SourceIndex(root).closure(root / "scripts/a.py").files == (
        "scripts/a.py",
        "scripts/b.py",
    )


def test_the_imports_digest_follows_imports_only(root: Path) -> None:
    path = root / "scripts/alone.py"
    before = SourceIndex(root).imports_digest(path)
    path.write_text("x = 2  # changed\n")
    assert SourceIndex(root).imports_digest(path) == before
    path.write_text("import sibling\n")
    assert SourceIndex(root).imports_digest(path) != before


def test_what_an_import_would_have_found_first_is_named(root: Path) -> None:
    index = SourceIndex(root)
    index.closure(root / "scripts/sibling.py")
    assert index.absent == [
        "scripts/nothing", "scripts/nothing.py", "scripts/nothing/__init__.py",
    ] or index.absent == ["scripts/__init__.py", "scripts/nothing", "scripts/nothing.py",
                          "scripts/nothing/__init__.py"]  # fmt: skip
    assert index.relative(root.parent / "elsewhere.py") == f"{root.parent}/elsewhere.py"
    assert index.packages_around("scripts.lib.deep.inner") == [
        root / "scripts/lib/__init__.py", root / "scripts/lib/deep/__init__.py",
    ]  # fmt: skip


def test_a_program_is_python_by_its_name_or_its_first_line(root: Path) -> None:
    index = SourceIndex(root)
    for name, text, is_python in (
        ("a.py", "", True), ("a", "#!/usr/bin/env python3\nimport lib.masks", True),
        ("b", "#!/bin/sh\nimport python", False), ("c", "import python\n", False),
    ):  # fmt: skip
        path = root / "scripts" / name
        path.write_text(text)
        assert index.can_follow(path) is is_python
        assert ("scripts/lib/masks.py" in index.closure(path).files) is ("masks" in text)
    assert not index.can_follow(root / "none.py")


def test_a_dotted_module_is_found_in_the_workspace(root: Path) -> None:
    index = SourceIndex(root)
    assert index.module_file("pkg.mod") == root / "pkg/mod.py"
    assert index.module_file("numpy.linalg") is None
