"""A finding about a gang → its sentence, its record, and what the job's settings ask for."""

import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec
from prometheus_client import Counter

from holdfast.controller.runtime.remembered import JobSpecs
from holdfast.controller.runtime.settings import SettingsCache
from holdfast.core.causes import Cause
from holdfast.core.health.blame import MAX_ASIDE_SECONDS, PROBATION_SECONDS, SetAside, may_set_aside
from holdfast.core.ids import TaskKey
from holdfast.core.placement.ranks import name_ranks
from holdfast.core.states import HostEvent
from holdfast.core.stragglers.agree import Agreement, Disagreement, StepChecksum
from holdfast.core.stragglers.judge import GangJudge
from holdfast.core.stragglers.records import Act
from holdfast.core.stragglers.values import Finding, GangSlowed, SlowRank, Steady
from holdfast.core.stragglers.words import (
    say_disagreement,
    say_rerun,
    say_slow,
    say_slowed,
    say_steady,
)
from holdfast.errors import Conflict, NotFound
from holdfast.store.postgres.jobs.suspects import NewSuspect
from holdfast.store.postgres.store import PostgresStore

log = logging.getLogger("holdfast.controller")
Poke = Callable[..., None]
Evidence = dict[str, str | int | float | bool | None]


class Rank(msgspec.Struct, frozen=True):
    """The host and the epoch of a rank. strain: conditions that may slow the host down, in words."""

    epoch: int
    host_id: str
    strain: str = ""


class Unclear(msgspec.Struct, frozen=True):
    """A disagreement without a majority, and where its ranks ran: the next attempt does that step
    again, and its checksum says which of them was right."""

    found: Disagreement
    ranks: dict[int, Rank]


class WatchedGang:
    """One attempt of a gang, as this replica knows it. told: rank → when it was told to be
    slow."""

    def __init__(self, job_id: str, unclear: Unclear | None = None) -> None:
        self.job_id = job_id
        self.judge = GangJudge()
        self.agreement = Agreement()
        self.ranks: dict[int, Rank] = {}
        self.told: dict[int, float] = {}
        self.acted: set[int] = set()
        self.ended: set[int] = set()
        self.checksums: list[tuple[int, Sequence[StepChecksum]]] = []
        self.unclear = unclear

    def is_older(self, key: TaskKey) -> bool:
        """Return whether the rank of `key` was started anew, so that the gang's past is no guide."""
        known = self.ranks.get(key.rank)
        return known is not None and known.epoch < key.epoch

    def has(self, key: TaskKey, host_id: str) -> bool:
        """Return whether `key` is a task of the gang on that host."""
        known = self.ranks.get(key.rank)
        return known is not None and known.epoch == key.epoch and known.host_id == host_id

    def take_checksums(self) -> list[tuple[int, Sequence[StepChecksum]]]:
        """Return the checksums that came, and forget them."""
        came, self.checksums = self.checksums, []
        return came


class Acting:
    """Writes findings, and acts on them."""

    def __init__(
        self,
        store: PostgresStore,
        specs: JobSpecs,
        settings: SettingsCache,
        clock: Callable[[], float],
        poke: Poke,
        found: Counter,
    ) -> None:
        self._store = store
        self._specs = specs
        self._settings = settings
        self._clock = clock
        self._poke = poke
        self._found = found

    # ---- slow ranks

    async def take_finding(self, gang: WatchedGang, finding: Finding) -> None:
        """Write a finding of the judge."""
        policy = await self._read(gang, "on_straggler")
        if policy == "ignore":
            return
        if isinstance(finding, GangSlowed):
            await self._tell_slowed(gang, finding)
        elif isinstance(finding, Steady):
            gang.told.pop(finding.rank, None)
            gang.acted.discard(finding.rank)
            rank = gang.ranks[finding.rank]
            text = say_steady(finding, await self._name_host(rank.host_id))
            if await self._store.suspects.end_suspect(gang.job_id, finding.rank, rank.epoch, text):
                self._poke("events")
        else:
            gang.told[finding.rank] = self._clock()
            await self._note_slow(gang, finding, "")

    async def act_on_slow(self, gang: WatchedGang, now: float) -> None:
        """Act on ranks that have been slow for `straggler_seconds`, once each."""
        policy = await self._read(gang, "on_straggler")
        patience = await self._read(gang, "straggler_seconds")
        if policy not in ("blame", "replace", "restart") or not isinstance(patience, (int, float)):
            return
        for slow in gang.judge.slow:
            since = gang.told.get(slow.rank)
            if since is None or now - since < patience or slow.rank in gang.acted:
                continue
            gang.acted.add(slow.rank)
            act: Act = policy
            await self._note_slow(gang, slow, act)

    async def _note_slow(self, gang: WatchedGang, slow: SlowRank, act: Act) -> None:
        rank = gang.ranks[slow.rank]
        host = await self._name_host(rank.host_id)
        text = say_slow(slow, host)
        if rank.strain:
            text += f"; {rank.strain}"
        if act == "blame":
            text += await self._say_kept([rank.host_id])
        evidence: Evidence = {
            "measure": str(slow.measure),
            "ratio": slow.ratio,
            "since_step": slow.since_step,
            "at_step": slow.at_step,
            "own_seconds": round(slow.seconds, 6),
            "others_seconds": round(slow.others_seconds, 6),
            "step_seconds": round(slow.step_seconds, 6),
            "strain": rank.strain,
        }
        new = NewSuspect(
            job_id=gang.job_id,
            epoch=rank.epoch,
            rank=slow.rank,
            kind="slow",
            step=slow.at_step,
            message=text,
            evidence=evidence,
            act=act,
        )
        done = await self._note(gang, new)
        if done == "blame":
            await self._set_aside(rank.host_id, text, PROBATION_SECONDS)

    async def _tell_slowed(self, gang: WatchedGang, slowed: GangSlowed) -> None:
        epoch = max(rank.epoch for rank in gang.ranks.values())
        evidence: Evidence = {
            "ratio": slowed.ratio,
            "since_step": slowed.since_step,
            "before_seconds": round(slowed.before_seconds, 6),
            "step_seconds": round(slowed.step_seconds, 6),
        }
        await self._note(
            gang,
            NewSuspect(
                job_id=gang.job_id,
                epoch=epoch,
                rank=None,
                kind="slowed",
                step=slowed.at_step,
                message=say_slowed(slowed),
                evidence=evidence,
            ),
        )

    # ---- work that stands still

    async def tell_still(self, job_id: str, tasks: Mapping[TaskKey, str]) -> None:
        """Write which tasks of a job stand still, and which move again (""). Of a gang whose ranks
        stand together one event is written, because they wait for each other."""
        still = [key for key, why in tasks.items() if why]
        suspects = await self._store.suspects.list_suspects([job_id])
        told = any(one.kind == "still" and one.ended_at is None for one in suspects)
        if still and not told:
            first = min(still, key=lambda key: key.rank)
            several = len(still) > 1 or first.rank > 0
            ranks = f"{name_ranks([key.rank for key in still])}: " if several else ""
            new = NewSuspect(
                job_id=job_id,
                epoch=first.epoch,
                rank=first.rank,
                kind="still",
                step=0,
                message=f"{ranks}{tasks[first]}",
            )
            if await self._store.suspects.note_suspect(new) is not None:
                log.warning("%s", new.message, extra={"job": job_id, "rank": first.rank})
                self._found.labels("still").inc()
                self._poke("events")
        for key in tasks.keys() - set(still):
            said = f"rank {key.rank}: its work moves again" if key.rank else "its work moves again"
            ended = self._store.suspects.end_suspect(
                job_id, key.rank, key.epoch, said, kind="still"
            )
            if await ended:
                self._poke("events")

    # ---- ranks that compute wrongly

    async def compare(
        self, gang: WatchedGang, rank: int, checksums: Sequence[StepChecksum]
    ) -> None:
        """Compare a rank's checksums with those of the others, and act where they differ."""
        try:
            _, spec = await self._specs.find(gang.job_id)
        except NotFound:
            return
        found = gang.agreement.compare_checksums(rank, checksums, spec.tasks)
        await self._judge_rerun(gang)
        if found is None:
            return
        policy = await self._read(gang, "on_corruption")
        if policy == "ignore":
            return
        names = {n: await self._name_host(r.host_id) for n, r in gang.ranks.items()}
        text = say_disagreement(found, names)
        acts = found.comparable and policy == "restart"
        if acts:
            text += await self._say_kept([gang.ranks[n].host_id for n in found.odd])
        odd = found.odd[0] if found.odd else None
        epoch = gang.ranks[rank if odd is None else odd].epoch
        new = NewSuspect(
            job_id=gang.job_id,
            epoch=epoch,
            rank=odd,
            kind="corrupt",
            step=found.step,
            message=text,
            evidence=_list_texts(found),
            act="restart" if acts else "",
            cause=Cause.SILENT_CORRUPTION,
        )
        done = await self._note(gang, new)
        if done is None or not acts:
            return
        if not found.odd:
            gang.unclear = Unclear(found, dict(gang.ranks))
        for host_id in dict.fromkeys(gang.ranks[n].host_id for n in found.odd):
            await self._set_aside(host_id, text, MAX_ASIDE_SECONDS)

    async def _judge_rerun(self, gang: WatchedGang) -> None:
        """Name the ranks of an earlier attempt that were wrong, once this attempt has done the
        same step again and its ranks agree."""
        unclear = gang.unclear
        right = None if unclear is None else gang.agreement.find_agreed(unclear.found.step)
        if unclear is None or right is None:
            return
        gang.unclear = None
        wrong = [n for n, text in unclear.found.texts.items() if text != right]
        if not wrong or len(wrong) == len(unclear.found.texts):
            log.info("job %s: the step that was done again says nothing", gang.job_id)
            return
        names = {n: await self._name_host(unclear.ranks[n].host_id) for n in wrong}
        text = say_rerun(unclear.found, wrong, right, names)
        text += await self._say_kept([unclear.ranks[n].host_id for n in wrong])
        new = NewSuspect(
            job_id=gang.job_id,
            epoch=gang.ranks[wrong[0]].epoch,
            rank=wrong[0],
            kind="corrupt",
            step=unclear.found.step,
            message=text,
            evidence=_list_texts(unclear.found),
        )
        await self._note(gang, new)
        for host_id in dict.fromkeys(unclear.ranks[n].host_id for n in wrong):
            await self._set_aside(host_id, text, MAX_ASIDE_SECONDS)

    # ---- what both do

    async def _note(self, gang: WatchedGang, new: NewSuspect) -> Act | None:
        done = await self._store.suspects.note_suspect(new)
        if done is not None:
            about = {"job": gang.job_id, "epoch": new.epoch, "rank": new.rank}
            log.warning("%s", new.message, extra=about)
            if not new.act or new.kind == "corrupt":
                self._found.labels(new.kind).inc()
            self._poke("events", *(("drain", "members") if done else ()))
            if done:
                self._poke(*{f"host:{rank.host_id}" for rank in gang.ranks.values()})
        return done

    async def _read(self, gang: WatchedGang, name: str) -> object:
        settings = await self._settings.recent()
        try:
            queue, spec = await self._specs.find(gang.job_id)
        except NotFound:
            return "ignore"
        return settings.value(name, queue, spec)

    async def _name_host(self, host_id: str) -> str:
        found = await self._store.hosts.get_hosts([host_id])
        return found[host_id].name if host_id in found else host_id

    async def _find_refusal(self, host_id: str) -> str:
        """Return why a host may not be set aside, "" where it may be (BLAME-5)."""
        settings = await self._settings.recent()
        if not settings.value("blame_hosts"):
            return "blame_hosts is off"
        return may_set_aside(host_id, await self._store.hosts.list_hosts())

    async def _say_kept(self, host_ids: Sequence[str]) -> str:
        """Return the end of a sentence about hosts that are not set aside, though a rank there was
        slow or wrong; "" where all are."""
        words = []
        for host_id in dict.fromkeys(host_ids):
            if refusal := await self._find_refusal(host_id):
                words.append(f"; {await self._name_host(host_id)} stays in service: {refusal}")
        return "".join(words)

    async def _set_aside(self, host_id: str, reason: str, seconds: float) -> None:
        """Quarantine a host on a gang's evidence, within the bounds of BLAME-5."""
        if refusal := await self._find_refusal(host_id):
            log.warning("host %s is not set aside: %s", host_id, refusal, extra={"host": host_id})
            return
        verdict = SetAside(host_id=host_id, kind="jobs", reason=reason, seconds=seconds)
        try:
            await self._store.health.open_aside(verdict)
            await self._store.hosts.move_host(host_id, HostEvent.QUARANTINE, reason)
        except Conflict as error:
            log.info("host %s is not moved: %s", host_id, error.message)
            return
        log.warning("quarantined: %s", reason, extra={"host": host_id})
        self._poke("admit", "events", "health", f"host:{host_id}")


def _list_texts(found: Disagreement) -> Evidence:
    """Return the checksums as evidence, of the odd ranks first, and of so many others."""
    order = [*found.odd, *(rank for rank in found.texts if rank not in found.odd)]
    return {f"rank {rank}": found.texts[rank] for rank in order[:16]}
