"""Finding the controller's address and the token for it.

The search has this order: arguments; HOLDFAST_URL and HOLDFAST_TOKEN, or the token in the file
HOLDFAST_TOKEN_FILE, as inside of a job; the nearest `holdfast-data`
folder of a running `holdfast up`, from the working folder upwards; `~/.config/holdfast` (files
`url` and `token`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import HoldfastError, Unauthorized, Unavailable, ValidationError
from holdfast.wire.bearer import is_token

DATA_FOLDER = "holdfast-data"


class ControllerPlace(msgspec.Struct, frozen=True):
    """A controller's address and token. source: where they were found, for messages."""

    url: str
    token: str | None
    source: str

    @property
    def is_local(self) -> bool:
        """Return whether the controller is on this machine, where the caller's folders exist
        too."""
        host = urlsplit(self.url).hostname or ""
        return host == "localhost" or host == "::1" or host.startswith("127.")


class NoController(Unavailable, code="no_controller"):
    """No setting or file names a controller."""


def locate(
    url: str | None = None,
    token: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> ControllerPlace:
    """Find the controller's URL and token.

    An address brings its own token: the two are never mixed across sources, except that a token
    given explicitly is used with any address.

    Raises:
        NoController: no setting or file names one.
        ValidationError: the address is not an http(s) URL.
        Unauthorized: the token has a character that no token has.
    """
    env = os.environ if environ is None else environ
    token = (token or env.get("HOLDFAST_TOKEN") or "").strip() or None
    if url:
        return _checked(url, token or _token_for(url, env, folder), "the --url given")
    if env.get("HOLDFAST_URL"):
        found = env["HOLDFAST_URL"]
        kept = env.get("HOLDFAST_TOKEN_FILE")
        token = token or (_read_file(kept) if kept else None)
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
            f"{stopped.parent}, or set HOLDFAST_URL to another."
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
    """Return the token kept beside exactly this address, because a token must reach no other
    controller."""
    for place in _candidates(env, folder):
        if _read(place / "url") == url.rstrip("/"):
            return _read(place / "token")
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip().rstrip("/") or None
    except (OSError, UnicodeDecodeError):
        return None


def _read_file(path: str) -> str | None:
    return _read(Path(path))


def _checked(url: str, token: str | None, source: str) -> ControllerPlace:
    if not _is_address(url):
        raise ValidationError(
            f"{url[:200]!r} ({source}) is not a URL like http://127.0.0.1:7878", field="url"
        )
    if token is not None and not is_token(token):
        # A header cannot carry it. The message does not repeat it, because it may be a secret.
        raise Unauthorized(
            f"the token for {url} is none: it has a space, a line break or another character that "
            "no token has"
        )
    return ControllerPlace(url.rstrip("/"), token, source)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        # A name of another alphabet is looked up in its IDNA form, which limits a label's length.
        name = host if host.isascii() else host.encode("idna").decode()
    except ValueError:  # a lone bracket, a port that is no number, half a surrogate pair
        return False
    if any(len(label) >= 64 for label in name.split(".")) or not url.isprintable() or " " in url:
        return False
    return parts.scheme in ("http", "https") and bool(host) and port != 0


def token_hint(error: HoldfastError, place: ControllerPlace) -> str:
    """Return the sentence to add to a refusal when no token was found."""
    if place.token is None and error.status == 401:
        return (
            " No token was found: set HOLDFAST_TOKEN, or work in the folder of your `holdfast up`."
        )
    return ""
