"""The certificate that this server shows: its validity, and its renewal."""

import os
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from holdfast.errors import HoldfastError

SOON = timedelta(days=14)
_UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x17, 0x18, 0xA0


def read_validity(pem: str) -> tuple[datetime, datetime]:
    """Return the start and the end of the validity of a PEM text's first certificate. Raises
    ValueError for text that is no certificate.

    Python's ssl reads only the certificate of a peer, so this function skips the few fields before
    the validity itself (RFC 5280, 4.1).
    """
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    if begin not in pem or end not in pem:
        raise ValueError("there is no certificate in it")
    first = pem[pem.index(begin) : pem.index(end) + len(end)]
    try:
        ((_, certificate),) = _read_items(ssl.PEM_cert_to_DER_cert(first))
        _, fields = next(_read_items(certificate))
        items = [item for item in _read_items(fields) if item[0] != _VERSION]
        times = [_read_time(*item) for item in _read_items(items[3][1])]
        return times[0], times[1]
    except (IndexError, StopIteration, ValueError) as error:
        raise ValueError(f"its certificate cannot be read: {error}") from None


def _read_items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each value of a DER sequence."""
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            size, at = int.from_bytes(data[at : at + count], "big"), at + count
        yield tag, data[at : at + size]
        at += size


def _read_time(tag: int, data: bytes) -> datetime:
    text = data.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"tag {tag} is no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def say_validity(path: str, now: datetime) -> str | None:
    """Return a warning for the operator about the certificate in a file; None where it stays valid
    for `SOON` at least."""
    try:
        since, until = read_validity(Path(path).read_text(errors="replace"))
    except (OSError, ValueError) as error:
        return f"the certificate in {path} cannot be looked at: {error}"
    if now >= until:
        return f"the certificate in {path} expired at {until:%Y-%m-%d %H:%M} UTC: clients refuse it"
    if now < since:
        return f"the certificate in {path} is good only from {since:%Y-%m-%d %H:%M} UTC"
    if until - now < SOON:
        return f"the certificate in {path} expires at {until:%Y-%m-%d %H:%M} UTC; renew it"
    return None


class CertificateFiles:
    """The files of a server's certificate and its key, which a renewal replaces while the server runs."""

    def __init__(self, certificate: str, key: str) -> None:
        self._paths = (certificate, key)
        self._seen = self._look()

    def reload(self, context: ssl.SSLContext, *, unchanged: bool = False) -> str | None:
        """Serve new connections with the two files, if the files changed since the server read them;
        with `unchanged`, read them in any case. Return a sentence for the log, None if nothing was
        read. A certificate that does not fit its key changes nothing, because a renewal writes one of
        the two files before the other.

        Raises:
            HoldfastError: the files cannot be used; they are read again once they change.
        """
        found = self._look()
        if found == self._seen and not unchanged:
            return None
        self._seen = found
        try:
            # On trial first, because a certificate without its key would break the one in use.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._paths)
            context.load_cert_chain(*self._paths)
        except OSError as error:  # among these is SSLError
            raise HoldfastError(
                f"the certificate in {self._paths[0]} and its key in {self._paths[1]} cannot be used, so "
                f"the one that was read before is served on: {error}"
            ) from error
        return f"new connections get the certificate that is in {self._paths[0]} now"

    def _look(self) -> list[tuple[int, int, int] | None]:
        found: list[tuple[int, int, int] | None] = []
        for path in self._paths:
            try:
                stat = os.stat(path)
                found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
            except OSError:
                found.append(None)
        return found
