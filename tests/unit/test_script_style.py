"""Test which scripts are called as a function and which speak the protocol themselves."""

from __future__ import annotations

import pytest
from for_each import for_each

from gpuemu_flow.workers.script import function_to_call

REFERENCE = "def reference(x):\n    return x\n"
GUARDED = "try:\n    import torch\nexcept ImportError:\n    torch = None\n"
MAIN = 'if __name__ == "__main__":\n    main()\n'

FUNCTIONS = {
    "reference": ("\"Doc.\"\nimport numpy as np\nEPS = 1e-5\n" + REFERENCE, "reference"),
    "op": ("def op(x): return x", "op"),
    "kernel": ("def kernel(x): return x", "kernel"),
    "stem": ("def softmax(x): return x", "softmax"),
    "reference_first": ("def softmax(x): return x\ndef op(x): return x\n" + REFERENCE, "reference"),
    "guarded_import": (GUARDED + REFERENCE, "reference"),
    "type_checking": ("if TYPE_CHECKING:\n    import torch\n" + REFERENCE, "reference"),
    "input_as_a_name": ("def op(input):\n    input = input + 1\n    return input", "op"),
    "open_a_file": ("def reference(x):\n    return open('table.txt').read()", "reference"),
    "branches": ("if WIDE:\n    A = 1\nelse:\n    A = 2\n" + REFERENCE, "reference"),
    "class": ("class Table: pass\n" + REFERENCE, "reference"),
}  # fmt: skip

PROTOCOL = {
    "stdin": "import sys, json\nrequest = json.load(sys.stdin)\n" + REFERENCE,
    "stdin_in_a_function": "import sys\ndef reference(x):\n    sys.stdin.read()\n",
    "stdin_imported": "from sys import stdin\n" + REFERENCE,
    "raw_stdin": "import sys\ndata = sys.__stdin__\n" + REFERENCE,
    "input": "def reference(x):\n    return input()\n",
    "open_zero": "data = open(0).read()\n" + REFERENCE,
    "os_read": "import os\ndef main():\n    os.read(0, 10)\n" + REFERENCE,
    "device": "PATH = '/dev/stdin'\n" + REFERENCE,
    "fileinput": "import fileinput\n" + REFERENCE,
    "main_block": "from helper import main\n" + REFERENCE + MAIN,
    "top_level_call": "from helper import serve\n" + REFERENCE + "serve(reference)\n",
    "branch_that_acts": "if ARGUMENTS:\n    serve()\n" + REFERENCE,
    "no_function": "x = 1\n",
    "other_function": "def compute(x): return x\n",
    "nested_function": "class A:\n    def reference(self): pass\n",
    "loop": REFERENCE + "for i in range(3):\n    print(i)\n",
}


@for_each("name", FUNCTIONS)
def test_a_script_that_only_defines_is_called(name: str) -> None:
    source, function = FUNCTIONS[name]
    assert function_to_call(source.encode(), "/ws/softmax.py") == function


@for_each("name", PROTOCOL)
def test_a_script_that_reads_or_acts_speaks_for_itself(name: str) -> None:
    assert function_to_call(PROTOCOL[name].encode(), "/ws/softmax.py") == ""


def test_source_that_does_not_parse() -> None:
    for source in (b"def f(:", b"x = '\xff'", b"\0"):
        with pytest.raises((SyntaxError, ValueError)):
            function_to_call(source, "x.py")
