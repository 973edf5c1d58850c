"""Signed reports: what was signed holds, every change is seen, keys are their owner's only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from report_samples import hostile

from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.report import signature
from gpuemu_flow.report.html_writer import report_to_html
from gpuemu_flow.report.signature import MARKER, SignatureError

pytest.importorskip("cryptography", reason="the extra `sign` is not installed")


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    private = tmp_path / "key"
    return private, signature.make_key(private)


@pytest.fixture
def signed(keys: tuple[Path, Path], tmp_path: Path) -> Path:
    """A signed page, of a report that holds the marker itself."""
    key, _ = signature.load_private(keys[0])
    path = tmp_path / "report.html"
    path.write_text(signature.sign_html(report_to_html(hostile()), key), encoding="utf-8")
    return path


def verify(path: Path, keys: tuple[Path, Path]) -> signature.ValidSignature:
    return signature.verify(path, signature.load_public(keys[1]))


def refused(path: Path, keys: tuple[Path, Path]) -> str:
    with pytest.raises(SignatureError) as refusal:
        verify(path, keys)
    assert refusal.value.exit_code == 1
    return refusal.value.slug


def test_a_private_key_is_its_owners_only_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        public = signature.make_key(tmp_path / "open")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o600
    assert public == tmp_path / "open.pub"
    with pytest.raises(UsageError, match="sign-key-exists"):
        signature.make_key(tmp_path / "open")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="sign-key-exists"):
        signature.make_key(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


def test_a_key_that_appears_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("mine")
    monkeypatch.setattr(Path, "exists", lambda _: False)
    with pytest.raises(UsageError, match="sign-key-not-writable"):
        signature.make_key(tmp_path / "key")
    assert (tmp_path / "key").read_text() == "mine"


def test_a_signed_page_holds_and_every_flipped_byte_is_seen(
    signed: Path, keys: tuple[Path, Path]
) -> None:
    found = verify(signed, keys)
    assert found.key == signature.fingerprint(signature.load_public(keys[1]))
    data = signed.read_bytes()
    places = [*range(0, len(data), 997), *range(data.rindex(MARKER), len(data))]
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1
        signed.write_bytes(changed)
        assert refused(signed, keys) in ("sign-does-not-hold", "sign-not-signed"), place


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data + b"<script>alert(1)</script>\n",
        lambda data: data + b"\n",
        lambda data: data[: data.rindex(MARKER)] + data[data.rindex(MARKER) :] * 2,
        lambda data: data[:-4] + b"x: y\n-->\n",
        lambda data: data[:-1],
    ],
)
def test_what_is_added_after_the_signature_is_seen(
    signed: Path, keys: tuple[Path, Path], change: object
) -> None:
    assert callable(change)
    signed.write_bytes(change(signed.read_bytes()))
    assert refused(signed, keys) == "sign-does-not-hold"


def test_another_key_does_not_hold(signed: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    other = signature.make_key(tmp_path / "other")
    assert refused(signed, (keys[0], other)) == "sign-does-not-hold"


def test_other_formats_have_their_signature_beside_them(
    keys: tuple[Path, Path], tmp_path: Path
) -> None:
    key, problems = signature.load_private(keys[0])
    assert problems == []
    path = tmp_path / "r.json"
    path.write_bytes(b'{"a": 1}\n')
    assert refused(path, keys) == "sign-not-signed"
    beside = tmp_path / "r.json.sig"
    beside.write_text(signature.sign_detached(path.read_bytes(), key))
    verify(path, keys)
    path.write_bytes(b'{"a": 2}\n')
    assert refused(path, keys) == "sign-does-not-hold"


def test_keys_that_are_none_are_refused(keys: tuple[Path, Path], tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    large = tmp_path / "large"
    large.write_bytes(b"x" * (1 << 17))
    for path in (rubbish, large, tmp_path / "absent", tmp_path, keys[1]):
        with pytest.raises(UsageError, match="sign-bad-key"):
            signature.load_private(path)
    for path in (rubbish, large, tmp_path / "absent", keys[0]):
        with pytest.raises(UsageError, match="sign-bad-key"):
            signature.load_public(path)


def test_a_private_key_that_others_can_read_is_told_of(keys: tuple[Path, Path]) -> None:
    keys[0].chmod(0o640)
    _, problems = signature.load_private(keys[0])
    assert [p.slug for p in problems] == ["sign-key-open"]
