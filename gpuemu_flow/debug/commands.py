"""The debugger's commands: names, short names, and help texts."""

from __future__ import annotations

from gpuemu_flow.debug.pipeline import STAGES
from gpuemu_flow.quick_dataclass import dataclass


@dataclass(frozen=True)
class Command:
    """A command of the debugger."""

    name: str
    aliases: tuple[str, ...]
    usage: str
    summary: str


COMMANDS = (
    Command("list", ("ls",), "list [LIMIT]", "failures, newest first"),
    Command("show", ("s",), "show [SEED|ID]", "one failure; it is then the selected one"),
    Command("reproduce", ("repro", "r"), "reproduce [SEED|ID]", "run it again as the op is now"),
    Command("step", ("n", "next"), f"step [{'|'.join(STAGES)}|all]",
            "the next stage of the pipeline, and what came out of it"),
    Command("tensor", ("t",), "tensor [NAME[SLICE]]", "values, as in `tensor actual[0, 1:4]`"),
    Command("diff", ("d",), "diff [A B]", "a map of where two tensors differ"),
    Command("minimize", ("min",), "minimize [SEED|ID]", "the smallest case that fails alike"),
    Command("export", ("e",), "export [SEED|ID] [FILE]", "a test file that numpy alone can run"),
    Command("status", (), "status", "the workspace and the selected failure"),
    Command("refresh", (), "refresh", "read failures anew and forget what was run"),
    Command("clear", (), "clear", "clear the screen"),
    Command("help", ("h", "?"), "help", "this list"),
    Command("quit", ("exit", "q"), "quit", "leave; so does the end of the input"),
)  # fmt: skip
BY_WORD = {word: c for c in COMMANDS for word in (c.name, *c.aliases)}
