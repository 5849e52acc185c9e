"""Finding the controller's addresses, the token for it and the authority to trust.

The search has this order: arguments (an address, or the name of a context); HOLDFAST_URL and
HOLDFAST_TOKEN, or the token in the file HOLDFAST_TOKEN_FILE, as inside of a job; the context that
HOLDFAST_CONTEXT names; the current context, which `holdfast login` sets; the nearest
`holdfast-data` folder of a running `holdfast up`, from the working folder upwards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.client.contexts.file import LOCAL, read_contexts
from holdfast.errors import HoldfastError, Unauthorized, Unavailable, ValidationError
from holdfast.http.addresses import read_addresses, split_urls
from holdfast.wire.bearer import is_token

DATA_FOLDER = "holdfast-data"


class ControllerPlace(msgspec.Struct, frozen=True):
    """A controller's address and token. source: where they were found, for messages. urls: all of
    its addresses, `url` first. ca_file: PEM of the authority to trust; None for the system's.
    context: the name of the context, "" where none was used. token_source: where the token was
    found, "" without one."""

    url: str
    token: str | None
    source: str
    urls: tuple[str, ...] = ()
    ca_file: str | None = None
    context: str = ""
    token_source: str = ""

    @property
    def is_local(self) -> bool:
        """Return whether the controller is on this machine, where the caller's folders exist
        too."""
        return all(address.is_loopback for address in read_addresses(",".join(self.urls)))


class NoController(Unavailable, code="no_controller"):
    """No setting or file names a controller."""


def locate(
    url: str | None = None,
    token: str | None = None,
    *,
    context: str | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> ControllerPlace:
    """Find the controller's URLs and token. url: one address, or several with commas between.

    An address brings its own token: the two are never mixed across sources, except that a token
    given explicitly is used with any address. HOLDFAST_TOKEN counts as given, but not with a
    context that has a token of its own, because that may be another server than HOLDFAST_URL.

    Raises:
        NoController: no setting or file names one.
        NotFound: there is no context of this name.
        ValidationError: the address is not an http(s) URL, an address and a context are given both,
            or the file of contexts cannot be used.
        Unauthorized: the token has a character that no token has.
    """
    env = os.environ if environ is None else environ
    given = _Token((token or "").strip() or None, "the token given")
    if url and context:
        raise ValidationError("an address and a context are given; use one of the two", field="url")
    if url:
        kept = _first(given, _of_environment(env), lambda: _token_for(url, env, folder))
        return _checked(url, kept, "the --url given", _trusted(env))
    if context:
        return _of_context(context, "--context", given, env, folder)
    if env.get("HOLDFAST_URL"):
        found = env["HOLDFAST_URL"]
        kept = _first(
            given,
            _of_environment(env),
            lambda: _of_token_file(env),
            lambda: _token_for(found, env, folder),
        )
        return _checked(found, kept, "HOLDFAST_URL", _trusted(env))
    if env.get("HOLDFAST_CONTEXT"):
        return _of_context(env["HOLDFAST_CONTEXT"], "HOLDFAST_CONTEXT", given, env, folder)
    current = read_contexts(env).current
    if current != LOCAL:
        return _of_context(current, "", given, env, folder)
    return _of_folders(given, env, folder)


class _Token(NamedTuple):
    """A token, and the place where it was found."""

    secret: str | None
    source: str


def _first(*tokens: _Token | Callable[[], _Token]) -> _Token:
    """Return the token of the first source that has a token, without a look at later sources."""
    for one in tokens:
        found = one if isinstance(one, _Token) else one()
        if found.secret:
            return found
    return _Token(None, "")


def _of_environment(env: Mapping[str, str]) -> _Token:
    return _Token(env.get("HOLDFAST_TOKEN", "").strip() or None, "HOLDFAST_TOKEN")


def _of_token_file(env: Mapping[str, str]) -> _Token:
    path = env.get("HOLDFAST_TOKEN_FILE")
    return _Token(_read(Path(path)) if path else None, f"the file {path} (HOLDFAST_TOKEN_FILE)")


def _trusted(env: Mapping[str, str]) -> str | None:
    return env.get("HOLDFAST_CA_FILE") or None


def _of_context(
    name: str, named_by: str, given: _Token, env: Mapping[str, str], folder: Path | None
) -> ControllerPlace:
    """Return the place of a context. named_by: the option or variable that names it, "" for the
    current one."""
    if name == LOCAL:
        return _of_folders(given, env, folder)
    found = read_contexts(env).get(name)
    source = f"the context {name} ({named_by})" if named_by else f"the current context, {name}"
    token = _first(given, _Token(found.token, f"the context {name}"), _of_environment(env))
    ca_file = found.ca_file or _trusted(env)
    place = _checked(",".join(found.urls), token, source, ca_file)
    return msgspec.structs.replace(place, context=name)


def _of_folders(given: _Token, env: Mapping[str, str], folder: Path | None) -> ControllerPlace:
    """Return the place of the nearest `up`. Raises NoController."""
    stopped = None
    for place in _data_folders(folder):
        address = _read(place / "url")
        if address:
            token = _first(given, _of_environment(env), _kept(place))
            found = _checked(address, token, str(place), _trusted(env))
            return msgspec.structs.replace(found, context=LOCAL)
        if stopped is None and (place / "token").exists():
            stopped = place
    if stopped is not None:
        raise NoController(
            f"the Holdfast of {stopped} is not running. Start it with `holdfast up` in "
            f"{stopped.parent}, or set HOLDFAST_URL or a context (-c) to another."
        )
    raise NoController(
        "no controller found. Start one here with `holdfast up`, or reach another: `holdfast login "
        "URL`, or HOLDFAST_URL and HOLDFAST_TOKEN."
    )


def _data_folders(folder: Path | None) -> list[Path]:
    try:
        here = folder or Path.cwd()
    except OSError:  # the working folder was deleted
        here = Path("/")
    return [parent / DATA_FOLDER for parent in (here, *here.parents)]


def find_data_folder() -> Path | None:
    """Return the nearest data folder of an `up` that is there, whether or not it runs."""
    return next((place for place in _data_folders(None) if place.is_dir()), None)


def _kept(place: Path) -> _Token:
    return _Token(_read(place / "token"), f"the file {place / 'token'}")


def _token_for(url: str, env: Mapping[str, str], folder: Path | None) -> _Token:
    """Return the token kept beside exactly this address, because a token must reach no other
    controller."""
    for place in _data_folders(folder):
        if _read(place / "url") == url.rstrip("/"):
            return _kept(place)
    for name, context in read_contexts(env).contexts.items():
        if set(split_urls(url)) <= set(context.urls):
            return _Token(context.token, f"the context {name}")
    return _Token(None, "")


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip().rstrip("/") or None
    except (OSError, UnicodeDecodeError):
        return None


def _checked(text: str, token: _Token, source: str, ca_file: str | None) -> ControllerPlace:
    urls = tuple(address.url for address in read_addresses(text, source))
    if token.secret is not None and not is_token(token.secret):
        # A header cannot carry it. The message does not repeat it, because it may be a secret.
        raise Unauthorized(
            f"the token for {urls[0]} is none: it has a space, a line break or another character "
            "that no token has"
        )
    found = token.source if token.secret else ""
    return ControllerPlace(
        urls[0], token.secret, source, urls=urls, ca_file=ca_file, token_source=found
    )


def token_hint(error: HoldfastError, place: ControllerPlace) -> str:
    """Return the sentence to add to a refusal when no token was found."""
    if place.token is None and error.status == 401:
        return (
            " No token was found: `holdfast login`, set HOLDFAST_TOKEN, or work in the folder of "
            "your `holdfast up`."
        )
    return ""
