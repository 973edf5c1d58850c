"""Sets of runner checks to use when programs run for a verdict."""

from __future__ import annotations

from gpuemu_flow.runners.api import Checks

PLAIN = Checks(inputs_unchanged=False)
"""Nothing but the outputs: for references, and for ops where a full look would take too long."""

FULL_CHECKS = Checks(inputs_unchanged=True, guards=True, decoy=True, repeat=True)
"""Everything: for ops in ``run``, and now and again elsewhere; see ``docs/oracle.md``."""
