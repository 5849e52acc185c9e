"""Where the controller is and which token to show it.

Searched in this order: arguments; HOLDFAST_URL and HOLDFAST_TOKEN; the nearest `holdfast-data`
folder of a running `holdfast up`, from the working folder upwards; `~/.config/holdfast` (files
`url` and `token`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.errors import HoldfastError, Unauthorized, Unavailable, ValidationError
from holdfast.wire.bearer import is_token

DATA_FOLDER = "holdfast-data"


@dataclass(frozen=True)
class Place:
    """A controller: `source` says where its address was found, for messages."""

    url: str
    token: str | None
    source: str

    @property
    def is_local(self) -> bool:
        """Whether the controller is on this machine, so that the caller's folders mean something to
        it."""
        host = urlsplit(self.url).hostname or ""
        return host == "localhost" or host == "::1" or host.startswith("127.")


class NoController(Unavailable):
    """Nothing says where a controller is."""

    code = "no_controller"


def locate(
    url: str | None = None,
    token: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Place:
    """Find the controller's URL and token. An address always brings its own token; the two are
    never mixed across sources, except that an explicit token is used with whatever address is
    found.

    Raises:
        NoController: nothing says where one is.
        ValidationError: the address is not an http(s) URL.
        Unauthorized: the token holds what no token can.
    """
    env = os.environ if environ is None else environ
    token = (token or env.get("HOLDFAST_TOKEN") or "").strip() or None
    if url:
        return _checked(url, token or _token_for(url, env, folder), "the --url given")
    if env.get("HOLDFAST_URL"):
        found = env["HOLDFAST_URL"]
        return _checked(found, token or _token_for(found, env, folder), "HOLDFAST_URL")
    stopped = None
    for place in _candidates(env, folder):
        address = _read(place / "url")
        if address:
            return _checked(address, token or _read(place / "token"), str(place))
        if stopped is None and place.name == DATA_FOLDER and (place / "token").exists():
            stopped = place
    if stopped is not None:
        raise NoController(
            f"the Holdfast of {stopped} is not running. Start it with `holdfast up` in "
            f"{stopped.parent}, "
            "or set HOLDFAST_URL to another."
        )
    raise NoController(
        "no controller found. Start one here with `holdfast up`, or set HOLDFAST_URL and "
        "HOLDFAST_TOKEN to reach another."
    )


def _candidates(env: Mapping[str, str], folder: Path | None) -> list[Path]:
    try:
        here = folder or Path.cwd()
    except OSError:  # the working folder was deleted
        here = Path("/")
    places = [parent / DATA_FOLDER for parent in (here, *here.parents)]
    config = env.get("XDG_CONFIG_HOME") or (
        str(Path(env["HOME"]) / ".config") if env.get("HOME") else ""
    )
    if config:
        places.append(Path(config) / "holdfast")
    return places


def _token_for(url: str, env: Mapping[str, str], folder: Path | None) -> str | None:
    """The token kept beside exactly this address, so that a token never goes to an address it was
    not made for."""
    for place in _candidates(env, folder):
        if _read(place / "url") == url.rstrip("/"):
            return _read(place / "token")
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip().rstrip("/") or None
    except (OSError, UnicodeDecodeError):
        return None


def _checked(url: str, token: str | None, source: str) -> Place:
    if not _is_address(url):
        raise ValidationError(
            f"{url[:200]!r} ({source}) is not a URL like http://127.0.0.1:7878", field="url"
        )
    if token is not None and not is_token(token):
        # It would never get as far as a header, and it is not repeated: it may be a secret all the
        # same.
        raise Unauthorized(
            f"the token for {url} is none: it has a space, a line break or another character that "
            "no token has"
        )
    return Place(url.rstrip("/"), token, source)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        name = (
            host if host.isascii() else host.encode("idna").decode()
        )  # as a name of another alphabet is looked up
    except ValueError:  # a bracket, a port that is none, half a surrogate pair
        return False
    well_formed = (
        all(len(label) < 64 for label in name.split(".")) and url.isprintable() and " " not in url
    )
    return parts.scheme in ("http", "https") and bool(host) and port != 0 and well_formed


def token_hint(error: HoldfastError, place: Place) -> str:
    """The sentence to add to a refusal when no token was found at all."""
    if place.token is None and error.status == 401:
        return (
            " No token was found: set HOLDFAST_TOKEN, or work in the folder of your `holdfast up`."
        )
    return ""
