"""The proxies that the environment names: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, in
either case of letters, read as Python's standard library reads them.

A proxy is an `http://` address. Loopback uses none.
"""

import os
from base64 import b64encode
from urllib.parse import unquote

from holdfast.errors import ValidationError
from holdfast.http.addresses import HttpAddress, read_address

_NAMES = ("http_proxy", "https_proxy", "all_proxy")


def find_proxy(address: HttpAddress) -> HttpAddress | None:
    """Return the proxy on the way to an address. Raises ValidationError for one that cannot be
    used."""
    named = [name for name, value in os.environ.items() if value and name.lower() in _NAMES]
    if not named or address.is_loopback:
        return None
    from urllib import request  # late, because it costs more than Python's own start

    proxies = request.getproxies_environment()
    if request.proxy_bypass_environment(  # type: ignore[attr-defined]  # typeshed lacks it
        f"{address.host}:{address.port}", proxies
    ):
        return None
    kind = "https" if address.is_secure else "http"
    url = proxies.get(kind) or proxies.get("all")
    if url is None:
        return None
    word = f"{kind if kind in proxies else 'all'}_proxy"
    name = next(name for name in sorted(named, reverse=True) if name.lower() == word)
    try:
        proxy = read_address(url if "://" in url else f"http://{url}")
    except ValidationError as error:
        raise _refuse(name, error.message) from error
    if proxy.is_secure:
        raise _refuse(name, f"{proxy.authority} would be reached by TLS, which is not supported")
    return proxy


def write_login(login: str) -> str:
    """Return the value of an `Authorization` or `Proxy-Authorization` header for `name:password`
    of a URL."""
    return f"Basic {b64encode(unquote(login).encode()).decode()}"


def _refuse(name: str, why: str) -> ValidationError:
    return ValidationError(
        f"the proxy of {name} cannot be used: {why}. Give an http:// address, unset the variable, or "
        "name the controller's host in NO_PROXY"
    )
