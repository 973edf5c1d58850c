"""Ops that need contracts of inputs and outputs: three right implementations of each, five wrong.

Three folders: ``contracts`` (of inputs), ``output_ops`` (of outputs) and ``edge_ops``, in which
both are written as kernels are: in tiles, in one pass, or fused.
"""

from __future__ import annotations

import ast
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
HEAD = '[project]\nname = "contracts"\n'


@dataclass(frozen=True)
class ContractOp:
    """An op with its implementations.

    Attributes
    ----------
    folder : str
        The set that it belongs to.
    name : str
        Unique over all sets.
    """

    folder: str
    stem: str

    @property
    def name(self) -> str:
        """The set and the op: two sets have ops of one name."""
        return f"{self.folder}-{self.stem}"

    def functions(self, *prefixes: str) -> list[str]:
        """Return the names of its functions that begin so."""
        path = HERE / self.folder / f"{self.stem}.py"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        return [name for name in names if name.startswith(prefixes)]

    def table(self, function: str, cases: str = "") -> str:
        """Return the part of a ``gpuemu.toml`` that has one of its functions as an op.

        Parameters
        ----------
        function : str
        cases : str
            How many in place of the default.
        """
        text = (HERE / self.folder / f"{self.stem}.toml").read_text(encoding="utf-8")
        if self.folder == "contracts":
            text = f"[ops.schema]\n{text}"
            reference = (
                f"refs_{self.folder}/{self.stem}.py"  # an op is not its own reference's file
            )
        else:
            reference = f"{self.folder}/{self.stem}_ref.py"
            text = text.replace('"' + self.stem + "_", f'"{self.folder}/{self.stem}_')
        if cases:
            text = f"cases = {cases}\n" + text.replace("\ncases = 12", "")
        return (
            f'\n[[ops]]\nname = "{self.name}-{function}"\n'
            f'op = "{self.folder}/{self.stem}.py:{function}"\n'
            f'reference = "{reference}:reference"\n{text}\n'
        )


def contract_ops(*folders: str) -> list[ContractOp]:
    """Return the ops of some sets, of all by default."""
    return [
        ContractOp(folder, path.stem)
        for folder in folders or ("contracts", "output_ops", "edge_ops")
        for path in sorted((HERE / folder).glob("*.toml"))
    ]


Chosen = tuple[ContractOp, str]


def write_workspace(
    folder: Path, chosen: Sequence[Chosen], *, head: str = HEAD, cases: str = ""
) -> None:
    """Write a workspace whose ops are some implementations."""
    folder.mkdir(parents=True)
    for source in sorted({op.folder for op, _ in chosen}):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(HERE / source, folder / source, ignore=ignored)
        if source == "contracts":
            shutil.copytree(HERE / source, folder / f"refs_{source}", ignore=ignored)
    tables = [op.table(function, cases) for op, function in chosen]
    (folder / "gpuemu.toml").write_text(head + "".join(tables), encoding="utf-8")
