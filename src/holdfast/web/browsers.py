"""How a browser proves its user: by a cookie, a proof beside it, and the host names under which
pages are served. Pure.

Cookies ignore ports: a server that a job runs and a person reaches through a forward on this machine
would be sent a cookie of `127.0.0.1`. So pages live under a host name that no forward uses, the
cookie belongs to that name, and what changes anything needs the proof, which the pages' own origin
(scheme, host and port) keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from starlette.types import Scope

from holdfast.errors import Forbidden, ValidationError

COOKIE = "holdfast_sign_in"
SECURE_COOKIE = "__Host-holdfast_sign_in"
PROOF_HEADER = b"holdfast-proof"
LOCAL_NAME = "holdfast.localhost"
"""A name of this machine's loopback in every browser (RFC 6761), which forwards never print."""
SIGN_IN_SECONDS = 12 * 3600.0
LINK_SECONDS = 600.0
TICKET_SECONDS = 20.0
"""How long the ticket of a WebSocket is good, which a page uses at once."""
TICKET_PREFIX = "ticket."
"""The text before a ticket among the subprotocols that a browser offers, because a browser sends
no header of a page with a WebSocket, and an address would stand in the logs of proxies."""
MAX_SECRET_CHARS = 128


def write_policy(nonce: str = "") -> str:
    """Return the Content-Security-Policy of our pages. nonce: of the style elements that a kept part
    makes, on the page that has one. The only picture is the icon, which stands in the page."""
    styles = f"'self' 'nonce-{nonce}'" if nonce else "'self'"
    return (
        f"default-src 'none'; script-src 'self'; style-src {styles}; img-src data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": write_policy(),
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def find_header(scope: Scope, name: bytes) -> str | None:
    """Return the first header called `name` (lower case), or None."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


def read_cookie(scope: Scope) -> str | None:
    """Return the secret of the browser's sign-in, or None where the browser has none.

    The name that only a page over TLS can set goes first, and by TLS no other counts, because a
    neighbouring host name could have set it.
    """
    found: dict[str, str] = {}
    for key, value in scope["headers"]:
        if key == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                name, _, secret = pair.strip().partition("=")
                if 0 < len(secret) <= MAX_SECRET_CHARS:
                    found.setdefault(name, secret)
    if scope.get("scheme") in ("https", "wss"):
        return found.get(SECURE_COOKIE)
    return found.get(SECURE_COOKIE) or found.get(COOKIE)


def find_ticket(subprotocols: Iterable[str]) -> str:
    """Return the ticket among the subprotocols that a browser offers; an empty text for none."""
    for each in subprotocols:
        if each.startswith(TICKET_PREFIX):
            return each.removeprefix(TICKET_PREFIX)[:MAX_SECRET_CHARS]
    return ""


def write_cookie(secret: str, *, secure: bool, seconds: float = SIGN_IN_SECONDS) -> str:
    """Return the value of a Set-Cookie header that keeps a secret, or takes it away where the
    secret is empty."""
    name = SECURE_COOKIE if secure else COOKIE
    age = int(seconds) if secret else 0
    more = "; Secure" if secure else ""
    return f"{name}={secret}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{more}"


def list_origins(url: str, more: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the origins at which pages are served: first the one that links name.

    url: where the server listens. more: origins that the operator names, as
    `https://holdfast.example.org`. Raises ValidationError for one that is no origin.
    """
    parts = urlsplit(url)
    local = f"{parts.scheme}://{LOCAL_NAME}:{parts.port}"
    named = tuple(_origin_of(each) for each in more)
    return (*named, local)


def _origin_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValidationError(
            f"the address {url!r} of the dashboard names no host; write it as https://holdfast.example.org"
        )
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValidationError(
            f"the address {url!r} of the dashboard has a path, but its pages stand at the root of "
            f"a host; let a proxy serve a host name of their own, and write {parts.scheme}://{parts.netloc}"
        )
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    port = "" if parts.port in (None, usual) else f":{parts.port}"
    return f"{parts.scheme}://{(parts.hostname or '').lower()}{port}"


def is_ours(scope: Scope, origins: Sequence[str]) -> bool:
    """Return whether a request names a host at which pages are served."""
    host = (find_header(scope, b"host") or "").lower()
    return any(urlsplit(origin).netloc == host for origin in origins)


def check_origin(scope: Scope, origins: Sequence[str], *, named: bool = False) -> None:
    """Raise Forbidden for a request that a page of another origin sent. named: True where the
    request has to name its origin, as browsers do for each WebSocket."""
    origin = find_header(scope, b"origin")
    foreign = named if origin is None else origin.lower() not in origins
    if foreign or not is_ours(scope, origins):
        raise Forbidden(
            "a browser's sign-in is good only for the dashboard's own pages, under "
            f"{origins[0]}; send a token instead",
            code="foreign_origin",
        )
