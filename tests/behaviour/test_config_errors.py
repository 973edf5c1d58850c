"""One file with a mistake in nearly every op: each is named at its line, what is right is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mini_workspace import Mini

PAIR = (
    'inputs.x = {{ dims = ["N"], dtype = "{d}", range = {a} }}\n'
    'inputs.y = {{ dims = ["N"], dtype = "{d}", range = {b} }}\nconstraints = ["x {s} y"]'
)
X = 'inputs.x = {{ dims = ["N"], {} }}'
OK = ""


def pair(a: str, sign: str, b: str, dtype: str = "int32") -> str:
    return PAIR.format(a=a, b=b, s=sign, d=dtype)


def x(declared: str) -> str:
    return X.format(declared)


def out(declared: str) -> str:
    return f'inputs.x = ["N"]\noutput = {{ dims = ["N"], {declared} }}'


def dims(declared: str, more: str = 'inputs.x = ["N"]') -> str:
    return f"dims = {{ {declared} }}\n{more}"


SCHEMAS = {
    # Two inputs whose ranges do or do not allow a relation
    pair("[0, 5]", ">=", "[0, 5]"): OK,
    pair("[0, 5]", ">", "[0, 5]"): "schema-unsatisfiable",
    pair("[0, 5]", ">", "[0, 5]", "float32"): OK,
    pair("[0, 5]", ">=", "[0, 9]"): "schema-unsatisfiable",
    pair("[0, 6]", ">", "[0, 5]"): OK,
    pair("[0, 5]", "<=", "[0, 5]"): OK,
    pair("[0, 5]", "<", "[0, 5]"): "schema-unsatisfiable",
    pair("[0, 5]", "<", "[1, 5]"): OK,
    pair("[3, 5]", "<=", "[0, 5]"): "schema-unsatisfiable",
    pair("[3, 3]", "!=", "[0, 5]"): "schema-unsatisfiable",
    pair("[3, 4]", "!=", "[0, 5]"): OK,
    pair("[0, 5]", "==", "[0, 5]"): OK,
    pair("[0, 5]", "==", "[0, 6]"): "schema-unsatisfiable",
    pair("[1, 5]", "==", "[0, 5]"): "schema-unsatisfiable",
    pair("[0, 5]", "=>", "[0, 5]"): "schema-constraint",
    # Ranges and values
    x("range = [3, 1]"): "schema-range",
    x("range = [1]"): "schema-range",
    x("range = [0, 1], nonfinite = true"): OK,
    x("range = [0, 'Q']"): "schema-unknown-dim",
    x("range = [0, 'N-1']"): OK,
    x("values = []"): "schema-values",
    x("values = [1], share = 2"): "schema-values",
    x("share = 0.5"): "schema-rule-key",
    x('dtype = "floot32"'): "schema-dtype",
    x('dtype = "same as x"'): "schema-dtype",
    # Kinds
    x('kind = "permutatoin"'): "schema-kind",
    x('dtype = "int64", kind = "permutation"'): OK,
    x('dtype = "int64", kind = "permutation", range = [0, 3]'): "schema-rule-key",
    x('dtype = "int32", kind = "offsets"'): "schema-rule-key",
    x('dtype = "int32", kind = "lengths", to = "Q"'): "schema-unknown-dim",
    x('dtype = "bool", kind = "mask", share = 1.5'): "schema-values",
    x('kind = "symmetric"'): "schema-unsatisfiable",
    x('dtype = "int64", kind = "unique", range = [0, 2]'): "schema-unsatisfiable",
    x('dtype = "int64", kind = "indices"'): "schema-rule-key",
    x('dtype = "int64", kind = "indices", of = "z"'): "schema-rule-key",
    x('dtype = "int8", kind = "packed"'): "schema-dtype",
    x("descending = true"): "schema-rule-key",
    x('generate = "nowhere.py:f"'): "config-path-missing",
    x('generate = "a.py:f", range = [0, 1]'): "schema-rule-key",
    x("list = 0"): "schema-group",
    x("list = [3, 1]"): "schema-group",
    x("list = 99"): "schema-group",
    x("optional = 1"): "schema-type",
    x("colour = 1"): "config-unknown-key",
    # Dims
    dims("N = []"): "schema-dim-empty",
    dims("N = [-1]"): "schema-dim-size",
    dims("N = { min = 5, max = 1 }"): "schema-dim-range",
    dims("N = { min = 3, max = 7, multiple_of = 8 }"): "schema-dim-range",
    dims('N = "M*2"'): "schema-unknown-dim",
    dims('N = "N+1"'): "schema-expression",
    dims('N = [4], M = "N//0"', 'inputs.x = ["M"]'): "schema-unsatisfiable",
    dims('N = [4], M = "2**N"', 'inputs.x = ["M"]'): "schema-expression",
    dims("N = [4]", 'inputs.x = ["Q"]'): "schema-unknown-dim",
    dims("N = [4]", 'inputs.x = ["N", 1.5]'): "schema-dim-size",
    dims("N = [4]", 'inputs.x = ["N"]\nconstraints = ["N > 9"]'): "schema-unsatisfiable",
    dims("N = [4]", 'inputs.x = ["N"]\nconstraints = ["x.sum() = N"]'): "schema-constraint",
    dims("N = [4]", 'inputs.x = ["N"]\nconstraints = ["x < 3"]'): "schema-constraint",
    dims("N = [4]", 'inputs.x = ["N"]\nscalars = { k = [] }'): "schema-values",
    dims("N = [4]", 'inputs.x = ["N"]\nscalars = { k = { range = [3, 1] } }'): "schema-range",
    dims("N = [4]", 'inputs.x = ["N"]\nscalars = { x = [1] }'): "schema-duplicate",
    # Outputs
    out('ties = "all"'): "schema-contract",
    out('dtype = "int64", ties = "any"'): OK,
    out('dtype = "int64", ties = "any", of = "z"'): "schema-contract",
    out('order = "some"'): "schema-contract",
    out('up_to = "scale"'): "schema-contract",
    out('up_to = "sign", axis = 3'): "schema-contract",
    out('only = "z"'): "schema-contract",
    out("range = [2, 1]"): "schema-range",
    out("tolerance = -1"): "schema-contract",
    out("tolerance = { atol = 1, ratol = 2 }"): "schema-contract",
    out('compare = "nowhere.py:f"'): "config-path-missing",
    out("statistics = { zeros = 2 }"): "schema-contract",
    out('dtype = "same as z"'): "schema-contract",
}
KEYS = {
    'op = "nowhere.py:f"': "config-path-missing",
    'op = "../x.py:f"': "config-path-outside",
    'dtypes = ["floot16"]': "config-unknown-dtype",
    "dtypes = []": "config-value",
    "cases = 0": "config-value",
    'cases = "many"': "config-type",
    "timeout = -1": "config-value",
    "timeout = inf": "config-value",
    'layouts = ["sideways"]': "config-unknown-layout",
    'strategies = ["wild"]': "config-unknown-strategy",
    'invariants = ["pretty"]': "config-unknown-invariant",
    "tolerances = { float32 = -1 }": "config-tolerance",
    "tolerances = { float99 = 1 }": "config-unknown-dtype",
    'tolerance = "loose"': "config-value",
    'precision = "double"': "config-value",
    'nan_policy = "maybe"': "config-value",
    'isolation = "none"': "config-value",
    'mutates = ["z"]': "config-value",
    'memory_limit = "much"': "config-value",
    "kwargs = { x = 1 }": "config-conflict",
    "env = { A = 1 }": "config-type",
    'schmea = "unary"': "config-unknown-key",
    "gradients = true": "config-no-gradient",
    'depends = ["../**"]': "config-path-outside",
}


def write(folder: Path) -> tuple[Mini, dict[int, tuple[str, str]]]:
    """Write the file; return for each op's last line what is said of it."""
    mini = Mini(folder)
    mini.write("a.py", "def f(x): return x\n")
    mini.write("r.py", "def f(x): return x + 0\n")
    lines = ["[project]", 'name = "errors"']
    wanted = {}
    for number, (text, slug) in enumerate([*SCHEMAS.items(), *KEYS.items()]):
        begin = len(lines) + 1
        lines += ["[[ops]]", f'name = "op{number}"', 'reference = "r.py:f"']
        is_key = text in KEYS
        lines += [text] if is_key else []
        lines += [] if text.startswith("op = ") else ['op = "a.py:f"']
        lines += ["[ops.schema]"]
        if not text.startswith("dims"):
            lines += ["dims = { N = [4] }"]
        lines += ['inputs.x = ["N"]'] if is_key else text.split("\n")
        if "output" not in text:
            lines += ['output = ["N"]']
        for line in range(begin, len(lines) + 1):
            wanted[line] = (text, slug)
    (mini.root / "gpuemu.toml").write_text("\n".join(lines) + "\n")
    return mini, wanted


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    mini, wanted = write(tmp_path_factory.mktemp("errors") / "w")
    said = mini.command("config", "check", code=2).stderr
    slugs: dict[str, list[str]] = {text: [] for text, _ in wanted.values()}
    for line in said.splitlines()[:-1]:
        place = re.match(r"gpuemu\.toml:(\d+): ([a-z-]+): ", line)
        assert place, line
        slugs[wanted[int(place[1])][0]].append(place[2])
    return slugs


def test_what_is_wrong_is_named_at_its_line(found: dict[str, list[str]]) -> None:
    wanted = {**SCHEMAS, **KEYS}
    told = {text: sorted(set(slugs)) for text, slugs in found.items()}
    assert told == {text: [slug] if slug else [] for text, slug in wanted.items()}


def test_a_value_that_nothing_follows_from_is_an_error(tmp_path: Path) -> None:
    """Whoever writes it believes in a check that there is not."""
    mini = Mini(tmp_path / "w")
    mini.write("r.py", "def f(x): return x + 0\n")
    mini.write("a.py", "def f(x): return x\n")
    mini.write("k.ptx", "")
    kernel = ('reference = "r.py"', "tolerances = { float32 = 1 }", 'invariants = ["finite"]',
              "num_warps = 4", 'signature = { x = "*fp32" }')  # fmt: skip
    op = ('frameworks = ["pytorch"]', "xla_compatible = true")
    head = ["[project]", 'name = "p"', "[[kernels]]", 'name = "k"', 'ptx = "k.ptx"', *kernel,
            "[[ops]]", 'name = "o"', 'op = "a.py:f"', 'reference = "r.py:f"', *op]  # fmt: skip
    mini.write("gpuemu.toml", "\n".join(head) + "\n")
    done = mini.command("config", "check", code=2)
    warned, said = done.stdout.splitlines(), done.stderr.splitlines()
    places = [line.split(": ")[:2] for line in said[:-1]]
    lines = [head.index(text) + 1 for text in (*kernel[3:], *op)]
    assert places == [[f"gpuemu.toml:{line}", "config-unread-key"] for line in lines]
    assert len(warned) == 3, "documented keys that have no meaning here say what to write"
    assert all("put it into the [[ops]] that runs this kernel" in line for line in warned)
    empty = {'reference = "r.py"': 'reference = ""', op[0]: "frameworks = []",
             op[1]: "xla_compatible = false"}  # fmt: skip
    kept = [empty.get(line, line) for line in head if line not in kernel[1:]]
    mini.write("gpuemu.toml", "\n".join(kept) + "\n")
    mini.command("config", "check", "--strict", code=0)


def test_a_tolerance_of_a_dtype_that_no_case_has_is_said_to_do_nothing(tmp_path: Path) -> None:
    mini = Mini(tmp_path / "w")
    mini.write("r.py", "import numpy as np\ndef f(x): return np.rint(x).astype(np.int32)\n")
    mini.write("a.py", "import numpy as np\ndef f(x): return np.rint(x).astype(np.int32) + 1\n")
    op = '[[ops]]\nname = "{}"\nop = "a.py:f"\nreference = "r.py:f"\ndtypes = [{}]\n{}\n'
    schema = '[ops.schema]\ndims = { N = [4] }\ninputs.x = { dims = ["N"], range = [-9, 9] }\n'
    told = {
        "of_an_output": '"float32"', "of_bools": '"float32"', "of_a_float_output": '"float32"',
        "of_cases": '"int32"', "of_other_cases": '"float32"', "of_the_output": '"float32"',
    }  # fmt: skip
    keys = {
        "of_bools": "bool = 1", "of_a_float_output": "float64 = 1", "of_other_cases": "float16 = 1",
        "of_the_output": "float32 = 1",
    }  # fmt: skip
    text = '[project]\nname = "p"\n'
    for name, dtypes in told.items():
        output = f'dtype = "{"float64" if "float" in name else "int32"}"'
        output += ", tolerance = { atol = 1 }" if name == "of_the_output" else ""
        own = f"tolerances = {{ {keys.get(name, 'int32 = 1')} }}"
        text += op.format(name, dtypes, own) + schema
        text += f'output = {{ dims = ["N"], {output} }}\n'
    mini.write("gpuemu.toml", text)
    said = mini.command("config", "check").stdout
    assert said.count("config-unread-key") == 3, said
    for name, key in (("0", "int32"), ("1", "bool"), ("2", "float64")):
        assert f"ops[{name}].tolerances.{key} has no effect" in said
    assert said.count("`tolerance = { atol = 1, rtol = 0 }`") == 3
    found = {r["op"]: r["verdict"] for r in mini.run(code=1)["results"]}
    assert (found["of_an_output"], found["of_the_output"]) == ("failed", "passed")
