"""What an operator hears of the server's certificate."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.controller.http.certificate import CertificateFiles, read_validity, say_validity
from holdfast.errors import HoldfastError


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("certificate"))


def make(folder: Path) -> Path:
    made = folder / "cert.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=box"
    subprocess.run(
        [*command.split(), "-keyout", folder / "key.pem", "-out", made], check=True, capture_output=True
    )  # fmt: skip
    return made


@pytest.mark.parametrize(
    ("days", "said"),
    [(0, None), (17, "expires at"), (31, "expired at"), (-2, "is good only from"), (3650, "expired at")],
)  # fmt: skip
def test_a_certificate_that_is_over_or_nearly_so_is_told(
    pem: Path, days: int, said: str | None
) -> None:
    found = say_validity(str(pem), datetime.now(UTC) + timedelta(days=days))
    assert found is None if said is None else said in (found or "")


def test_from_when_until_when_it_is_good_is_read(pem: Path) -> None:
    since, until = read_validity(pem.read_text())
    assert until - since == timedelta(days=30)
    assert abs(datetime.now(UTC) - since) < timedelta(hours=1)


@pytest.mark.parametrize(
    "text", ["", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----", "\x00"]
)
def test_anything_else_is_told_and_ends_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "odd.pem").write_text(text)
    for path in ("odd.pem", "missing.pem"):
        assert "cannot be looked at" in (
            say_validity(str(tmp_path / path), datetime.now(UTC)) or ""
        )


def test_a_renewed_certificate_is_read_once_it_is_whole(pem: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(pem, certificate)
    shutil.copy(pem.with_name("key.pem"), key)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(certificate, key)
    files = CertificateFiles(str(certificate), str(key))
    assert files.reload(served) is None
    (tmp_path / "new").mkdir()
    new = make(tmp_path / "new")
    shutil.copy(new, certificate)  # its key is not there yet
    with pytest.raises(HoldfastError, match="the one that was read before is served on"):
        files.reload(served)
    assert files.reload(served) is None, "it is told once"
    assert show(served) == ssl.PEM_cert_to_DER_cert(pem.read_text())
    shutil.copy(new.with_name("key.pem"), key)
    assert "new connections get" in (files.reload(served) or "")
    assert show(served) == ssl.PEM_cert_to_DER_cert(new.read_text())
    assert "new connections get" in (files.reload(served, unchanged=True) or "")


def show(context: ssl.SSLContext) -> bytes | None:
    """Return the certificate that a server with this context shows to a client."""
    asks = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asks.check_hostname, asks.verify_mode = False, ssl.CERT_NONE
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = asks.wrap_bio(down, up), context.wrap_bio(up, down, server_side=True)
    for end in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return client.getpeercert(binary_form=True)
