"""The store in memory: for tests and for simulation. The same moves as on PostgreSQL, and the same
conformance suite.

Nothing in it awaits, so each call is one atomic step. Nothing in it survives the process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.core.records import EventRecord, LogChunk, LogStreamRecord, TokenRecord
from holdfast.core.settings.resolve import Value
from holdfast.core.states import HostState, JobState
from holdfast.errors import Conflict, Stale
from holdfast.moves.events import format_event_id, no_token, parse_event_id
from holdfast.moves.log_plan import (
    LogBase,
    LogPlace,
    Range,
    find_place,
    no_attempt,
    plan_append,
    window,
)
from holdfast.moves.values import LogAppend, TellDrains
from holdfast.store.memory.admission import MemoryAdmission
from holdfast.store.memory.checkpoints import MemoryCheckpoints
from holdfast.store.memory.hosts import MemoryHosts
from holdfast.store.memory.reads import MemoryReads
from holdfast.store.memory.settings import MemoryProjects, MemorySettings
from holdfast.store.memory.state import MemoryState, MemoryStream, MemoryToken
from holdfast.store.memory.webhooks import MemoryWebhooks
from holdfast.store.port.hub import HintHub
from holdfast.store.port.store import Gauges
from holdfast.wire.agent import Forensics


class MemoryRecords:
    """Events and tokens."""

    state: MemoryState

    async def read_events(
        self,
        after: str | None,
        *,
        limit: int = 500,
        job_id: str | None = None,
        kinds: Sequence[str] = (),
        tail: int = 0,
    ) -> list[EventRecord]:
        """See `Store.read_events`."""
        start = format_event_id(*parse_event_id(after))
        found = [
            e
            for e in self.state.events
            if e.id > start and job_id in (None, e.job_id) and (not kinds or e.kind in kinds)
        ]
        return found[-tail:] if after is None and tail > 0 else found[:limit]

    async def create_token(
        self,
        token_id: str,
        role: str,
        name: str,
        secret_hash: bytes,
        expires_at: datetime | None,
        *,
        now: datetime | None = None,
    ) -> TokenRecord:
        """See `Store.create_token`."""
        token = self.state.tokens.get(token_id)
        if token is None:
            record = TokenRecord(
                id=token_id,
                role=role,
                name=name,
                created_at=self.state.at(now),
                expires_at=expires_at,
            )
            token = self.state.tokens[token_id] = MemoryToken(
                record=record, secret_hash=secret_hash
            )
        elif (token.record.role, token.record.name) != (role, name):
            raise Conflict(f"token {token_id} is there already, for something else")
        return token.record

    def _find(self, secret_hash: bytes, at: datetime) -> MemoryToken | None:
        for token in self.state.tokens.values():
            expires = token.record.expires_at
            if (
                token.secret_hash == secret_hash
                and token.record.revoked_at is None
                and (expires is None or expires > at)
            ):
                return token
        return None

    async def find_token(
        self, secret_hash: bytes, *, now: datetime | None = None
    ) -> TokenRecord | None:
        """See `Store.find_token`."""
        token = self._find(secret_hash, self.state.at(now))
        return None if token is None else token.record

    async def use_join_token(
        self, secret_hash: bytes, *, now: datetime | None = None
    ) -> TokenRecord | None:
        """See `Store.use_join_token`."""
        at = self.state.at(now)
        token = self._find(secret_hash, at)
        if token is None or token.record.role != "join" or token.record.used_at is not None:
            return None
        token.record = msgspec.structs.replace(token.record, used_at=at)
        return token.record

    async def list_tokens(self) -> list[TokenRecord]:
        """See `Store.list_tokens`."""
        return sorted(
            (t.record for t in self.state.tokens.values()), key=lambda t: (t.created_at, t.id)
        )

    async def revoke_token(self, token_id: str, *, now: datetime | None = None) -> None:
        """See `Store.revoke_token`."""
        token = self.state.tokens.get(token_id)
        if token is None:
            raise no_token(token_id)
        at = token.record.revoked_at or self.state.at(now)
        token.record = msgspec.structs.replace(token.record, revoked_at=at)


class MemoryLogs:
    """Logs and forensics."""

    state: MemoryState

    async def append_logs(self, host_id: str, appends: Sequence[LogAppend]) -> list[int | None]:
        """See `Store.append_logs`."""
        sizes: list[int | None] = []
        for append in appends:
            try:
                sizes.append(self._append(host_id, append))
            except Stale:
                sizes.append(None)
        return sizes

    def _append(self, host_id: str, append: LogAppend) -> int:
        key, stream, ended = append.key, append.stream, append.ended
        attempt = self._find_attempt(host_id, key)
        log = self.state.streams.setdefault(
            (key.job_id, attempt, key.rank, stream), MemoryStream(chunks={})
        )
        place = self._find_place(key, attempt, stream, log.size)
        at, kept = place.cut(append.offset, append.data)
        ends = ended and not place.later
        if not kept and not place.new and (log.ended or not ends):
            return log.size
        ranges = [Range(start, len(chunk)) for start, chunk in sorted(log.chunks.items())]
        plan = plan_append(log.size, ranges, at, kept, append.keep_bytes)
        log.chunks.update(plan.pieces)
        for old in [
            a for a, c in log.chunks.items() if a >= plan.head and a + len(c) <= plan.tail_start
        ]:
            del log.chunks[old]
        log.size, log.kept = plan.size, sum(map(len, log.chunks.values()))
        log.ended = ends or (log.ended and not place.new)
        return log.size

    def _find_place(self, key: TaskKey, attempt: int, stream: str, size: int) -> LogPlace:
        found = [
            r
            for r in self.state.replacements
            if (r.job_id, r.rank, r.attempt) == (key.job_id, key.rank, attempt)
        ]
        bases = [
            LogBase(
                r.epoch, r.number, self.state.log_bases.get((r.job_id, r.rank, r.epoch, stream))
            )
            for r in found
        ]
        place = find_place(bases, key.epoch, size)
        if place.new:
            self.state.log_bases[key.job_id, key.rank, key.epoch, stream] = place.base
        return place

    def _find_attempt(self, host_id: str, key: TaskKey) -> int:
        for attempt in self.state.attempts.get(key.job_id, []):
            here = 0 <= key.rank < len(attempt.host_ids) and attempt.host_ids[key.rank] == host_id
            if attempt.epoch == key.epoch and here:
                return attempt.number
        for r in self.state.replacements:
            if (r.job_id, r.rank, r.epoch, r.host_id) == (key.job_id, key.rank, key.epoch, host_id):
                return r.attempt
        raise no_attempt(host_id, key)

    async def list_log_streams(
        self, job_id: str, attempt: int | None = None
    ) -> list[LogStreamRecord]:
        """See `Store.list_log_streams`."""
        return [
            LogStreamRecord(
                job_id=place[0],
                attempt=place[1],
                rank=place[2],
                stream=place[3],
                size=log.size,
                kept=log.kept,
                ended=log.ended,
            )
            for place, log in sorted(self.state.streams.items())
            if place[0] == job_id and attempt in (None, place[1])
        ]

    async def read_log(
        self,
        job_id: str,
        attempt: int,
        rank: int,
        stream: str,
        offset: int,
        *,
        limit_bytes: int = 1 << 20,
    ) -> list[LogChunk]:
        """See `Store.read_log`."""
        log = self.state.streams.get((job_id, attempt, rank, stream), MemoryStream())
        chunks = [(at, data) for at, data in sorted(log.chunks.items()) if at + len(data) > offset]
        return [
            LogChunk(stream=stream, rank=rank, offset=a, data=d)
            for a, d in window(chunks, offset, limit_bytes)
        ]

    async def put_forensics(
        self, host_id: str, forensics: Forensics, *, now: datetime | None = None
    ) -> None:
        """See `Store.put_forensics`."""
        attempt = self._find_attempt(host_id, forensics.key)
        key = forensics.key
        self.state.forensics[key.job_id, attempt, key.rank, key.epoch] = forensics

    async def get_forensics(
        self, job_id: str, attempt: int | None = None
    ) -> list[tuple[int, Forensics]]:
        """See `Store.get_forensics`."""
        return [
            (place[1], found)
            for place, found in sorted(self.state.forensics.items())
            if place[0] == job_id and attempt in (None, place[1])
        ]


class MemoryStore(
    MemorySettings,
    MemoryProjects,
    MemoryReads,
    MemoryAdmission,
    MemoryHosts,
    MemoryRecords,
    MemoryLogs,
    MemoryWebhooks,
    MemoryCheckpoints,
):
    """A `Store` in memory. `clock` stands for the database's; `environment` as for
    `PostgresStore`."""

    def __init__(
        self,
        *,
        clock: Callable[[], datetime] | None = None,
        environment: Mapping[str, Value] | None = None,
    ) -> None:
        self.state = MemoryState(clock)
        self.environment = dict(environment or {})
        self._hub = HintHub()
        self._init_webhooks()

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to close."""

    async def ping(self) -> None:
        """Always there."""

    async def now(self) -> datetime:
        """The clock given."""
        return self.state.clock()

    def watch_drains(self, tell: TellDrains) -> None:
        """See `Store.watch_drains`."""
        self.state.tell_drains = tell

    async def try_lead(self) -> bool:
        """There is one process, so it leads."""
        return True

    async def stop_leading(self) -> None:
        """Nothing to give back."""

    def hint(self, topic: str) -> None:
        """See `Store.hint`."""
        self._hub.deliver(topic)

    def hints(self) -> AsyncIterator[str]:
        """See `Store.hints`."""
        return self._hub.listen()

    async def read_gauges(self, *, now: datetime | None = None) -> Gauges:
        """See `Store.read_gauges`."""
        s, at = self.state, self.state.at(now)
        hosts: dict[str, int] = {}
        for host in s.hosts.values():
            hosts[str(host.state)] = hosts.get(str(host.state), 0) + 1
        alive = [h for h in s.hosts.values() if h.state is not HostState.TERMINATED]
        live = [t for ranks in s.tasks.values() for t in ranks.values() if t.state.holds_lease]
        queued = [s.jobs[i].row.queued_at or at for i in s.by_state[JobState.QUEUED]]
        return Gauges(
            jobs=await self.count_jobs(),
            hosts=hosts,
            dead_hosts=sum(h.flagged_dead_at is not None for h in alive),
            busy_cpu_slots=sum(t.cpu_slots for t in live),
            busy_gpus=sum(len(t.devices) for t in live),
            total_cpu_slots=sum(h.cpu_slots for h in alive),
            total_gpus=sum(len(h.gpus) for h in alive),
            oldest_queued_seconds=max(0.0, (at - min(queued)).total_seconds()) if queued else 0.0,
            oldest_transaction_seconds=0.0,
            webhook_deliveries=await self.count_deliveries(),
        )

    async def prune(
        self, history_days: float, *, limit: int = 1000, now: datetime | None = None
    ) -> int:
        """See `Store.prune`."""
        s, before = self.state, self.state.at(now) - timedelta(days=history_days)
        old = [
            (job.row.ended_at, i)
            for i, job in s.jobs.items()
            if job.row.ended_at is not None and job.row.ended_at < before
        ]
        gone = {i for _, i in sorted(old)[:limit]}
        for job_id in gone:
            s.attempts.pop(job_id, None)
            del s.jobs[job_id]
        s.keys = {key: i for key, i in s.keys.items() if i not in gone}
        s.streams = {place: log for place, log in s.streams.items() if place[0] not in gone}
        s.replacements = [r for r in s.replacements if r.job_id not in gone]
        s.log_bases = {place: base for place, base in s.log_bases.items() if place[0] not in gone}
        s.forensics = {place: f for place, f in s.forensics.items() if place[0] not in gone}
        s.events = [
            e for e in s.events if e.job_id not in gone and (e.job_id is not None or e.at >= before)
        ]
        return len(gone)
