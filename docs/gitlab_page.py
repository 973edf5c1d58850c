"""``docs/gitlab-ci.yml``: the job of ``init --ci gitlab``, for projects to include."""

from __future__ import annotations

from gpuemu_flow.services.init.scaffold import gitlab_job

_HEAD = """\
# Made by `python docs/generate.py`, for projects to include:
#
#   include:
#     - remote: https://HOST/gitlab-ci.yml
#   gpuemu-flow:
#     variables:
#       GPUEMU_PACKAGES: torch --extra-index-url https://download.pytorch.org/whl/cpu
"""
_VARIABLES = """\
  variables:
    GPUEMU_FLOW: gpuemu-flow  # as a requirement of pip: with a version, or from a repository
    GPUEMU_PACKAGES: ""       # what the ops import besides numpy, as arguments of pip install
"""
_INSTALL = """\
    - python -m pip install $GPUEMU_PACKAGES "$GPUEMU_FLOW"
    - python -m gpuemu_flow.services.init.needs | xargs -r python -m pip install"""


def gitlab_to_include() -> str:
    """Return the file, with variables for project-specific values."""
    return gitlab_job(_INSTALL, with_git=True, head=_HEAD, variables=_VARIABLES)
