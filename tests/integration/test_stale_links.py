"""A link that a program follows by itself counts, however it does so."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from warm import warm_command

pytestmark = pytest.mark.ci

FOLLOWS = {
    "realpath": "import os\ndef f(x):\n    return x * read(os.path.realpath('link') + '/t.txt')\n",
    "readlink": "import os\ndef f(x):\n    return x * read(os.readlink('link') + '/t.txt')\n",
    "pathlib": "from pathlib import Path\ndef f(x):\n"
    "    return x * read(Path('link').resolve() / 't.txt')\n",
    "chdir": "import os\ndef f(x):\n    here = os.getcwd()\n    os.chdir('link')\n    try:\n"
    "        return x * read('t.txt')\n    finally:\n        os.chdir(here)\n",
    "module": "import sys\nfrom pathlib import Path\n"
    "sys.path.insert(0, str(Path(__file__).parent.joinpath('link').resolve()))\n"
    "from kern import K\ndef f(x):\n    return x * x.dtype.type(K)\n",
    "cwd": "import subprocess\ndef f(x):\n"
    "    return x * x.dtype.type(subprocess.check_output(['cat', 't.txt'], cwd='link'))\n",
    "shell": "import subprocess\ndef f(x):\n"
    "    return x * x.dtype.type(subprocess.check_output(['sh', '-c', 'cd link; cat t.txt']))\n",
}
READ = "def read(path):\n    import numpy as np\n    return np.float32(open(path).read())\n"


def verdicts(folder: Path) -> dict[str, str]:
    done = warm_command(("run", "--format", "json"), folder, os.environ)
    return {r["op"]: r["verdict"] for r in json.loads(done.stdout)["results"]}


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    folder = tmp_path.resolve()
    ops = ['[project]\nname = "links"\n[validation]\ncases = 2\ncause_budget = 0\n']
    for value in ("2", "3"):
        (folder / f"v{value}").mkdir()
        (folder / f"v{value}/t.txt").write_text(value)
        (folder / f"v{value}/kern.py").write_text(f"K = {value}\n")
    (folder / "link").symlink_to("v2")
    (folder / "ref.py").write_text("def f(x):\n    return x * 2\n")
    for name, source in FOLLOWS.items():
        (folder / f"{name}_op.py").write_text(READ + source)
        ops.append(
            f'[[ops]]\nname = "{name}"\nop = "{name}_op.py:f"\nreference = "ref.py:f"\n'
            'input_names = ["x"]\ndtypes = ["float32"]\n'
        )
    (folder / "gpuemu.toml").write_text("".join(ops))
    return folder


@pytest.mark.ci
def test_a_link_to_another_folder_makes_its_readers_run(linked: Path) -> None:
    assert set(verdicts(linked).values()) == {"passed"}
    (linked / "link").unlink()
    (linked / "link").symlink_to("v3")
    assert verdicts(linked) == dict.fromkeys(FOLLOWS, "failed")
    (linked / "link").unlink()
    (linked / "link").symlink_to("v2")
    assert set(verdicts(linked).values()) == {"passed"}
