"""Check names of ops, kernels and targets, and split the names of tasks."""

from __future__ import annotations

from gpuemu_flow.model.types import DTYPES

OP_STAGES = ("generate", "op", "reference", "compare", "diff")
KERNEL_STAGES = ("build", "code", "lint", "diff")
BUILD = "build"
STAGES = tuple(dict.fromkeys((*OP_STAGES, *KERNEL_STAGES)))
GROUPS = ("quick", "lint", "all")


def name_fault(name: str) -> str:
    """Return the reason why an op, kernel or target cannot have this name; empty if it can.

    A task is called ``STAGE:SUBJECT`` or ``STAGE:SUBJECT:DTYPE`` (``:ARCH`` for kernels). A subject
    may itself contain colons (``aten::softmax``). But a subject must not begin with a stage or end
    with a dtype, so that the parts can be recognised.
    """
    first, _, last = name.split(":", 1)[0], "", name.rsplit(":", 1)[-1]
    if name in STAGES or name in GROUPS:
        return "is the name of a stage or group"
    if ":" in name and first in STAGES:
        return f"begins with the stage {first!r}, as tasks do"
    if ":" in name and last in DTYPES:
        return f"ends with the dtype {last!r}, as tasks do"
    if name.startswith(("-", "/", ":")) or name.endswith(("/", ":")):
        return "begins or ends with a sign that separates names"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "has an empty part, '.' or '..' between slashes"
    return ""


def split_task(name: str) -> tuple[str, str, str] | None:
    """Split a task's name into stage, subject and last part.

    The last part is a dtype, or an architecture (``sm_...``), or empty if there is neither. A
    subject may also end in ``:sm_...``. This end is split off like an architecture, since only the
    configuration's names could tell the difference. Return None if `name` begins with no stage.

    >>> split_task("compare:aten::softmax:float32")
    ('compare', 'aten::softmax', 'float32')
    >>> split_task("lint:softmax_kernel")
    ('lint', 'softmax_kernel', '')
    """
    stage, colon, rest = name.partition(":")
    if stage not in STAGES or not colon or not rest:
        return None
    subject, colon, last = rest.rpartition(":")
    if not colon or not subject:
        return stage, rest, ""
    is_arch = last.startswith("sm_")
    return (stage, subject, last) if last in DTYPES or is_arch else (stage, rest, "")
