"""A signed report holds for another program, openssl, as well."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from report_samples import hostile

from gpuemu_flow.report import signature
from gpuemu_flow.report.html_writer import report_to_html
from gpuemu_flow.report.signature import MARKER

pytestmark = pytest.mark.ci

pytest.importorskip("cryptography", reason="the extra `sign` is not installed")


def test_openssl_agrees(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    private = tmp_path / "key"
    public = signature.make_key(private)
    key, _ = signature.load_private(private)
    signed = tmp_path / "report.html"
    signed.write_text(signature.sign_html(report_to_html(hostile()), key), encoding="utf-8")
    data = signed.read_bytes()
    end = data.rindex(MARKER) + len(MARKER)
    (tmp_path / "digest").write_bytes(hashlib.sha256(data[:end]).digest())
    found = re.search(rb"ed25519: (\S+)", data[end:])
    assert found is not None
    (tmp_path / "signature").write_bytes(base64.b64decode(found[1]))
    done = subprocess.run(
        ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin",
         "-in", tmp_path / "digest", "-sigfile", tmp_path / "signature"],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert "Signature Verified Successfully" in done.stdout, done.stderr
