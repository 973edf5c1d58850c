"""The checks that runners make when programs run for a verdict."""

from __future__ import annotations

from gpuemu_flow.runners.api import Checks

PLAIN = Checks(inputs_unchanged=False)
"""Only the outputs are checked: for references, and for ops if all checks would take too long."""

FULL_CHECKS = Checks(inputs_unchanged=True, guards=True, decoy=True, repeat=True)
"""All checks: for ops in ``run``, and for some cases elsewhere; see ``docs/oracle.md``."""
