"""Draw ``docs/images/run.svg`` from a real run: ``python docs/make_picture.py``.

Copies the repository's workspace to a temporary folder, runs the commands below in a pseudo-
terminal, plants a bug between them, and lets rich draw what the terminal showed.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from fcntl import ioctl
from io import StringIO
from pathlib import Path
from termios import TIOCSWINSZ

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

REPOSITORY = Path(__file__).resolve().parent.parent
PICTURE = REPOSITORY / "docs" / "images" / "run.svg"
COLUMNS, LINES = 112, 50
RIGHT_RUN, WRONG_RUN = ("run", "softmax", "matmul"), ("run", "softmax", "--dtype", "float32")
SCRIPT, RIGHT, WRONG = "scripts/softmax.py", "TILE, -np.inf, acc", "TILE, 0.0, acc"
_CURSOR_SHOWN = "\x1b[?25h"
_LINE_CONTROL = re.compile(r"\x1b\[(?:\d*[ABCDGJK]|\?\d+[hl])|\r")
_FONT_FACE = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)


def terminal_output(folder: Path, *arguments: str) -> str:
    """What stays on a terminal's screen, colours included, after ``gpuemu-flow ARGUMENTS``."""
    own, other = pty.openpty()
    ioctl(other, TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("GPUEMU", "NO_COLOR"))}
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuemu_flow", *arguments],
        cwd=folder,
        env={**plain, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)},
        stdin=other,
        stdout=other,
        stderr=other,
    )
    os.close(other)
    pieces = []
    while True:
        try:
            piece = os.read(own, 1 << 16)
        except OSError:  # Linux's way to say that the other end is closed
            break
        if not piece:
            break
        pieces.append(piece)
    process.wait()
    os.close(own)
    text = b"".join(pieces).decode("utf-8", "replace")
    # The live display ends by showing the cursor again; what comes after it stays.
    return _LINE_CONTROL.sub("", text.rpartition(_CURSOR_SHOWN)[2])


def draw() -> str:
    """The picture as SVG."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)

    def prompt(command: str) -> None:
        console.print(Text.assemble(("$ ", "green"), (command, "bold")))

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "workspace"
        folder.mkdir()
        shutil.copy(REPOSITORY / "gpuemu.toml", folder)
        shutil.copytree(REPOSITORY / "scripts", folder / "scripts")
        prompt(" ".join(("gpuemu-flow", *RIGHT_RUN)))
        console.print(Text.from_ansi(terminal_output(folder, *RIGHT_RUN)))
        script = folder / SCRIPT
        source = script.read_text(encoding="utf-8")
        if source.count(RIGHT) != 1:
            raise SystemExit(f"{SCRIPT} does not hold {RIGHT!r} once")
        script.write_text(source.replace(RIGHT, WRONG), encoding="utf-8")
        prompt(f"sed -i 's/{RIGHT}/{WRONG}/' {SCRIPT}   # masked lanes hold 0")
        prompt(" ".join(("gpuemu-flow", *WRONG_RUN)))
        shown = terminal_output(folder, *WRONG_RUN)
        console.print(Text.from_ansi(shown.replace(str(folder) + "/", "")))
    # Without the web fonts: the file needs nothing from elsewhere.
    return console.export_svg(
        title="gpuemu-flow",
        code_format=_FONT_FACE.sub("", CONSOLE_SVG_FORMAT),
        unique_id="run",
    )


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(REPOSITORY)}")
