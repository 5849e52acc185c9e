"""New hosts: a join token is exchanged for a host key, once."""

import asyncio
import logging
from collections.abc import Callable

from holdfast.controller.runtime.auth import hash_secret, make_new_id, make_secret
from holdfast.core.records import TokenRecord
from holdfast.errors import NotFound, Unauthorized
from holdfast.moves.registration import check_takeover
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire.agent import RegisterRequest

log = logging.getLogger("holdfast.controller")
REMEMBER_SECONDS = 600.0


class Joins:
    """Registers new hosts.

    The answer that carries a host's key may be lost after the token was spent. So for some minutes
    this replica gives the same token with the same claim the same answer again. On another replica
    the token counts as used, and the operator makes a new one.
    """

    def __init__(self, store: PostgresStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._lock = asyncio.Lock()
        self._answers: dict[tuple[bytes, str], tuple[float, str, str]] = {}

    async def join(
        self, digest: bytes, request: RegisterRequest, live_seconds: float
    ) -> tuple[str, str]:
        """Spend the join token with this hash on a new host; return the host's id and its key.
        live_seconds: the silence up to which a host of the same name counts as alive, as in
        `check_takeover`.

        Raises:
            Unauthorized: the secret is no join token, or the token has expired, was used,
            or is for another host.
            Conflict: the host's name is in use.
        """
        store, now = self._store, self._clock()
        claim = request.claim or request.incarnation
        async with self._lock:
            for old in [k for k, kept in self._answers.items() if kept[0] < now]:
                del self._answers[old]
            kept = self._answers.get((digest, claim))
            if kept is not None:
                await store.hosts.register_host(
                    kept[1],
                    None,
                    request.incarnation,
                    request.facts,
                    faults=request.faults,
                    announced=request.earlier,
                )
                return kept[1], kept[2]
            token = await store.tokens.find_token(digest, also_over=True)
            if token is None or token.role != "join":
                raise Unauthorized(
                    "this is neither a host key nor a join token; make one with `holdfast token "
                    "create --role join`"
                )
            if token.host_id is not None and request.intent not in ("", token.host_id):
                raise _refuse(
                    token, request, f"is for host {token.host_id}, not for {request.intent}"
                )
            if token.used_at is not None or token.revoked_at is not None:
                raise _refuse(token, request, _say_why_over(token))
            # A pool's token is bound to the host that the pool ordered, under any name it registers.
            host_id = token.host_id or await self._choose_host_id(request.facts.name, live_seconds)
            if await store.tokens.use_join_token(digest) is None:
                raise _refuse(token, request, _say_why_over(token))
            key = make_secret("k")
            host = await store.hosts.register_host(
                host_id,
                hash_secret(key),
                request.incarnation,
                request.facts,
                faults=request.faults,
                announced=request.earlier,
            )
            self._answers[digest, claim] = (now + REMEMBER_SECONDS, host.id, key)
            return host.id, key

    async def _choose_host_id(self, name: str, live_seconds: float) -> str:
        """Return a new id, or the id of a silent or ended host of this name. Raises Conflict where
        the host of this name is alive."""
        try:
            host = await self._store.hosts.get_host(name)
        except NotFound:
            return make_new_id()
        if host.name != name:  # an id that reads like a name
            return make_new_id()
        check_takeover(host, await self._store.now(), live_seconds)
        return host.id


def _say_why_over(token: TokenRecord) -> str:
    """Return the reason why a join token was refused. A token whose record shows no reason has just
    expired."""
    if token.revoked_at is not None:
        return f"was revoked at {token.revoked_at:%Y-%m-%d %H:%M:%S} UTC"
    if token.used_at is not None:
        by = "" if token.host_id is None else f" by host {token.host_id}"
        return f"is good for one host, and was used at {token.used_at:%Y-%m-%d %H:%M:%S} UTC{by}"
    return f"expired at {token.expires_at:%Y-%m-%d %H:%M:%S} UTC"


def _refuse(token: TokenRecord, request: RegisterRequest, why: str) -> Unauthorized:
    """Return the refusal of a join token, and log it, because a stranger may have found the
    token."""
    name = request.facts.name
    log.warning(
        "a machine that calls itself %s is not let in: join token %s %s", name, token.id, why
    )
    remedy = (
        "make another with `holdfast token create --role join`"
        if token.host_id is None
        else "the pool makes one for each machine that it rents"
    )
    return Unauthorized(f"this join token {why}; {remedy}")
