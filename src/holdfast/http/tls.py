"""The certificates to trust: those of a file, or the machine's own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.errors import ValidationError

if TYPE_CHECKING:
    import ssl


def make_tls(ca_file: str | None) -> ssl.SSLContext:
    """Return the TLS context that trusts the authorities of `ca_file`, else those that
    SSL_CERT_FILE or SSL_CERT_DIR names, else the machine's. Raises ValidationError for a file that
    cannot be used."""
    import ssl  # late, because most commands speak to loopback

    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    try:
        if ca_file or file:
            tls = ssl.create_default_context(cafile=ca_file or file)
        else:
            tls = ssl.create_default_context(capath=folder or None)
    except OSError as error:  # ssl.SSLError is an OSError
        where = ca_file or f"{file or folder} (SSL_CERT_FILE or _DIR)"
        raise ValidationError(
            f"the file of authorities {where} cannot be used: {error}", field="ca_file"
        ) from error
    tls.set_alpn_protocols(["http/1.1"])
    return tls
