"""The tool as its users have it: installed from this checkout into a virtual environment."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from processes import output_of, plain_environment

CHECKOUT = Path(__file__).resolve().parent.parent
_NOT_COPIED = (".git", ".venv", ".gpuemu-cache", "__pycache__", "build", "*.egg-info")


def install(home: Path, *, editable: bool = False) -> Path:
    """Install the checkout as it is now, unless that was done before.

    Parameters
    ----------
    home : Path
        Made where it is missing.
    editable : bool

    Returns
    -------
    Path
        The environment's folder of programs.

    Raises
    ------
    CommandFailedError
    """
    programs = home / "venv" / "bin"
    done, digest = home / "version", checkout_digest()
    if done.exists() and done.read_text() == digest:
        return programs
    print(f"installing into {home}", file=sys.stderr)
    # A copy: building a package writes into its source folder.
    source = home / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(CHECKOUT, source, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet"]
    if done.exists():
        pip += ["--no-deps", "--force-reinstall"]
    else:
        create = [sys.executable, "-m", "venv", "--upgrade-deps", str(home / "venv")]
        output_of(create, home, plain_environment())
    what = ["--editable", str(source)] if editable else [str(source)]
    output_of([*pip, *what], home, plain_environment())
    done.write_text(digest)
    return programs


def checkout_digest() -> str:
    """Changes whenever a file of the package does."""
    digest = hashlib.sha256(CHECKOUT.joinpath("pyproject.toml").read_bytes())
    for path in sorted(CHECKOUT.joinpath("gpuemu_flow").glob("**/*")):
        if path.suffix in (".py", ".json"):
            digest.update(path.read_bytes())
    for folder in ("tasks", "schemas"):  # links, which glob does not follow
        for path in sorted(CHECKOUT.joinpath(folder).glob("*.*")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
