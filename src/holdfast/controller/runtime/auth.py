"""Authentication: users by token, hosts by key. Only hashes are looked up, and the answers are
remembered for a moment."""

import asyncio
import contextlib
import hashlib
import itertools
import os
import pwd
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

from holdfast.controller.runtime.hosts.doubts import Doubts
from holdfast.core.ids import ENTROPY_BITS, TaskKey, make_id
from holdfast.core.records import HostRecord, JobTokenRecord, TokenRecord
from holdfast.errors import Forbidden, HoldfastError, NotFound, Unauthorized
from holdfast.process.files import write_atomic
from holdfast.store.postgres.sign_ins import SignedIn
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.sync.witness import SecretHash, Sought
from holdfast.wire.bearer import check_job_token, read_job_token
from holdfast.wire.operations.operation import Role

T = TypeVar("T")
TOKEN_SECONDS = 3.0  # a revoked token is refused within 5 s, and ends its streams (STREAM-2)
HOST_KEY_SECONDS = 60.0  # where the store checks the host's row in any case
REVOKED = "revoked"
"""The topic by which replicas learn that a token or a key was revoked."""
MAX_REMEMBERED = 20_000
MAX_GATHERED = 500
MAX_SECRET_CHARS = 256


_LADDER = {"read": Role.READ, "submit": Role.SUBMIT, "admin": Role.ADMIN}


def hash_secret(secret: str) -> bytes:
    """Return the hash by which a secret is stored and looked up. Plain SHA-256 is enough: a secret
    is 256 random bits, not a password."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def make_secret(kind: str) -> str:
    """Return a new secret. Its prefix shows its kind ("t" user, "j" join, "k" host key) if it
    leaks."""
    return f"hf{kind}_{secrets.token_urlsafe(32)}"


class _Ids:
    """Makes ids that sort in the order they were made, within one process even when the millisecond
    is the same."""

    def __init__(self) -> None:
        self._last_ms = self._last_entropy = 0

    def make(self) -> str:
        # A clock that is set back does not turn the order round.
        now_ms = max(int(time.time() * 1000), self._last_ms)
        if now_ms == self._last_ms:
            entropy = self._last_entropy + 1 + secrets.randbits(20)
        else:
            entropy = secrets.randbits(ENTROPY_BITS - 1)  # leaves room to count up
        self._last_ms, self._last_entropy = now_ms, entropy
        return make_id(now_ms, entropy)


make_new_id = _Ids().make
"""Return a new id from the wall clock and the system's randomness."""


def read_bearer(authorization: str | None) -> str:
    """Return the secret of an Authorization header. Raises Unauthorized, with what is missing."""
    if authorization is None:
        raise Unauthorized("no token was sent; send `Authorization: Bearer TOKEN`")
    scheme, _, secret = authorization.partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret or len(secret) > MAX_SECRET_CHARS:
        raise Unauthorized("the Authorization header is not `Bearer TOKEN`")
    return secret


class _Remembered(Generic[T]):
    """The answers of look-ups by hash, each kept for `seconds`."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._kept: dict[bytes, tuple[float, T]] = {}

    async def find(
        self, digest: bytes, look_up: Callable[[bytes], Awaitable[T]], within: float | None = None
    ) -> T:
        """Return the answer, at most `within` seconds old. An error of `look_up` is raised and not
        kept."""
        kept, now = self._kept.get(digest), self._clock()
        if kept is not None and now - kept[0] < (self._seconds if within is None else within):
            return kept[1]
        self._kept.pop(digest, None)
        found = await look_up(digest)
        if len(self._kept) >= MAX_REMEMBERED:
            self._kept.clear()
        self._kept[digest] = (now, found)
        return found

    def forget(self) -> None:
        """Forget every answer that was remembered."""
        self._kept.clear()


class _Gathered(Generic[T]):
    """Looks up what many callers ask for, a batch at a time: requests that come while a look-up is
    in progress go with the next one. After a start of the controller, all hosts ask within one
    interval of syncs, and a look-up for each would take every connection of the store for
    seconds."""

    def __init__(self, look_up: Callable[[list[bytes]], Awaitable[dict[bytes, T]]]) -> None:
        self._look_up = look_up
        self._waiting: dict[bytes, asyncio.Future[T | None]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def find(self, digest: bytes) -> T | None:
        """Return the answer, None where nothing is on record. An error of the look-up is raised."""
        answer = self._waiting.get(digest)
        if answer is None:
            answer = self._waiting[digest] = asyncio.get_running_loop().create_future()
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="look-up of keys")
        return await asyncio.shield(answer)  # others may wait for it, too

    async def _ask(self) -> None:
        while self._waiting:
            asked = dict(itertools.islice(self._waiting.items(), MAX_GATHERED))
            for digest in asked:
                del self._waiting[digest]
            try:
                found = await self._look_up(list(asked))
            except asyncio.CancelledError:
                for answer in self._take_all(asked):
                    answer.cancel()
                raise
            except Exception as error:
                # Also for those that wait: with the database away, one batch after the other would
                # hold the last of thousands for a minute.
                for answer in self._take_all(asked):
                    answer.set_exception(error)
            else:
                for digest, answer in asked.items():
                    answer.set_result(found.get(digest))

    def _take_all(
        self, asked: dict[bytes, asyncio.Future[T | None]]
    ) -> list[asyncio.Future[T | None]]:
        waiting, self._waiting = self._waiting, {}
        return [*asked.values(), *waiting.values()]


class Guard:
    """Looks secrets up, and remembers the answers for a few seconds."""

    def __init__(
        self,
        store: PostgresStore,
        doubts: Doubts,
        clock: Callable[[], float] = time.monotonic,
        count_changes: Callable[[], int] = lambda: 0,
    ) -> None:
        """Make a guard without remembered answers. count_changes: returns a number that grows when
        a replica reports that a token or a key was revoked."""
        self._count_changes = count_changes
        self._changes = 0
        self._store = store
        self._doubts = doubts
        self._tokens: _Remembered[TokenRecord] = _Remembered(TOKEN_SECONDS, clock)
        self._hosts: _Remembered[HostRecord] = _Remembered(HOST_KEY_SECONDS, clock)
        self._sign_ins: _Remembered[SignedIn] = _Remembered(TOKEN_SECONDS, clock)
        self._host_keys = _Gathered(store.hosts.find_hosts_by_keys)

    async def find_user(self, authorization: str | None) -> TokenRecord:
        """Return the record of the caller's token. Raises Unauthorized."""
        self._hear_changes()
        secret = read_bearer(authorization)
        of_job = read_job_token(secret)
        if of_job is not None:
            return await self._find_job(*of_job)
        return await self._tokens.find(hash_secret(secret), self._look_up_token)

    async def find_sign_in(self, secret: str) -> SignedIn:
        """Return the sign-in of a browser's cookie. Raises Unauthorized."""
        self._hear_changes()
        return await self._sign_ins.find(hash_secret(secret), self._look_up_sign_in)

    async def find_host(self, authorization: str | None, *, recent: bool = True) -> HostRecord:
        """Return the calling host. The host is as it was when its key was last looked up: a moment
        ago, or, where the store checks the host itself (not `recent`), within a minute. Raises
        Unauthorized."""
        self._hear_changes()
        digest, within = hash_secret(read_bearer(authorization)), TOKEN_SECONDS if recent else None
        return await self._hosts.find(digest, self._look_up_host, within)

    def _hear_changes(self) -> None:
        changes = self._count_changes()
        if changes != self._changes:
            self._changes = changes
            self.forget()

    def forget(self) -> None:
        """Drop every answer, because a token was revoked, or a host ended, on this replica."""
        self._tokens.forget()
        self._sign_ins.forget()
        self._hosts.forget()

    async def _find_job(self, key: TaskKey, signature: str, set_id: str) -> JobTokenRecord:
        """Return the token of a running task, or of a running call in an executor. The token is not
        remembered, because it ends with the attempt."""
        holder = await self._store.tokens.find_task_holder(key)
        if holder is None:
            await self._doubts.confirm_tasks([key])
        if holder is None or not check_job_token(holder.host_key_hash, key, signature):
            raise Unauthorized(
                f"this is the token of an attempt of job {key.job_id} that is over; each attempt has a "
                "token of its own, in the file that HOLDFAST_TOKEN_FILE names"
            )
        if holder.executor:
            return await self._find_call_set(key, set_id)
        return _name_job(f"job {key.job_id}", key.job_id, holder.owner, holder.project)

    async def _find_call_set(self, key: TaskKey, set_id: str) -> JobTokenRecord:
        """Return the token of a call that an executor runs. The token acts for the owner of the
        call's set."""
        with contextlib.suppress(NotFound):
            view = await self._store.calls.read_set(set_id)
            if view.running:
                return _name_job(f"call set {set_id}", set_id, view.owner, view.spec.project)
        raise Unauthorized(
            "this is the token of an executor, which acts only for a call that it runs, through "
            "`holdfast.task` or `holdfast.functions`"
        )

    async def _look_up_token(self, digest: bytes) -> TokenRecord:
        token = await self._store.tokens.find_token(digest)
        if token is None:
            await self._confirm(SecretHash("token", digest))
        if token is None or token.role not in _LADDER:
            what = "this token does not exist; it may have expired"
            code = "unauthorized"
            if token is not None:
                what, code = "a join token only registers a host", "join_token"
                if token.used_at is not None:
                    what, code = "this join token was used", "unauthorized"
            raise Unauthorized(what + ". Make one with `holdfast token create`", code=code)
        return token

    async def _look_up_sign_in(self, digest: bytes) -> SignedIn:
        found = await self._store.sign_ins.find_sign_in(digest)
        if found is None:
            await self._confirm(SecretHash("sign_in", digest))
            raise Unauthorized(
                "this browser is not signed in any more; `holdfast dashboard` prints a link that "
                "signs it in",
                code="signed_out",
            )
        return found

    async def _confirm(self, absent: SecretHash) -> None:
        """Return if a second look finds no such secret in force, either (DOUBT-1). Raises
        Unavailable if it finds one."""
        await self._doubts.confirm(Sought(hashes=frozenset({absent})))

    async def _look_up_host(self, digest: bytes) -> HostRecord:
        host = await self._host_keys.find(digest)
        if host is None:
            await self._confirm(SecretHash("host", digest))
            name = await self._store.hosts.find_ended_host(digest)
            if name is not None:
                raise Unauthorized(
                    f"host {name} was ended here, so its tasks are to end; register with a join token",
                    code="host_ended",
                )
            raise Unauthorized(
                "no host has this key; register with a join token (`holdfast token create --role "
                "join`)"
            )
        return host


def _name_job(name: str, job_id: str, owner: str, project: str) -> JobTokenRecord:
    return JobTokenRecord(
        id=job_id,
        role="submit",
        name=name,
        user=owner,
        created_at=datetime.now(UTC),
        job_id=job_id,
        project=project,
    )


def check_role(token: TokenRecord, needed: Role) -> None:
    """Raise Forbidden unless the token's role reaches `needed`."""
    if _LADDER.get(token.role, Role.ANYONE) < needed:
        raise Forbidden(
            f"this takes the role {needed.name.lower()}; the token {token.name or token.id} has "
            f"{token.role}"
        )


async def ensure_admin_token(store: PostgresStore, token_file: Path) -> str:
    """Return the admin token kept in `token_file`. A new token (0600) is made where the file holds
    none that still works.

    The file is written whole under another name and moved into place, so that a reader never finds
    half a token, and other users can read it at no moment. A file that another user could read or
    owns is refused.

    Raises:
        HoldfastError: the file is open to others, or cannot be read or written.
        Unavailable: the store cannot be asked.
    """
    try:
        secret = _read_private(token_file)
        if secret and len(secret) <= MAX_SECRET_CHARS:
            token = await store.tokens.find_token(hash_secret(secret))
            if token is not None and token.role == "admin":
                return secret
        secret = make_secret("t")
        # The file first: a token that is in the file alone is replaced at the next start, but one
        # that is on record alone could never be used or explained.
        write_atomic(token_file, f"{secret}\n".encode(), durable=True)
        await store.tokens.create_token(
            make_new_id(), "admin", "first admin", hash_secret(secret), None, user=_name_user()
        )
        return secret
    except OSError as error:
        raise HoldfastError(
            f"the token file {token_file} cannot be used: {error.strerror}"
        ) from error


async def ensure_join_token(store: PostgresStore, token_file: Path) -> None:
    """Put the join token that `token_file` holds on record, for the host that was started together
    with this server; do nothing where it is on record, spent or not.

    Raises:
        HoldfastError: the file is open to others, or cannot be read.
        Unavailable: the store cannot be asked.
    """
    try:
        secret = _read_private(token_file)
    except OSError as error:
        raise HoldfastError(
            f"the join token's file {token_file} cannot be used: {error.strerror}"
        ) from error
    digest = hash_secret(secret)
    if not secret or await store.tokens.find_token(digest, also_over=True) is not None:
        return
    await store.tokens.create_token(make_new_id(), "join", "local agent", digest, None)


def _name_user() -> str:
    """Return the name of the operating system's user that runs this process."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"


def _read_private(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, encoding="utf-8", errors="replace") as file:
            status = os.fstat(file.fileno())
            if status.st_mode & 0o077 or status.st_uid != os.geteuid():
                raise HoldfastError(
                    f"{path} can be read by others or is not ours; delete it, or `chmod 600` it, "
                    "and start again"
                )
            return file.read(MAX_SECRET_CHARS + 1).strip()
    return ""
