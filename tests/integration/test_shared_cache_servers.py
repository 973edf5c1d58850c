"""A shared cache on real servers: nginx with WebDAV, moto's S3, bazel-remote where it is there."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from shared_workspace import clone, make_original, programs, results, slugs
from stored_snapshot import results as stored_results

pytestmark = pytest.mark.ci

NGINX = """\
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_processes 1;
daemon off;
master_process off;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    root {folder}/data;
    client_max_body_size 0;
    location / {{
      dav_methods PUT;
      create_full_put_path on;
      if ($http_authorization != "Bearer right") {{ return 403; }}
    }}
  }}
}}
"""
FIXED = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def started(command: list[str], port: int, **environ: str) -> Iterator[None]:
    """Run a server until the end of the block; wait until it listens."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
        assert process.poll() is None, f"{command[0]} ended at once"
        yield
    finally:
        process.kill()
        process.wait()


def check(tmp_path: Path, url: str, **env: str) -> None:
    """A fresh clone takes all from the server; what it changes is run."""
    original = make_original(
        tmp_path / "original", "file:///unused", GPUEMU_CACHE_REMOTE=url, **env
    )
    first = original.run()
    assert slugs(first) == []
    programs(original)
    other = clone(original, tmp_path / "clone")
    assert results(other.run()) == results(first)
    assert stored_results(other) == stored_results(original)
    assert programs(other) == []
    other.edit("scripts/scale.py", "parts - 1", "parts - 1 + 1e-7")
    again = other.run()
    assert again["results"][0]["verdict"] == "passed"
    ran = {name.partition(":")[0] for name in again["executed"]}
    assert "reference" not in ran, "the reference's outputs came from the server"
    assert "op" in programs(other)
    assert "answers" in other.command("cache", "stats").stdout


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_with_webdav(tmp_path: Path) -> None:
    folder, port = tmp_path / "nginx", free_port()
    (folder / "data").mkdir(parents=True)
    tmp_path.chmod(0o755)
    config = folder / "nginx.conf"
    user = "user root;\n" if os.geteuid() == 0 else ""
    config.write_text(user + NGINX.format(folder=folder, port=port))
    url = f"http://127.0.0.1:{port}/deep/er"
    command = [str(shutil.which("nginx")), "-c", str(config), "-p", str(folder)]
    with started(command, port):
        wrong = make_original(
            tmp_path / "wrong", "file:///unused", GPUEMU_CACHE_REMOTE=url,
            GPUEMU_CACHE_HEADER="Authorization: Bearer wrong",
        )  # fmt: skip
        assert slugs(wrong.run()) == ["cache-remote-refused"]
        assert not list((folder / "data").iterdir())
        programs(wrong)
        check(tmp_path, url, GPUEMU_CACHE_HEADER="Authorization: Bearer right")
    assert list((folder / "data" / "deep" / "er" / "cas").iterdir())


@pytest.mark.skipif(
    shutil.which("moto_server") is None or importlib.util.find_spec("s3fs") is None,
    reason="moto_server and s3fs are not installed",
)
def test_s3(tmp_path: Path) -> None:
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    env = {**FIXED, "AWS_ENDPOINT_URL": endpoint}
    with started([str(shutil.which("moto_server")), "-p", str(port)], port, **FIXED):
        make = urllib.request.Request(f"{endpoint}/kernels", method="PUT")
        with urllib.request.urlopen(make) as answer:
            assert answer.status == 200
        check(tmp_path, "s3://kernels/ci", **env)
        nowhere = make_original(
            tmp_path / "nowhere", "file:///unused", GPUEMU_CACHE_REMOTE="s3://no-bucket/x", **env
        )
        assert slugs(nowhere.run()) == ["cache-remote-unreachable"]


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [("https://127.0.0.1:9", "aiohttp", "http"), ("s3://kernels/ci", "s3fs", "s3")],
)
def test_a_server_without_its_package(tmp_path: Path, url: str, module: str, extra: str) -> None:
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / f"{module}.py").write_text(f"raise ImportError('no {module}')\n")
    original = make_original(tmp_path / "original", url, PYTHONPATH=str(missing))
    done = original.command("run", code=2)
    assert "cache-remote-package" in done.stderr
    assert f"pip install 'gpuemu-flow[{extra}]'" in done.stderr


@pytest.mark.skipif(shutil.which("bazel-remote") is None, reason="bazel-remote is not installed")
@pytest.mark.parametrize("storage", ["zstd", "uncompressed"])
def test_bazel_remote(tmp_path: Path, storage: str) -> None:
    port = free_port()
    command = [
        str(shutil.which("bazel-remote")), "--dir", str(tmp_path / "data"), "--max_size", "1",
        "--http_address", f"127.0.0.1:{port}", "--grpc_address", "none",
        "--storage_mode", storage, "--disable_http_ac_validation",
    ]  # fmt: skip
    with started(command, port):
        check(tmp_path, f"http://127.0.0.1:{port}")
