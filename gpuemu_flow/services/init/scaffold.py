"""Plan the files of a new workspace, from the choices of ``init``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from gpuemu_flow.config.load import load_config
from gpuemu_flow.config.read import read_source
from gpuemu_flow.services.init import examples
from gpuemu_flow.services.init.installed import PipRequirement

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


class Framework(Struct, frozen=True):
    """One choice of ``--framework``."""

    name: str
    # Value of ``[project] framework``.
    config_name: str
    # Modules that the example ops in this framework import besides numpy.
    modules: tuple[str, ...] = ()
    # Arguments of ``python -m pip install`` that install these modules for a CPU; one entry per
    # command.
    install: tuple[str, ...] = ()
    # Extras of gpuemu-flow itself: ``cuda`` if there are kernels to build and lint.
    extras: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """Return those of `modules` that this interpreter cannot import."""
        return [name for name in self.modules if find_spec(name) is None]


_TORCH = f"torch --index-url {TORCH_CPU_INDEX}"

FRAMEWORKS = {
    f.name: f
    for f in (
        Framework("numpy", "numpy"),
        Framework("pytorch", "pytorch", ("torch",), (_TORCH,)),
        Framework("jax", "jax", ("jax",), ("jax",)),
        Framework("tensorflow", "tensorflow", ("tensorflow",), ("tensorflow",)),
        Framework("triton", "triton", ("torch", "triton"), (_TORCH, "triton")),
        Framework("cuda", "numpy", extras=("cuda",)),
    )
}

SCHEMA_PATH = ".gpuemu/gpuemu.schema.json"
CONFIG_PATH = "gpuemu.toml"
IGNORE_PATH = ".gitignore"

_HEAD = """\
#:schema ./{schema}
# `gpuemu-flow run` validates the ops below; `gpuemu-flow config check` checks this file.

[project]
name = {name}
version = "0.1.0"
framework = "{framework}"

[validation]
dtypes = ["float32", "float16"]
seed = 42    # equal seeds give equal cases
cases = 24   # per op and dtype

[ci]
quick_dtypes = ["float32"]

[targets]
precommit = [{precommit}]
"""


class Op(Struct, frozen=True):
    """One example op: its table in ``gpuemu.toml`` and its reference."""

    name: str
    reference: str
    table: str


OPS = (
    Op(
        "softmax",
        examples.REFERENCE_SOFTMAX,
        """\
input_names = ["x"]
invariants = ["non_negative"]
[ops.schema]
dims = { M = { min = 1, max = 33 }, N = { min = 1, max = 300 } }
inputs = { x = ["M", "N"] }
output = ["M", "N"]
""",
    ),
    Op(
        "matmul",
        examples.REFERENCE_MATMUL,
        """\
input_names = ["a", "b"]
[ops.schema]
dims = { M = { min = 1, max = 70 }, N = { min = 1, max = 70 }, K = { min = 1, max = 130 } }
inputs = { a = ["M", "K"], b = ["K", "N"] }
output = ["M", "N"]
""",
    ),
)

_SOURCES: Mapping[str, tuple[str, str]] = {
    "numpy": (examples.NUMPY_SOFTMAX, examples.NUMPY_MATMUL),
    "cuda": (examples.CUDA_SOFTMAX, examples.NUMPY_MATMUL),
    "pytorch": (examples.TORCH_SOFTMAX, examples.TORCH_MATMUL),
    "jax": (examples.JAX_SOFTMAX, examples.JAX_MATMUL),
    "tensorflow": (examples.TENSORFLOW_SOFTMAX, examples.TENSORFLOW_MATMUL),
    "triton": (examples.TRITON_SOFTMAX, examples.TRITON_MATMUL),
}

_COMPILED = ("cuda", "softmax")
"""The framework and the op whose kernel is compiled and run by the emulator."""

_CUDA_SOURCE = "scripts/kernels/softmax.cu"
_CUDA_PROGRAM = """\
{ kind = "cuda", kernel = "softmax_kernel", entry = "softmax", grid = ["M"], block = [128], \
args = ["x", "y", { i32 = "N" }], outputs = { y = ["M", "N"] } }"""

_CUDA_HOST = """\
# Or run the whole host function, which allocates, copies and launches; nvcc compiles it:
# op = { kind = "cuda", file = "scripts/kernels/softmax.cu", function = "softmax_rows" }
"""

_KERNEL = """
# Built by nvcc, linted, and run by the op of its name; all of it is skipped, and counted as such,
# where there is no nvcc.
[[kernels]]
name = "softmax_kernel"
source = "scripts/kernels/softmax.cu"
threads_per_block = 128
build = { arch = ["sm_80"] }
artifact_checks = { max_registers = 64, max_spills = 0 }
"""


def plan_files(
    name: str,
    framework: Framework,
    *,
    with_examples: bool,
    ci: str | None,
    origin: PipRequirement,
) -> dict[str, bytes]:
    """Return the contents of a new workspace's files by relative path, the configuration last."""
    chosen = OPS if with_examples else OPS[:1]
    planned: dict[str, str] = {}
    for op, source in zip(chosen, _SOURCES[framework.name], strict=False):
        compiled = (framework.name, op.name) == _COMPILED
        planned[_CUDA_SOURCE if compiled else f"scripts/{op.name}.py"] = source
        planned[f"scripts/{op.name}_ref.py"] = op.reference
    planned[SCHEMA_PATH] = (files("gpuemu_flow") / "schemas" / "gpuemu.schema.json").read_text(
        "utf-8"
    )
    planned[CONFIG_PATH] = config_text(name, framework, chosen)
    workflow = plan_workflow(framework, ci, origin) if ci is not None else {}
    return {**workflow, **{path: text.encode() for path, text in planned.items()}}


def plan_workflow(framework: Framework, ci: str, origin: PipRequirement) -> dict[str, bytes]:
    """Return the content of the workflow for a CI service, by relative path; see `plan_files`."""
    path, make = CI_FILES[ci]
    return {path: make(framework, origin).encode()}


def framework_of(config: Path) -> str:
    """Return the framework, a key of `FRAMEWORKS`, that a configuration names; else ``numpy``.

    Raises ConfigError: The configuration is invalid; the error lists all its problems.
    """
    load_config(config)
    # The loaded configuration has a default even if the file names none.
    named = read_source(config, config.name).tree.get("project", {}).get("framework")
    return named if named in FRAMEWORKS else "numpy"


def config_text(name: str, framework: Framework, ops: tuple[Op, ...]) -> str:
    """Return the content of ``gpuemu.toml``."""
    # A JSON string is a TOML basic string, except that JSON does not escape DEL.
    quoted = json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")
    kernel = framework.name == "cuda"
    head = _HEAD.format(
        schema=SCHEMA_PATH,
        name=quoted,
        framework=framework.config_name,
        precommit='"quick", "lint"' if kernel else '"quick"',
    )
    tables = [_op_table(op, framework) for op in ops]
    return "".join([head, *tables, _KERNEL if kernel else ""])


def _op_table(op: Op, framework: Framework) -> str:
    program, more = f'"scripts/{op.name}.py:{op.name}"', ""
    if (framework.name, op.name) == _COMPILED:
        program, more = _CUDA_PROGRAM, _CUDA_HOST + 'dtypes = ["float32"]\n'
    if framework.name == "triton":
        program = f'{{ kind = "triton", file = "scripts/{op.name}.py", function = "run" }}'
    return (
        f'\n[[ops]]\nname = "{op.name}"\nop = {program}\n'
        f'reference = "scripts/{op.name}_ref.py:{op.name}"\n{more}{op.table}'
    )


def ignored() -> list[str]:
    """Return the lines of ``.gitignore`` for the files that commands write to a workspace."""
    return [".gpuemu-cache/", "__pycache__/", *(f"/{name}" for name in REPORTS)]


def ignore_lines(known: bytes) -> bytes:
    """Return the content of a ``.gitignore``, completed by the lines of `ignored` that it lacks.

    `known` is its present content.
    """
    present = {line.strip() for line in known.splitlines()}
    missing = [line for name in ignored() if (line := name.encode()) not in present]
    if not missing:
        return known
    gap = b"" if not known or known.endswith(b"\n") else b"\n"
    return known + gap + b"\n".join([b"# gpuemu-flow", *missing, b""])


def project_name(folder: Path) -> str:
    """Return a project name, made from the folder's name."""
    printable = "".join(c for c in folder.resolve().name if c.isprintable())
    return printable[:200] or "ops"


# The CI workflows that ``init --ci`` writes, for GitHub and GitLab.


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
  security-events: write  # findings at their lines, in the code that is reviewed
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
      - uses: github/codeql-action/upload-sarif@v3
        if: always()
        continue-on-error: true  # a fork or a private repository may not have code scanning
        with:
          sarif_file: gpuemu.sarif
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
