"""What an op must not do: each deed is refused to it, and what is like it and its right is not."""

from __future__ import annotations

import ast
import os
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from many_ops import Op, Ran, make_ops
from once import once

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")

HEAD = """
import ctypes, os, socket, subprocess, tempfile
from pathlib import Path
ROOT = Path(__file__).parents[1]
REF = ROOT / 'refs' / Path(__file__).name
libc = ctypes.CDLL(None, use_errno=True)
scratch = tempfile.gettempdir()
def opens(path, flags=os.O_RDONLY):
    fd = libc.open(os.fsencode(str(path)), flags, 0o600)
    if fd >= 0: os.close(fd)
    return fd >= 0
def makes(path):
    return opens(path, os.O_WRONLY | os.O_CREAT)
def reached(*address, kind=socket.SOCK_STREAM, family=socket.AF_INET):
    with socket.socket(family, kind) as one:
        one.connect(*address)
        return True
def tried(deed):
    try:
        return bool(deed())
    except BaseException:
        return False
"""
SCHEMA = 'dims = { N = [5] }\ninputs = { x = ["N"] }\noutput = ["N"]'
COPIES = (
    "REF.right", "REF.orig", "REF.bak", "REF~", "REF.rej", ".REF.swp", "#REF#", ".#REF", "REF.1",
)  # fmt: skip
"""Names that editors and version control give to copies, and people to what is right."""
REFUSED = {
    "edit_reference": "opens(REF, os.O_WRONLY)",
    "read_reference": "opens(REF)",
    "reference_by_program": "subprocess.run(['cat', str(REF)], stdout=-1).stdout",
    "edit_itself": "opens(__file__, os.O_WRONLY)",
    "edit_config": "opens(ROOT / 'gpuemu.toml', os.O_WRONLY)",
    "make_file": "makes(ROOT / 'mine')",
    "make_bytecode": "makes(ROOT / 'refs' / 'x.pyc')",
    "make_folder": "not libc.mkdir(os.fsencode(str(ROOT / 'folder')), 0o700)",
    "rename": "not libc.rename(os.fsencode(__file__), os.fsencode(__file__ + 'x'))",
    "unlink": "not libc.unlink(os.fsencode(str(ROOT / 'spare')))",
    "link": "not libc.link(os.fsencode(str(ROOT / 'spare')), os.fsencode(scratch + '/l'))",
    "read_by_link": "[os.symlink(REF, scratch + '/s'), opens(scratch + '/s')][1]",
    "read_bytecode": "opens(REF.parent / '__pycache__' / 'refused.cpython-311.pyc')",
    "read_other_name": "opens(ROOT / 'innocent.py')",
    "read_by_link_there": "opens(ROOT / 'leads_there.py')",
    "read_cache": "any(opens(p) for p in (ROOT / '.gpuemu-cache').rglob('*') if p.is_file())",
    "edit_cache": "makes(ROOT / '.gpuemu-cache' / 'mine')",
    "read_hidden": "opens(ROOT / 'hidden.txt')",
    "read_hidden_folder": "opens(ROOT / 'vault' / 'a')",
    "edit_numpy": "opens(np.__file__, os.O_WRONLY)",
    "read_ssh_key": "opens(ROOT / 'home' / '.ssh' / 'id_rsa')",
    "read_cloud_key": "opens(ROOT / 'home' / '.aws' / 'credentials')",
    "read_token": "opens(ROOT / 'home' / '.config' / 'gh' / 'hosts.yml')",
    "read_device": "any(opens(p) for p in Path('/dev').iterdir() if p.is_block_device())"
    " or opens('/dev/kmsg') or opens('/dev/mem')",
    "read_rival": "opens(ROOT / 'rivals' / 'other.py')",
    "others_reference": "opens(ROOT / 'refs' / 'nothing.py')",
    "others_reference_by_import": "__import__('refs.nothing').nothing.reference.__name__",
    **{
        f"copy_{n}": f"opens(REF.parent / {name!r}.replace('REF', REF.name))"
        for n, name in enumerate(COPIES)
    },
    "others_copy": "opens(ROOT / 'refs' / 'nothing.py.orig')",
    "worktrees_object": "opens(ROOT.parent / 'main/.git/objects/ab/cd')",
    "donors_object": "opens(ROOT.parent / 'donor/.git/objects/pack/p')",
    "donors_tree": "opens(ROOT.parent / 'donor/made/refs' / REF.name)",
    "clones_object": "opens(ROOT.parent / 'bare.git/objects/pack/p')",
    "history": "opens(ROOT / '.history/refs/r.py')",
    "shelf": "opens(ROOT / 'refs/.idea/shelf/r.patch')",
    "connect": "reached(('127.0.0.1', int((ROOT / 'port').read_text())))",
    "connect_named": "reached((ROOT / 'named').read_text(), family=socket.AF_UNIX)",
    "trace": "libc.ptrace(16, os.getppid(), 0, 0) == 0",
    "kill_parent": "libc.kill(os.getppid(), 0) == 0",
    "read_parent": "opens(f'/proc/{os.getppid()}/mem', os.O_RDWR)",
    "environment_of_parent": "open(f'/proc/{os.getppid()}/environ').read()",
}
ALLOWED = {
    "nothing": "True",
    "read_config": "opens(ROOT / 'gpuemu.toml')",
    "read_itself": "opens(__file__)",
    "read_plain": "opens(ROOT / 'plain.txt')",
    "read_numpy": "opens(np.__file__)",
    "read_home": "opens(ROOT / 'home' / 'plain') and opens(ROOT / 'home' / '.config' / 'other')",
    "read_null": "opens('/dev/null') and opens('/dev/urandom')",
    "shared_reference": "opens(ROOT / 'refs' / 'pipe.py')",
    "read_other_op": "opens(ROOT / 'ops' / 'nothing.py')",
    "read_like_a_copy": "opens(str(REF.parent / REF.stem) + '_fast.py')",
    "import_package": "__import__('refs.common').common.HERE",
    "write_scratch": "makes(scratch + '/x')",
    "write_declared": "makes(ROOT / 'out' / 'x')",
    "rename_scratch": "[makes(scratch + '/a'), os.rename(scratch + '/a', scratch + '/b'), True][2]",
    "start_program": "subprocess.run(['cat', ROOT / 'plain.txt'], stdout=-1).stdout == b'plain'",
    "start_thread": "[__import__('threading').Thread(target=int).start(), True][1]",
    "pipe": "os.pipe()",
    "socket_pair": "[s.close() for s in socket.socketpair()]",
    "kill_itself_softly": "libc.kill(os.getpid(), 0) == 0",
}
OPS = {
    "refused": REFUSED,
    "allowed": ALLOWED,
    "nothing": {},
    "pipe": {},
}
"""Ops, and the deeds that each tries in its only case; the last two lend their references."""


def does(name: str, deeds: dict[str, str]) -> Op:
    """An op that writes down which of its deeds were done."""
    tries = ", ".join(f"{deed!r}: tried(lambda: {text})" for deed, text in deeds.items())
    body = f"(ROOT / 'out' / {name!r}).write_text(repr(done))\nreturn x * 2"
    more = 'shared = ["refs/pipe.py"]' if name == "allowed" else ""
    return Op(
        op=body,
        schema=SCHEMA,
        head=f"{HEAD}\ndone = {{{tries}}}\n",
        keys=f"timeout = 60\n{more}",
    )


@dataclass(frozen=True)
class Tried:
    ran: Ran
    done: dict[str, bool]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    return once(tmp_path_factory, "wall", try_all)


def try_all(folder: Path) -> Tried:
    table = (
        '[sandbox]\nhidden = ["hidden.txt", "vault"]\nwritable = ["out"]\napart = ["rivals/*.py"]\n'
    )
    mini = make_ops(
        folder,
        {name: does(name, deeds) for name, deeds in OPS.items()},
        'cases = 1\ntolerance = "table"',
        table,
        own=True,
    )
    for name in (
        "hidden.txt",
        "vault/a",
        "spare",
        "home/.ssh/id_rsa",
        "home/.aws/credentials",
        "home/.config/gh/hosts.yml",
        "home/.config/other",
        "home/plain",
        "rivals/other.py",
        "out/kept",
    ):
        mini.write(name, "secret")
    mini.write("plain.txt", "plain")
    for name in COPIES:
        mini.write(f"refs/{name.replace('REF', 'refused.py')}", "")
    donor, bare = folder.parent / "donor", folder.parent / "bare.git"
    for place in (donor / ".git/objects/pack/p", bare / "objects/pack/p", bare / "HEAD",
                  donor / "made/refs/refused.py"):  # fmt: skip
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("")
    git = folder.parent / "main/.git"  # of which a worktree holds the workspace
    (git / "objects/info").mkdir(parents=True)
    (git / "objects/ab").mkdir()
    (git / "objects/ab/cd").write_text("")
    (git / "worktrees/w").mkdir(parents=True)
    (git / "worktrees/w/commondir").write_text("../..\n")
    (git / "worktrees/w/HEAD").write_text("ref: refs/heads/main\n")
    (folder.parent / ".git").write_text(f"gitdir: {git}/worktrees/w\n")
    mini.write("refs/__pycache__/refused.cpython-311.pyc", "")
    os.link(folder / "refs/refused.py", folder / "innocent.py")
    (folder / "leads_there.py").symlink_to("refs/refused.py")
    (git / "objects/info/alternates").write_text(f"{donor}/.git/objects\n")
    (git / "config").write_text(f'[remote "origin"]\n\turl = {bare}\n')
    for name in ("refs/nothing.py.orig", ".history/refs/r.py", "refs/.idea/shelf/r.patch",
                 "refs/allowed_fast.py"):  # fmt: skip
        mini.write(name, "")
    mini.write("refs/__init__.py", "from refs import nothing\nF = nothing.reference\n")
    mini.write("refs/common.py", "HERE = 1\n")
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as named:
        path = str(Path(tempfile.mkdtemp(dir=folder)) / "s")
        named.bind(path)
        named.listen(64)
        mini.write("port", str(tcp.getsockname()[1]))
        mini.write("named", path)
        report = mini.run(code=None)
    done: dict[str, bool] = {}
    for name in OPS:
        done.update(ast.literal_eval((mini.root / "out" / name).read_text()))
    return Tried(Ran(mini, report, {r["op"]: [r] for r in report["results"]}), done)


def fenced(ran: Ran) -> bool:
    """Whether this run had the fence of the system whole."""
    level = ran.results["nothing"][0]["sandbox"]
    return "landlock" in level and "seccomp" in level


def test_deeds_are_refused(tried: Tried) -> None:
    if not fenced(tried.ran):
        pytest.skip("no fence here")
    assert [name for name in REFUSED if tried.done[name]] == []


def test_what_is_its_right_is_not_refused(tried: Tried) -> None:
    assert [name for name in ALLOWED if not tried.done[name]] == []


def test_who_keeps_to_its_right_passes(tried: Tried) -> None:
    assert tried.ran.results["allowed"][0]["verdict"] == "passed"


def test_nothing_was_done(tried: Tried) -> None:
    root: Path = tried.ran.mini.root
    assert (root / "out/x").exists()
    if fenced(tried.ran):
        assert (root / "spare").exists() and not (root / "mine").exists()
        assert (root / "gpuemu.toml").read_text().startswith("[project]")


@pytest.mark.ci
def test_what_becomes_a_reference_is_hidden_at_once_unless_it_is_shared(tmp_path: Path) -> None:
    ops = {"it": Op(op="return two(x)", schema=SCHEMA, head="from helper import two\n")}
    mini = make_ops(
        tmp_path / "w", ops, "cases = 1", files={"helper.py": "def two(x): return x * 2"}
    )
    (result,) = mini.run()["results"]
    if "landlock" not in result["sandbox"]:
        pytest.skip("no fence here")
    config = (mini.root / "gpuemu.toml").read_text()
    other = config[config.index("[[ops]]") :].replace("refs/it.py:reference", "helper.py:two")
    mini.write("gpuemu.toml", config + other.replace('name = "it"', 'name = "other"'))
    mini.write("ops/it.py", "def op(x): return x * 2")
    mini.run()
    mini.write("ops/it.py", "from helper import two\ndef op(x): return two(x)")
    report = mini.run(code=3)
    assert [r["verdict"] for r in report["results"]] == ["error", "error"]
    told = {f["message"] for f in report["failures"]}
    assert all("reads what is hidden from it, helper.py" in message for message in told), told
    mini.edit("gpuemu.toml", 'name = "it"\n', 'name = "it"\nshared = ["helper.py"]\n')
    verdicts = {r["op"]: r["verdict"] for r in mini.run(code=3)["results"]}
    assert verdicts == {"it": "passed", "other": "error"}, "whose own reference it is"
    mini.edit("gpuemu.toml", 'shared = ["helper.py"]\n', "")
    assert {r["verdict"] for r in mini.run(code=3)["results"]} == {"error"}
