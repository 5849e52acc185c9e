"""Register this host: exchange its join token for a key, keep the key, announce each incarnation.

JOIN-1  Before a join token is used a random claim is written to disk and sent with it. If the agent
        dies, or the answer is lost, between the exchange and the key being saved, the next try
        sends the same claim and gets a key again.
JOIN-2  An incarnation is announced once. An agent that was restarted under the same guardian reads
        in its file that this was done and only syncs, because the controller could take a second
        announcement for a host that lost its tasks.
        Before that, it is written down as announced, so that the next incarnation can say which
        ones came before it, also those whose registration was never answered (LEASE-3).
JOIN-3  A key belongs to the mark of its state folder (`agent.config.read_mark`). A copied folder has
        another mark, so the host of the copy joins as a new host, because with the key it would
        replace the original.
"""

import asyncio
import hashlib
import logging
import random
import secrets
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from holdfast.agent.config import AgentConfig
from holdfast.agent.uplink.calls import ControllerCalls
from holdfast.core.host_faults import Hindrance
from holdfast.core.ids import TaskKey
from holdfast.errors import HoldfastError, Unauthorized, Unavailable
from holdfast.http.addresses import split_urls
from holdfast.moves.registration import MAX_EARLIER_INCARNATIONS
from holdfast.process.files import read_private, write_atomic
from holdfast.wire.agent import HostFacts, RegisterRequest
from holdfast.wire.bearer import is_token, make_job_token

log = logging.getLogger("holdfast.agent.uplink.identity")

_RETRY_SECONDS = (0.2, 10.0)
_REFUSED_SECONDS = 30.0
_UNTIL_SILENT = ("host_name_taken", "host_lives_elsewhere")  # refused while the other lives
_TAKEN_SECONDS = 5.0


class _NoToken(Unauthorized):
    """Raised where no join token can be used; the message gives the reason."""


class HostIdentity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The identity that a host keeps in its file.

    url: the address of the controller that it joined. incarnation: the guardian's incarnation that
    was announced last. announced: the incarnations whose registration was sent, newest first. mark:
    the mark of the state folder in which the file was written (JOIN-3).
    claim: the random text that is sent with a join token (JOIN-1). token_hash: the SHA-256 of the
    join token that the key came from, so that a newer token is noticed.
    """

    url: str = ""
    host_id: str = ""
    host_key: str = ""
    incarnation: str = ""
    announced: tuple[str, ...] = ()
    mark: str = ""
    claim: str = ""
    token_hash: str = ""
    sync_interval_seconds: float = 5.0


def read_identity(path: Path) -> HostIdentity:
    """Return the kept identity; an empty one if there is none or it cannot be read."""
    try:
        data = read_private(path)
        return msgspec.json.decode(data, type=HostIdentity) if data else HostIdentity()
    except (OSError, msgspec.MsgspecError) as error:
        log.warning(f"{path} cannot be used, the host joins anew: {error}")
        return HostIdentity()


class Registrar:
    """Registers this incarnation, however long that takes, and keeps the host's identity."""

    def __init__(
        self, calls: ControllerCalls, config: AgentConfig, incarnation: str, mark: str
    ) -> None:
        self._calls = calls
        self._mark = mark
        self._path = config.host_path
        self._url = url = config.url
        self._incarnation = incarnation
        self._token_file = config.join_token_file
        self._intent = config.intent
        self._said = ""
        self.identity = self._read_own()
        joined = split_urls(self.identity.url)
        if joined and not set(joined) & set(split_urls(url)):
            log.warning(
                f"this host had joined {self.identity.url}; it joins {url} anew if its key is "
                "refused"
            )
        self._calls.token = self.identity.host_key

    def _read_own(self) -> HostIdentity:
        """Return the kept identity; an empty one if it came with a copied folder (JOIN-3)."""
        known = read_identity(self._path)
        if known.mark == self._mark:
            return known
        if known.host_key:
            log.warning(
                f"{self._path.parent} was copied from the folder of host {known.host_id}; this host "
                "joins as a new one, because it would take the place of that host with its key"
            )
        return HostIdentity(mark=self._mark)

    def make_token(self, key: TaskKey) -> str:
        """Return a task's own token; an empty text while this host has no key."""
        if not self.identity.host_key:
            return ""
        return make_job_token(hashlib.sha256(self.identity.host_key.encode()).digest(), key)

    @property
    def registered(self) -> bool:
        """Return True if the controller knows this incarnation already (JOIN-2)."""
        return bool(self.identity.host_key) and self.identity.incarnation == self._incarnation

    async def register(
        self,
        facts: HostFacts,
        list_faults: Callable[[], list[Hindrance]] = list,
        held: Collection[TaskKey] = (),
    ) -> None:
        """Announce this incarnation; return once the controller has recorded it. Each reason for
        waiting is logged once (SYNC-3). held: keys of tasks whose containers may still run.
        Raises Conflict if a newer incarnation of this host serves already."""
        pause = _RETRY_SECONDS[0]
        with_key = bool(self.identity.host_key)
        read_clock = asyncio.get_running_loop().time
        while True:
            began = read_clock()
            try:
                await self._try(facts, list_faults(), list(held), with_key=with_key)
                return
            except Unavailable as error:
                self._say(logging.WARNING, f"cannot register yet, trying on: {error}")
                # A call that waited long for its answer was a pause itself.
                await asyncio.sleep(pause * random.uniform(0.75, 1.25) - (read_clock() - began))
                pause = min(pause * 2, _RETRY_SECONDS[1])
            except Unauthorized as error:
                with_key = await self._handle_refusal(error, with_key=with_key)
            except HoldfastError as error:
                if error.code == "stale_incarnation":
                    raise
                self._say(logging.ERROR, f"the controller does not register this host: {error}")
                taken = error.code in _UNTIL_SILENT
                await asyncio.sleep(_TAKEN_SECONDS if taken else _REFUSED_SECONDS)

    async def _handle_refusal(self, error: HoldfastError, *, with_key: bool) -> bool:
        """Log the remedy, wait if a token may come meanwhile, and return True to try the key
        next."""
        token = self._look_for_token()
        if with_key and token and _hash(token) != self.identity.token_hash:
            unknown = f"the controller does not know this host's key ({error})"
            self._say(logging.WARNING, f"{unknown}; joining with the token")
            return False
        if isinstance(error, _NoToken):
            trouble = f"this host has no key, and no join token to get one with ({error})"
        else:
            which = "key" if with_key else "join token"
            trouble = f"the controller refuses this host's {which} ({error})"
        remedy = (
            f"put it into {self._token_file}; the agent looks again every {_REFUSED_SECONDS:.0f} s"
            if self._token_file is not None
            else "start the agent once with `--token TOKEN`"
        )
        self._say(
            logging.ERROR,
            f"{trouble}. Make a join token there (`holdfast token create --role join`) and "
            f"{remedy}",
        )
        await self._wait_for_token(token)
        return bool(self.identity.host_key) and with_key

    async def _wait_for_token(self, old: str) -> None:
        for _ in range(int(_REFUSED_SECONDS)):
            await asyncio.sleep(1.0)
            if self._look_for_token() != old:
                return

    async def _try(
        self, facts: HostFacts, faults: list[Hindrance], held: list[TaskKey], *, with_key: bool
    ) -> None:
        token = self.identity.host_key if with_key else self._read_token()
        claim = "" if with_key else self._make_claim(token)
        self._note_announced()
        answer = await self._calls.register(
            RegisterRequest(
                incarnation=self._incarnation,
                facts=facts,
                claim=claim,
                intent=self._intent,
                faults=faults,
                held=held,
                earlier=list(self.identity.announced[1:]),
            ),
            token,
        )
        key = answer.host_key or (self.identity.host_key if with_key else "")
        if not key:
            raise Unavailable("the controller took the join token but sent no key")
        self.identity = msgspec.structs.replace(
            self.identity,
            url=self._url,
            host_id=answer.host_id,
            host_key=key,
            incarnation=self._incarnation,
            claim="",
            sync_interval_seconds=answer.sync_interval_seconds,
            token_hash=self.identity.token_hash if with_key else _hash(token),
        )
        self._calls.token = key
        self._keep()
        log.info(f"registered as host {answer.host_id}")

    def _note_announced(self) -> None:
        """Write down that this incarnation is about to be announced (JOIN-2)."""
        known = self.identity.announced
        if known[:1] != (self._incarnation,):
            announced = (self._incarnation, *known)[: MAX_EARLIER_INCARNATIONS + 1]
            self.identity = msgspec.structs.replace(self.identity, announced=announced)
            self._keep()

    def _make_claim(self, token: str) -> str:
        """Return the claim of a token: the same one until the exchange is over (JOIN-1)."""
        known = self.identity
        if not known.claim or known.token_hash != _hash(token):
            self.identity = msgspec.structs.replace(
                known, claim=secrets.token_hex(16), token_hash=_hash(token)
            )
            self._keep()
        return self.identity.claim

    def _keep(self) -> None:
        try:
            write_atomic(self._path, msgspec.json.encode(self.identity), durable=True)
        except OSError as error:
            log.error(
                f"this host's key cannot be saved ({error}): it must join again after the agent's "
                "next restart"
            )

    def _read_token(self) -> str:
        if self._token_file is None:
            raise _NoToken("none was given")
        try:
            token = Path(self._token_file).read_text(errors="replace").strip()
        except OSError as error:
            raise _NoToken(str(error)) from error
        if not is_token(token):
            raise _NoToken(f"what {self._token_file} holds is no token")
        return token

    def _look_for_token(self) -> str:
        try:
            return self._read_token()
        except _NoToken:
            return ""

    def _say(self, level: int, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            log.log(level, sentence)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
