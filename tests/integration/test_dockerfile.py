"""The Dockerfile, built by a program that needs no service, and its image at work.

The base image is made here of Debian's packages, for a registry of images cannot be counted on; it
has Debian's Python under the tag that the Dockerfile names. What is built on it is real.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
MIRROR = "http://deb.debian.org/debian"
PACKAGES = "python3,python3-pip,ca-certificates"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
MISSING = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(os.getuid() != 0, reason="debootstrap needs root"),
    pytest.mark.timeout(900),
]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Images go into a folder of this test's, and containers are folders that are entered."""
    settings = tmp_path / "storage.conf"
    settings.write_text(
        f'[storage]\ndriver = "vfs"\nrunroot = "{tmp_path / "run"}"\n'
        f'graphroot = "{tmp_path / "images"}"\n'
    )
    return {
        **os.environ,
        "BUILDAH_ISOLATION": "chroot",
        "STORAGE_DRIVER": "vfs",
        "CONTAINERS_STORAGE_CONF": str(settings),
    }


def done(*words: str | Path, env: dict[str, str], cwd: Path) -> str:
    finished = subprocess.run(
        words, env=env, cwd=cwd, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, f"{words}\n{finished.stdout[-2000:]}{finished.stderr[-2000:]}"
    return finished.stdout


def base_image(tag: str, folder: Path, env: dict[str, str]) -> None:
    """Debian's smallest system with Python, as an image of that name."""
    root = folder / "root"
    made = subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "stable", root, MIRROR],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"Debian's packages cannot be had: {made.stdout.strip().splitlines()[-1:]}")
    if AUTHORITIES.is_file():  # a network may have authorities of its own
        shutil.copy(AUTHORITIES, root / AUTHORITIES.relative_to("/"))
    for file in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        file.unlink()
    (root / "usr/bin/python").symlink_to("python3")
    container = done("buildah", "from", "scratch", env=env, cwd=folder).strip()
    done("buildah", "add", "-q", container, root, "/", env=env, cwd=folder)
    done("buildah", "commit", "-q", "--rm", container, tag, env=env, cwd=folder)
    shutil.rmtree(root)


def test_the_image_is_built_and_validates_a_workspace(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (base,) = re.findall(r"^FROM (\S+)$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    base_image(f"docker.io/library/{base}", tmp_path, environment)
    build = ("buildah", "build", "--pull-never", "--isolation", "chroot", "-t", "gpuemu-flow")
    done(*build, REPOSITORY, env=environment, cwd=tmp_path)
    inspected = done("buildah", "inspect", "--type", "image",
                     "--format", "{{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.WorkingDir}}",
                     "gpuemu-flow", env=environment, cwd=tmp_path)  # fmt: skip
    assert inspected.strip() == "[gpuemu-flow] /workspace"

    mine = tmp_path / "mine"
    mine.mkdir()
    os.chown(mine, 1234, 1234)
    container = done(
        "buildah", "from", "--pull-never", "gpuemu-flow", env=environment, cwd=tmp_path
    ).strip()

    def gpuemu(*arguments: str) -> str:
        command = ("buildah", "run", "--isolation", "chroot", "--user", "1234:1234",
                   "-v", f"{mine}:/workspace", container, "--", "gpuemu-flow")  # fmt: skip
        return done(*command, *arguments, env=environment, cwd=tmp_path)

    assert "wrote gpuemu.toml" in gpuemu("init", "--name", "mine")
    assert "2 passed" in gpuemu("run")
    assert "PASSED: 24 passed" in gpuemu("ci", "quick", "-o", "gpuemu.xml")
    written = [path for path in mine.rglob("*") if not path.is_symlink()]
    assert {path.stat().st_uid for path in written} == {1234}
