"""The addresses of controllers: `https://host:port/prefix`, or several of them with commas between.
Pure."""

from urllib.parse import urlsplit

import msgspec

from holdfast.errors import ValidationError


class HttpAddress(msgspec.Struct, frozen=True):
    """The address of a controller. authority: host and port as the URL spells them. prefix: the
    path before every request's own. login: `name:password` of the URL, or an empty text."""

    url: str
    is_secure: bool
    host: str
    port: int
    authority: str
    prefix: str = ""
    login: str = ""

    @property
    def is_loopback(self) -> bool:
        """Return whether the address is on this machine."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def split_urls(text: str) -> tuple[str, ...]:
    """Return the URLs of a list with commas, each once, without a slash at the end."""
    urls = (url.strip().rstrip("/") for url in text.split(","))
    return tuple(dict.fromkeys(url for url in urls if url))


def read_addresses(text: str, source: str = "") -> tuple[HttpAddress, ...]:
    """Return the addresses of a list with commas. Raises ValidationError, with `source` in its
    message, for one that is no http(s) URL."""
    found = tuple(read_address(url, source) for url in split_urls(text))
    if not found:
        raise _refuse(text, source)
    return found


def read_address(url: str, source: str = "") -> HttpAddress:
    """Return the address of one URL. Raises ValidationError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        if not host.isascii():  # the IDNA form limits a label's length
            host = host.encode("idna").decode()
    except ValueError:  # a lone bracket, a port that is no number, half a surrogate pair
        raise _refuse(url, source) from None
    is_wrong = any(len(label) >= 64 for label in host.split(".")) or not url.isprintable()
    is_more = " " in url or parts.query or parts.fragment
    if is_wrong or is_more or parts.scheme not in ("http", "https") or not host or port == 0:
        raise _refuse(url, source)
    login, _, authority = parts.netloc.rpartition("@")
    if not authority.isascii():
        authority = host if port is None else f"{host}:{port}"
    is_secure = parts.scheme == "https"
    return HttpAddress(
        url=url.rstrip("/"),
        is_secure=is_secure,
        host=host,
        port=port or (443 if is_secure else 80),
        authority=authority,
        prefix=parts.path.rstrip("/"),
        login=login,
    )


def _refuse(url: str, source: str) -> ValidationError:
    where = f" ({source})" if source else ""
    return ValidationError(
        f"{url[:200]!r}{where} is not a URL like http://127.0.0.1:7878", field="url"
    )
