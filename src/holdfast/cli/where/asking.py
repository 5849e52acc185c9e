"""Ask a controller about itself and about the caller's token, for `login`, `status` and `doctor`."""

from __future__ import annotations

import time

from msgspec.structs import replace

from holdfast.client.locate import ControllerPlace, NoController, locate
from holdfast.client.synchronous import Client
from holdfast.core.doctor.facts import ControllerFacts, ControllerProblem
from holdfast.errors import Forbidden, HoldfastError, Unauthorized, Unavailable
from holdfast.http.addresses import read_address
from holdfast.version import VERSION

ANSWER_SECONDS = 5.0


def find_controller(
    url: str | None, token: str | None, context: str | None
) -> tuple[ControllerFacts, ControllerPlace | None]:
    """Find the controller that the settings name, and ask it about itself. Return its facts and its
    place; None where no setting names a controller. Raises what `locate` raises for settings that
    cannot be used."""
    try:
        place = locate(url, token, context=context)
    except NoController as error:
        facts = ControllerFacts(
            error=error.message, error_code=error.code, error_kind="no_address",
            client_version=VERSION,
        )  # fmt: skip
        return facts, None
    return ask_controller(place), place


def ask_controller(place: ControllerPlace) -> ControllerFacts:
    """Ask each address of a place; return the facts that the first answer gives, or the reason why
    none came."""
    dead: dict[str, str] = {}
    facts = ControllerFacts()
    for url in place.urls or (place.url,):
        facts = _ask(place, url)
        if facts.error_kind != "unreachable":
            break
        dead[url] = facts.error
    if facts.error_kind == "unreachable" and len(dead) == 1:
        dead = {}  # the error is of this one
    plain = any(_is_plain(url) for url in place.urls)
    return replace(facts, dead_urls=dead, plain=plain, source=place.source)


def _is_plain(url: str) -> bool:
    return url.startswith("http://") and not read_address(url).is_loopback


def _ask(place: ControllerPlace, url: str) -> ControllerFacts:
    facts = ControllerFacts(url=url, token_source=place.token_source, client_version=VERSION)
    client = Client(
        url, place.token, retry_seconds=0.0, timeout_seconds=ANSWER_SECONDS, ca_file=place.ca_file
    )
    try:
        with client:
            token = client.whoami()
            began, wall = time.monotonic(), time.time()
            server = client.server()
            took = time.monotonic() - began
    except HoldfastError as error:
        refused = isinstance(error, Unauthorized | Forbidden)
        away = isinstance(error, Unavailable)
        kind = "refused" if refused else "unreachable" if away else "other"
        return replace(facts, error=error.message, error_code=error.code, error_kind=kind)
    return replace(
        facts,
        token_id=token.id,
        user=token.acts_for,
        role=token.role,
        token_name=token.name,
        expires_at=token.expires_at,
        version=server.version,
        problems=[ControllerProblem(p.part, p.sentence, p.mend) for p in server.problems],
        clock_seconds=wall + took / 2 - server.clock.timestamp(),
        clock_error_seconds=took / 2,
    )
