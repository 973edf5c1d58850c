"""Number literals of PTX."""

from __future__ import annotations


def parse_integer(text: str) -> int | None:
    """Read a PTX integer literal (decimal, ``0x``, ``0b``, octal, optional ``U``), or return None.

    Source: PTX ISA, "Integer Constants".
    """
    digits = text.strip().rstrip("U")
    if not digits or len(digits) > 80:
        return None
    sign = -1 if digits[0] == "-" else 1
    digits = digits.lstrip("+-")
    base = 10
    lower = digits.lower()
    if lower.startswith("0x"):
        base, digits = 16, digits[2:]
    elif lower.startswith("0b"):
        base, digits = 2, digits[2:]
    elif len(digits) > 1 and digits[0] == "0":
        base, digits = 8, digits[1:]
    if not (digits.isascii() and digits.isalnum()):
        return None
    try:
        return sign * int(digits, base)
    except ValueError:
        return None
