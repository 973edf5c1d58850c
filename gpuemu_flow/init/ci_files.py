"""The CI workflows that ``init --ci`` writes, for GitHub and GitLab."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from gpuemu_flow.init.frameworks import Framework
from gpuemu_flow.init.installed import PipRequirement

REPORTS = ("gpuemu.html", "gpuemu.xml", "gpuemu.sarif")
VALIDATE = " ".join(["gpuemu-flow ci {mode} --require-all", *(f"-o {name}" for name in REPORTS)])

_GITHUB = """\
# Validates the ops of gpuemu.toml: a quick run for each pull request, all of it on main.
name: gpuemu-flow
on:
  pull_request:
  push:
    branches: [main]
permissions:
  contents: read
concurrency:
  group: gpuemu-flow-${{{{ github.ref }}}}
  cancel-in-progress: ${{{{ github.event_name == 'pull_request' }}}}
jobs:
  validate:
    runs-on: ubuntu-latest
    timeout-minutes: 30
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - name: Install
        run: |
{install}
      - name: Results of earlier runs, so that only what changed is validated
        uses: actions/cache@v4
        with:
          path: .gpuemu-cache
          key: gpuemu-${{{{ github.run_id }}}}
          restore-keys: gpuemu-
      - name: Configuration
        run: gpuemu-flow config check --strict
      - name: Quick
        if: github.event_name == 'pull_request'
        run: {quick}
      - name: Thorough
        if: github.event_name == 'push'
        run: {thorough}
      - uses: actions/upload-artifact@v4
        if: always()
        with:
          name: gpuemu-flow
          path: |
{reports}
"""

_GITLAB = """\
# Validates the ops of gpuemu.toml: a quick run for each merge request, all of it on main.
{head}gpuemu-flow:
  image: {image}
{variables}  rules:
    - if: $CI_PIPELINE_SOURCE == "merge_request_event"
      variables:
        GPUEMU_CI_MODE: quick
    - if: $CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH
      variables:
        GPUEMU_CI_MODE: thorough
  timeout: 30 minutes
  cache:
    key: gpuemu-flow
    paths:
      - .gpuemu-cache/
  before_script:
{install}
  script:
    - gpuemu-flow config check --strict
    - {validate}
  artifacts:
    when: always
    paths:
{reports}
    reports:
      junit: gpuemu.xml
"""


def _install(framework: Framework, origin: PipRequirement, indent: str) -> str:
    words = (*framework.install, shlex.quote(origin.with_extras(framework.extras)))
    return _lines(indent, [f"python -m pip install {what}" for what in words])


def _lines(indent: str, words: Iterable[str]) -> str:
    return "\n".join(f"{indent}{word}" for word in words)


def github(framework: Framework, origin: PipRequirement) -> str:
    """Return the content of ``.github/workflows/gpuemu.yml``."""
    return _GITHUB.format(
        install=_install(framework, origin, " " * 10),
        quick=VALIDATE.format(mode="quick"),
        thorough=VALIDATE.format(mode="thorough"),
        reports=_lines(" " * 12, REPORTS),
    )


def gitlab(framework: Framework, origin: PipRequirement) -> str:
    """Return the content of ``.gitlab-ci.yml``."""
    return gitlab_job(_install(framework, origin, "    - "), with_git=origin.needs_git)


def gitlab_job(install: str, *, with_git: bool, head: str = "", variables: str = "") -> str:
    """Return the content of a GitLab file with the job that checks a workspace."""
    return _GITLAB.format(
        head=head,
        # The slim image has no git, which pip calls for a repository.
        image="python:3.12" if with_git else "python:3.12-slim",
        variables=variables,
        install=install,
        validate=VALIDATE.format(mode='"$GPUEMU_CI_MODE"'),
        reports=_lines("      - ", REPORTS),
    )


CI_FILES = {
    "github": (".github/workflows/gpuemu.yml", github),
    "gitlab": (".gitlab-ci.yml", gitlab),
}
"""For each value of ``--ci``, the path of the file and the function that makes its content."""
