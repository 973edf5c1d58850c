"""``docs/lint-rules.md``, made from the lint rules themselves."""

from __future__ import annotations

from gpuemu_flow.lint.rules import RULES, explain

_INTRODUCTION = """\
# Lint rules

<!-- Generated from gpuemu_flow/lint/rules; a test compares them. -->

`gpuemu-flow lint` checks PTX and cubins by these rules; `gpuemu-flow lint --explain RULE` shows one
of them. Severities: an **error** fails the kernel, a **warning** and **info** are shown. A limit
that you have not set yourself only warns. Change a rule's severity for the workspace:

<!-- load -->
```toml
[policies]
rules = { scalar-accesses = "off", debug-call = "error" }
```

Accept a violation with a reason in the source, on its line or above it,

```c++
// gpuemu: allow debug-call reports overflow once, on purpose
```

or for a whole kernel in the configuration:

<!-- load -->
```toml
[[kernels]]
name = "softmax_kernel"
source = "kernels/softmax.cu"
allow = { debug-call = "reports overflow once, on purpose" }
```

A rule that has nothing to look at (no PTX, no cubin) is listed as unchecked, never passed over.
"""


def reference_page() -> str:
    """Return the whole page ``docs/lint-rules.md``."""
    rows = [f"| {n} | [{r.id}](#{r.id}) | {r.severity} |" for n, r in enumerate(RULES, 1)]
    table = "\n".join(["| # | rule | severity |", "|---|---|---|", *rows])
    return "\n".join([_INTRODUCTION, table, "", *(explain(rule) for rule in RULES)])
