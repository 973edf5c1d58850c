"""Make text of unknown origin harmless to terminals and CI logs. Only this module does so.

An op determines its output, its error messages and, in a pull request, its name. Terminals execute
control characters. CI services execute log lines that begin with ``::``, or contain ``##[``
(GitHub) or ``##vso[`` (Azure). These services use different line separators, and all of those are
handled.
"""

from __future__ import annotations

import re

LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
"""Characters that end a line for terminals, for logs, or for `str.splitlines`."""

# No encoding has a sign for half of a surrogate pair, which stands for a byte of a path that is no
# text.
_NOT_SHOWN = re.compile(f"[{LINE_ENDS[1:]}\ud800-\udfff]")
_UNUSUAL = re.compile(r"[^\x20-\x7e\n\t]")
# At a line's begin blanks and colours do not count; blanks without line ends, or many empty lines
# would take quadratic time.
_COLOUR = r"\x1b\[[\d;]*m"
_BEGIN = rf"(?:\A|(?<=[{LINE_ENDS}]))(?:[^\S{LINE_ENDS}]|{_COLOUR})*"
# A log that takes colours out may join the halves of a command.
_COMMAND = re.compile(rf"({_BEGIN}):(?=(?:{_COLOUR})*:)|#(?=(?:{_COLOUR})*#(?:{_COLOUR}|\w)*\[)")
# The first half of a command at a text's end; what the text is put before may bring the other.
_HALF_COMMAND = re.compile(rf"({_BEGIN}):\Z|#(?=#\w*\Z)")
_KEPT = re.compile(r"(<(script|style)\b.*?</\2>)", re.DOTALL)
_COMMAND_IN_JSON = re.compile(r"#(?=#\w*\[)")
# Characters that XML 1.0 and HTML cannot hold, C1 control characters, which terminals execute, and
# characters that reverse the direction of text. Few commands use it, so it is not compiled here.
_NOT_IN_MARKUP = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
    "\ud800-\udfff\ufffe\uffff]"
)


def printable(text: str) -> str:
    """Return text that cannot move the cursor or act as a command in a CI log. Control characters,
    and line separators other than a newline, are replaced by their code. So is the first character
    of each command. If the text ends with the first part of a command, this part's first character
    is replaced, too, since the text printed next could complete the command."""
    if text.isascii() and text.isprintable() and ":" not in text and "#" not in text:
        return text  # as nearly all of the thousands of cells of a table
    plain = _UNUSUAL.sub(lambda c: c[0] if c[0].isprintable() else _by_number(c), text)
    return _HALF_COMMAND.sub(_first_sign_by_number, _without_commands(plain))


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, which is in the plural unless the count is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def clipped(text: str, width: int) -> str:
    """Return a text in one line of at most `width` characters; cut the middle if needed."""
    text = " ".join(text.split())
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def inert(document: str) -> str:
    """Return a document in which no CI system finds a command. The parts of the document need not
    be results of `printable`. Colours are kept, and only newlines end lines. Bytes that are not
    valid UTF-8, such as those of a file's name, are replaced by their code."""
    return _without_commands(_NOT_SHOWN.sub(_by_number, document))


def inert_markup(markup: str) -> str:
    """Return equivalent XML or HTML in which no line is a command to a CI log. Scripts and styles
    are not changed, because character references do not work there."""
    parts = _KEPT.split(markup)  # text, block, its name, text, ...
    parts[::3] = [
        _COMMAND.sub(lambda c: "&#35;" if c[0] == "#" else f"{c[1]}&#58;", part)
        for part in parts[::3]
    ]
    del parts[2::3]
    return "".join(parts)


def inert_json(text: str) -> str:
    """Return equivalent JSON, in ASCII, in which no line is a command to a CI log."""
    return _COMMAND_IN_JSON.sub(r"\\u0023", text)


def clean(text: str) -> str:
    """Return text with escapes for what XML and HTML cannot hold or what reorders a line. Only
    newlines break its lines."""
    plain = _NOT_SHOWN.sub(_by_number, text.replace("\r\n", "\n"))
    return re.sub(_NOT_IN_MARKUP, lambda found: f"\\x{ord(found[0]):02x}", plain)


def _without_commands(text: str) -> str:
    return _COMMAND.sub(_first_sign_by_number, text)


def _first_sign_by_number(command: re.Match[str]) -> str:
    return "\\x23" if command[0] == "#" else f"{command[1]}\\x3a"


def _by_number(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number - 0xDC00 if 0xDC80 <= number <= 0xDCFF else number:02x}"
