"""A client is judged by its own workspace's daemon, whatever other daemons run."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_workspace import Served, normal, served

from gpuemu_flow.client import (
    AsyncClient,
    Client,
    ClientError,
    DaemonUnreachableError,
    validate_op,
)
from gpuemu_flow.services.daemon.control import running

pytestmark = pytest.mark.ci

X = normal(3, 4)


@pytest.fixture
def other(at_home: Served) -> Iterator[Served]:
    """Another workspace of the same user, whose daemon runs; its op multiplies by three."""
    with served() as made:
        made.environ["HOME"] = str(at_home.home)
        made.write("scripts/double.py", "def reference(x):\n    return (x * 3).astype(x.dtype)\n")
        made.start()
        assert str(at_home.home / ".gpuemu" / "gpuemu.sock") in made.info["sockets"]
        yield made


def by_client(root: Path) -> list[bool]:
    with Client() as client:
        return [client.validate_op("double", {"x": X}, X * n).passed for n in (2, 3)]


def by_folder(root: Path) -> list[bool]:
    os.chdir("/")
    with Client(workspace=root) as client:
        return [client.validate_op("double", {"x": X}, X * n).passed for n in (2, 3)]


def by_context(root: Path) -> list[bool]:
    found = []
    for n in (2, 3):
        with validate_op("double", inputs={"x": X}, raise_on_failure=False) as context:
            context.set_output(X * n)
        assert context.result is not None
        found.append(context.result.passed)
    return found


def by_asyncio(root: Path) -> list[bool]:
    async def ask() -> list[bool]:
        async with AsyncClient() as client:
            return [(await client.validate_op("double", {"x": X}, X * n)).passed for n in (2, 3)]

    return asyncio.run(ask())


TESTS = """
import numpy as np

x = np.arange(12, dtype=np.float32)

def test_twice(gpuemu_client):
    assert gpuemu_client.validate_op("double", {"x": x}, x * 2).passed

def test_three_times(gpuemu_client):
    assert gpuemu_client.validate_op("double", {"x": x}, x * 3).passed
"""


def by_pytest(root: Path) -> list[bool]:
    (root / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", str(root)]
    return passed(command)


def passed(command: list[str]) -> list[bool]:
    """Run pytest, and tell which of the two tests passed; the other must have failed."""
    said = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False).stdout
    ended = dict(re.findall(r"^(PASSED|FAILED) .*test_it\.py::(\w+)", said, re.MULTILINE))
    assert set(ended) == {"PASSED", "FAILED"}, said
    return [ended["PASSED"] == name for name in ("test_twice", "test_three_times")]


@pytest.mark.parametrize("way", [by_client, by_folder, by_context, by_asyncio, by_pytest])
def test_the_current_workspace_judges(
    at_home: Served, other: Served, way: Callable[[Path], list[bool]]
) -> None:
    assert way(at_home.root) == [True, False]
    assert running(at_home.root, at_home.environ) is not None
    with other.client() as client:
        assert client.list_results() == []


def test_a_named_socket_of_another_workspace(
    at_home: Served, other: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUEMU_SOCKET", other.socket)
    for options in ({}, {"workspace": at_home.root}):
        with Client(**options) as client, pytest.raises(DaemonUnreachableError) as caught:
            client.validate_op("double", {"x": X}, X * 3)
        assert caught.value.problems[0].slug == "client-other-workspace"
        assert str(other.root.resolve()) in str(caught.value)
    assert running(at_home.root, at_home.environ) is None
    with Client(other.socket) as client:  # who names it in the code means it, from wherever
        assert client.ping()["workspace"] == str(other.root.resolve())
    with (
        Client(other.socket, workspace=at_home.root) as client,
        pytest.raises(DaemonUnreachableError, match="serves"),
    ):
        client.ping()


def test_outside_of_all_workspaces_the_default_socket_is_asked(
    at_home: Served, other: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(at_home.folder)
    with Client() as client:
        assert client.ping()["workspace"] == str(other.root.resolve())


def test_a_socket_that_two_workspaces_share(at_home: Served, tmp_path: Path) -> None:
    """Another workspace's daemon listens where this client's did."""
    shared = at_home.folder / "shared.sock"
    with served() as other, Client() as client:
        other.environ["HOME"] = str(at_home.home)
        for one in (at_home, other):
            config = (one.root / "gpuemu.toml").read_text()
            one.write(
                "gpuemu.toml", config.replace("[daemon]", f'[daemon]\nsocket_path="{shared}"')
            )
        at_home.start()
        assert client.validate_op("double", {"x": X}, X * 2).passed
        at_home.kill()
        other.start()
        for _ in range(2):
            with pytest.raises(DaemonUnreachableError, match="another daemon listens there"):
                client.validate_op("double", {"x": X}, X * 2)
        with other.client() as theirs:
            assert theirs.list_results() == []
        other.stop()
        assert client.validate_op("double", {"x": X}, X * 2).passed
        assert len(client.list_results()) == 2


THREE_TIMES = {"gpuemu.toml": "three.toml", "scripts/double.py": "scripts/three.py"}


@pytest.fixture
def two_files(at_home: Served) -> Served:
    """A workspace with a second configuration, whose op multiplies by three."""
    for one, another in THREE_TIMES.items():
        text = (at_home.root / one).read_text()
        text = text.replace("double.py", "three.py").replace("x * 2", "x * 3")
        at_home.write(another, text)
    return at_home


def test_the_configuration_that_is_named(
    two_files: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(two_files.root)
    monkeypatch.setenv("GPUEMU_CONFIG", "three.toml")
    with Client() as client:
        assert client.ping()["config"] == str(two_files.root.resolve() / "three.toml")
        assert client.validate_op("double", {"x": X}, X * 3).passed
    monkeypatch.delenv("GPUEMU_CONFIG")
    with Client() as client, pytest.raises(DaemonUnreachableError) as caught:
        client.validate_op("double", {"x": X}, X * 3)
    assert caught.value.problems[0].slug == "client-other-workspace"
    two_files.stop()
    with Client() as client:
        assert not client.validate_op("double", {"x": X}, X * 3).passed
    monkeypatch.setenv("GPUEMU_CONFIG", "four.toml")
    with pytest.raises(ClientError, match="does not exist"):
        Client()


def test_a_folder_given_counts_more_than_the_variable(
    at_home: Served, other: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUEMU_CONFIG", str(other.root / "gpuemu.toml"))
    with Client() as client:
        assert client.ping()["workspace"] == str(other.root.resolve())
    with Client(workspace=at_home.root) as client:
        assert client.ping()["workspace"] == str(at_home.root.resolve())


def test_a_link_to_the_configuration_is_in_its_own_folder(
    at_home: Served, other: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = at_home.root / "linked.toml"
    link.symlink_to(other.root / "gpuemu.toml")
    monkeypatch.setenv("GPUEMU_CONFIG", str(link))
    with Client() as client:
        assert client.validate_op("double", {"x": X}, X * 2).passed
        assert client.ping()["workspace"] == str(at_home.root.resolve())


def test_the_plugins_option_names_the_clients_configuration(two_files: Served) -> None:
    (two_files.root / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA"]
    command += ["--gpuemu-config", str(two_files.root / "three.toml"), str(two_files.root)]
    assert passed(command) == [False, True]
