"""Test that workers find modules that were made while the fork server ran."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

NAME = "a_module_of_the_test"


def test_modules_made_since_a_folder_was_listed_are_found(tmp_path: Path) -> None:
    """By a finder that would not look again, as the folder's time of change is the old one."""
    code = f"""
import importlib, os, sys
from pathlib import Path
from gpuemu_flow.runners import imports

folder = Path({str(tmp_path)!r})
sys.path.insert(0, str(folder))
before = folder.stat()

def there():
    try:
        importlib.import_module({NAME!r})
    except ImportError:
        return False
    return True

found = [there()]
(folder / "{NAME}.py").write_text("")
os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
found.append(there())
imports.forget_folders()
found.append(there())
print(found)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.stdout.strip() == "[False, False, True]", done.stderr
