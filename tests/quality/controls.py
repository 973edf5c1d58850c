"""Other correct implementations of the workspace's ops, to measure false alarms.

Two forms: a whole file in ``controls/OP_NAME.py`` that takes the place of ``scripts/OP.py`` with
the same entry function, and edits of the op's own file in ``controls/edits.toml``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tomli
from mutants import replace_once

FOLDER = Path(__file__).parent / "controls"


@dataclass(frozen=True)
class Control:
    """One correct implementation.

    Attributes
    ----------
    op : str
        Name of the op in ``gpuemu.toml``.
    name : str
        Unique within the op.
    file : str
        The file that it changes, relative to the workspace.
    why : str
        In what it differs from the op.
    source : str
        Whole text of the file; empty when the control is an edit.
    old, new : str
        The edit, as in `mutants.Mutant`; empty when the control is a whole file.
    """

    op: str
    name: str
    file: str
    why: str
    source: str = ""
    old: str = ""
    new: str = ""

    @property
    def id(self) -> str:
        """``op/name``, unique over all controls."""
        return f"{self.op}/{self.name}"


def apply(control: Control, source: str) -> str:
    """The text of `control.file`, given the op's own text."""
    return control.source or replace_once(source, control.old, control.new, control.id)


def install(control: Control, workspace: Path) -> Path:
    """Put the control in place of the op in a copy of the workspace; returns the changed file."""
    path = workspace / control.file
    path.write_text(apply(control, path.read_text(encoding="utf-8")), encoding="utf-8")
    return path


def load_controls(ops: tuple[str, ...], folder: Path = FOLDER) -> tuple[Control, ...]:
    """All controls; `ops` are the names of the workspace's ops, longest match decides a file's."""
    controls = []
    for path in sorted(folder.glob("*.py")):
        op = max((name for name in ops if path.stem.startswith(f"{name}_")), key=len)
        text = path.read_text(encoding="utf-8")
        why = text.split('"""')[1].partition(":")[2].partition("\n")[0].strip()
        name = path.stem.removeprefix(f"{op}_").replace("_", "-")
        controls.append(Control(op, name, f"scripts/{op}.py", why, source=text))
    for row in tomli.loads((folder / "edits.toml").read_text(encoding="utf-8"))["control"]:
        controls.append(Control(file=f"scripts/{row['op']}.py", **row))
    return tuple(controls)


def _ops() -> tuple[str, ...]:
    config = Path(__file__).parents[2] / "gpuemu.toml"
    return tuple(op["name"] for op in tomli.loads(config.read_text(encoding="utf-8"))["ops"])


CONTROLS = load_controls(_ops())
