"""The reference page of the lint rules, generated from the rules themselves."""

from __future__ import annotations

from gpuemu_flow.artifacts.rules import RULES, Rule

_INTRODUCTION = """\
# Lint rules

<!-- Generated from gpuemu_flow/artifacts/rules; a test compares them. -->

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


def explain(rule: Rule) -> str:
    """Return the description of one rule as a section of Markdown."""
    example = "\n".join(f"    {line}" for line in rule.example.splitlines())
    return (
        f"## {rule.id}\n\n"
        f"Rule {rule.number}, {rule.severity}.\n\n"
        f"**What it does.** {rule.what}\n\n"
        f"**Why it matters.** {rule.why}\n\n"
        f"**Example.**\n\n{example}\n\n"
        f"**Instead.** {rule.instead}\n"
    )


def reference_page() -> str:
    """Return the whole page ``docs/lint-rules.md``."""
    rows = [f"| {r.number} | [{r.id}](#{r.id}) | {r.severity} |" for r in RULES]
    table = "\n".join(["| # | rule | severity |", "|---|---|---|", *rows])
    return "\n".join([_INTRODUCTION, table, "", *(explain(rule) for rule in RULES)])
