"""One call as `GET …/calls/{index}` shows it, and the reasons for its state."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.controller.runtime.calls.reported import HeardExecutor
from holdfast.controller.runtime.context import Controller
from holdfast.controller.why.explain import explain
from holdfast.controller.why.reads import find_circumstances
from holdfast.controller.why.words import say_due
from holdfast.core.calls.plan import FamilyRoom, failure_delay_seconds
from holdfast.core.calls.rooms import count_beside, find_room, fits_model, list_hosts_of
from holdfast.core.calls.values import CallState, Family, FunctionSpec
from holdfast.core.causes import CHARGED_TO, Budget, Cause
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.placement.eligible import NOT, list_unmet
from holdfast.core.records import HostRecord, JobRecord
from holdfast.core.states import JobState
from holdfast.errors import NotFound
from holdfast.moves.values import JobFilter
from holdfast.store.postgres.calls.values import BusyCall, CallStanding
from holdfast.wire.api import WhyLine
from holdfast.wire.calls import CallFailureView, CallView, CallWhyLine

MAX_EXECUTORS = 200
MAX_NAMED = 3
EARLY_SECONDS = 10.0
LIVE = (JobState.WAITING, JobState.QUEUED, JobState.RESERVED, JobState.RUNNING, JobState.DRAINING)


class CallCircumstances(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that `explain_call` works from.

    executors: the live executors of the call's family, newest first. heard: the last reports of
    these executors to this replica, by job id. waiting: the lines of `why` for the family's first
    executor without a place. ended: the family's most recently ended executors, newest first.
    refusal: the store's reason for refusing new executors; empty where it refuses none. busy: the
    running calls, of all families, whose executors take no other call. endless: calls that wait for
    this one while they hold every GPU on which it could run, so that neither can go on.
    """

    name: str
    standing: CallStanding
    now: datetime
    hosts: Sequence[HostRecord] = ()
    room: FamilyRoom = FamilyRoom(slots=0, listed=False)
    executors: Sequence[JobRecord] = ()
    heard: Mapping[str, HeardExecutor] = {}
    waiting: Sequence[WhyLine] = ()
    ended: Sequence[JobRecord] = ()
    refusal: str = ""
    busy: Sequence[BusyCall] = ()
    endless: Sequence[BusyCall] = ()


def explain_call(found: CallCircumstances) -> list[CallWhyLine]:
    """Explain why the call is in its present state, the most important reason first. Pure."""
    standing = found.standing
    if standing.phase == "ended":
        return list(_explain_end(found))
    if standing.phase == "running":
        hint = f"holdfast logs {standing.executor}"
        text = f"attempt {standing.attempts} runs in executor {standing.executor}, or is next there"
        return [_line("running", text, hint)]
    if standing.phase == "backing_off":
        because = f": {standing.reason}" if standing.reason else ""
        when = say_due(standing.due_at, found.now)
        return [_line("back_off", f"it is tried again{when}{because}")]
    lines = [
        *_explain_endless(found),
        *_explain_hosts(found),
        *_explain_memory(found),
        *_explain_executors(found),
        *_explain_busy(found),
        *_explain_unable(found),
    ]
    if standing.ahead:
        count = "10 000 or more" if standing.ahead >= 10_000 else str(standing.ahead)
        calls = "call is" if standing.ahead == 1 else "calls are"
        hint = "a higher priority moves it forward"
        lines.append(_line("behind", f"{count} {calls} ahead of it in its feed", hint))
    return lines or [_line("ready", "it is next: an executor takes it with its next batch")]


def _line(code: str, message: str, hint: str = "") -> CallWhyLine:
    return CallWhyLine(code=code, message=message, hint=hint)


def _explain_end(found: CallCircumstances) -> Iterator[CallWhyLine]:
    standing = found.standing
    state = standing.state.name.lower()
    how = "was cancelled" if standing.state is CallState.CANCELLED else state
    because = f": {standing.reason}" if standing.reason else ""
    hint = f"holdfast calls retry {found.name}"
    yield _line("ended", f"it {how}{because}", hint * (standing.state is not CallState.SUCCEEDED))


def _explain_endless(found: CallCircumstances) -> Iterator[CallWhyLine]:
    """Explain that the call cannot start before the calls that wait for it have ended."""
    if found.endless:
        text = (
            f"every GPU it could run on is held by calls that wait: {_name_busy(found.endless)}; a GPU "
            "is not lent"
        )
        hint = "ask for its result outside of a call, run it in place, or add a host with a GPU"
        yield _line("waits_for_itself", text, hint)


def _name_busy(busy: Sequence[BusyCall]) -> str:
    named = [f"{b.call} waits for {b.waits_for}" if b.waits_for else b.call for b in busy]
    more = f" and {len(named) - MAX_NAMED} more" * (len(named) > MAX_NAMED)
    return ", ".join(named[:MAX_NAMED]) + more


def _explain_busy(found: CallCircumstances) -> Iterator[CallWhyLine]:
    """Name the calls that occupy all executors of the family."""
    running = {job.id for job in found.executors if job.state is JobState.RUNNING}
    holding = [busy for busy in found.busy if busy.job_id in running]
    if not running or len({busy.job_id for busy in holding}) < len(running) or found.endless:
        return
    waits = any(busy.waits_for for busy in holding)
    how = "hold calls that wait themselves" if waits else "run calls that take long"
    hint = ""
    if waits and found.standing.family.gpus:
        hint = "a GPU is not lent: it runs when one of these calls ends, or on another GPU"
    elif waits:
        hint = "they lend their CPU slots: an executor is started beside them"
    yield _line("executors_busy", f"the executors of its family {how}: {_name_busy(holding)}", hint)


def _explain_hosts(found: CallCircumstances) -> Iterator[CallWhyLine]:
    """Name the requirement that no live host meets."""
    standing = found.standing
    family = standing.family
    hosts = list(list_hosts_of(family, found.hosts))
    able = msgspec.structs.replace(family, host_labels={})
    listing = list(list_hosts_of(able, found.hosts)) if family.host_labels else []
    if not found.room.listed and listing:
        yield _explain_labels(family, listing)
    elif not found.room.listed and family.code is not None:
        text = f"no live host serves queue {family.queue}"
        hint = f"start an agent with `--queues {family.queue}`, or without `--queues`"
        yield _line("no_host_serves_queue", text, hint)
    elif not found.room.listed:
        off = any(family.app in fault.apps for host in found.hosts for fault in host.faults)
        if off:
            return  # a host lists the app; a line below says why it cannot run it
        text = f"no live host that serves queue {family.queue} lists app {family.app}"
        hint = f"start one: holdfast agent --app {family.app}"
        yield _line("no_host_lists_app", text, hint)
    elif not fits_model(standing.spec.vram_gb, hosts) and hosts:
        size = f"{standing.spec.model} ({standing.spec.vram_gb:g} GB)"
        text = f"it waits for model {size}: no live host {_say_listing(family)} has that much"
        yield _line("no_host_fits_model", text, "add a host with a larger GPU")
    elif found.room.slots == 0:
        text = f"no live host {_say_listing(family)} is large enough for its executor"
        yield _line("impossible_resources", text, "ask for fewer resources, or add a larger host")
    elif found.room.most == 0:
        text = f"queue {family.queue} may have no executors: executors_max is 0"
        yield _line("executors_max", text, f"holdfast queues set {family.queue} executors_max=off")


def _say_listing(family: Family) -> str:
    """Return the words for the hosts on which a family may run."""
    if family.code is not None:
        return f"that serves queue {family.queue}"
    return f"that lists app {family.app}"


def _explain_unable(found: CallCircumstances) -> Iterator[CallWhyLine]:
    """Name the hosts that list the call's app but cannot run it (ABLE-1)."""
    app = "" if found.standing.family.code is not None else found.standing.family.app
    for host in [h for h in found.hosts if any(app in fault.apps for fault in h.faults)][
        :MAX_NAMED
    ]:
        why = next(fault.reason for fault in host.faults if app in fault.apps)
        text = f"host {host.name} lists app {app} and cannot run it: {why}"
        hint = "mend it there; the host tries it again by itself"
        yield _line("host_cannot_run_app", text, hint)


def _explain_memory(found: CallCircumstances) -> Iterator[CallWhyLine]:
    """Explain that no executor's GPU has the memory for the call's model beside the models loaded
    there. Yields nothing where an executor has the memory, or where its free memory is unknown."""
    spec = found.standing.spec
    running = [job for job in found.executors if job.state is JobState.RUNNING]
    rooms = {job.id: found.heard.get(job.id) for job in running}
    if not running or any(_may_load(spec, heard) for heard in rooms.values()):
        return
    names = {host.id: host.name for host in found.hosts}
    told = [(job_id, heard) for job_id, heard in rooms.items() if heard is not None]
    each = [
        f"executor {job_id} on host {names.get(heard.host_id, heard.host_id)} is "
        f"{heard.free_gb:.1f} GB"
        for job_id, heard in told[:MAX_NAMED]
    ]
    size = f"{spec.model} ({spec.vram_gb:g} GB)"
    text = (
        f"it waits for the memory of model {size}: what other processes leave on the GPU of "
        f"{', of '.join(each)}"
    )
    more = f", and less than it needs with {len(told) - MAX_NAMED} more" * (len(told) > MAX_NAMED)
    hint = "`nvidia-smi` on the host shows what holds the memory; or lower the model's vram_gb"
    yield _line("model_waits_for_memory", text + more, hint)


def _may_load(spec: FunctionSpec, heard: HeardExecutor | None) -> bool:
    if heard is None or heard.free_gb is None:
        return True
    return spec.vram_gb <= heard.free_gb or spec.model == heard.loaded


def _explain_labels(family: Family, listing: Sequence[HostRecord]) -> CallWhyLine:
    """Name the required labels that no host with the app has."""
    wanted, each = family.host_labels, f"live host {_say_listing(family)}"
    unmet = set.intersection(*(list_unmet(host.labels, wanted) for host in listing))
    pairs = {name: f"{name}={wanted[name].removeprefix(NOT)}" for name in sorted(wanted)}
    avoided = [pairs[name] for name in pairs if name in unmet and wanted[name].startswith(NOT)]
    missing = [pairs[name] for name in pairs if name in unmet and not wanted[name].startswith(NOT)]
    words = "label" if len(missing) == 1 else "labels"
    parts = [f"no {each} has the {words} {', '.join(missing)}"] * bool(missing)
    subject = "each" if parts else f"each {each}"
    parts += [f"{subject} has {', '.join(avoided)}, which it avoids"] * bool(avoided)
    if not parts:
        asked = ", ".join(f"{name}={wanted[name]}" for name in pairs)
        parts = [f"no {each} fits all of its host_labels: {asked}"]
    needed = [f" --label {pairs[n]}" for n in pairs if not wanted[n].startswith(NOT)]
    app = "" if family.code is not None else f" --app {family.app}"
    hint = f"start one: holdfast agent{app}{''.join(needed)}"
    return _line("no_host_with_labels", "; ".join(parts), hint)


def _explain_executors(found: CallCircumstances) -> Iterator[CallWhyLine]:
    """Explain why no executor of the family starts. Yields nothing where one runs."""
    if any(job.state is JobState.RUNNING for job in found.executors):
        return
    if found.refusal:
        yield _line("executors_refused", f"its executor was refused: {found.refusal}")
    starting = [job for job in found.executors if job.state is JobState.RESERVED]
    if starting:
        hint = f"holdfast why {starting[0].id}"
        yield _line("executor_starts", f"its executor {starting[0].id} is starting", hint)
        return
    for each in found.waiting:
        yield _line("executor_waits", f"its executor waits: {each.message}", each.hint)
    failures = count_failures(found.ended)
    if failures and not found.executors and found.room.listed:
        last = found.ended[0]
        delay = failure_delay_seconds(failures)
        later = f"; the next one is started {delay:g} s after the last failure" if delay else ""
        text = f"{failures} of its executors failed in a row, the last: {last.reason}{later}"
        yield _line("executors_fail", text, f"holdfast logs {last.id}")


def count_failures(ended: Sequence[JobRecord]) -> int:
    """Return how many executors in a row broke soon after their start, counted from the newest.
    ended: the ended executors, newest first.

    Executors that a call broke later, or that an operator stopped, do not count.
    """
    count = 0
    for job in ended:
        if not _broke_early(job):
            break
        count += 1
    return count


def _broke_early(job: JobRecord) -> bool:
    if job.cause is Cause.APP_UNUSABLE:
        return True
    charged = CHARGED_TO.get(job.cause) if job.cause is not None else None
    if job.state is not JobState.FAILED or charged in (Budget.NOTHING, Budget.WATCHDOG):
        return False
    began, ended = job.started_at, job.ended_at
    if began is None or ended is None:
        return True
    return (ended - began).total_seconds() < EARLY_SECONDS


async def view_call(controller: Controller, set_id: str, index: int) -> CallView:
    """Return one call with its failures and the reasons for its state. Raises NotFound."""
    store = controller.store
    standing = await store.calls.read_call(set_id, index)
    failures = await store.calls.read_failures(set_id, index)
    found = await find_call_circumstances(controller, f"{set_id}.{index}", standing)
    state: Any = standing.phase if standing.phase != "ended" else standing.state.name.lower()
    return CallView(
        set=set_id,
        index=index,
        function=standing.spec.function,
        state=state,
        attempts=standing.attempts,
        reason=standing.reason,
        value=standing.value,
        executor=standing.executor,
        failures=[_view_failure(failure) for failure in failures],
        why=explain_call(found),
    )


def _view_failure(failure: Mapping[str, Any]) -> CallFailureView:
    times = {
        name: failure[name].timestamp() if isinstance(failure.get(name), datetime) else None
        for name in ("began_at", "ended_at")
    }
    names = ("attempt", "host", "cause", "reason")
    given = {name: failure[name] for name in names if failure.get(name) is not None}
    return msgspec.convert({**given, **times}, CallFailureView)


async def find_call_circumstances(
    controller: Controller, name: str, standing: CallStanding
) -> CallCircumstances:
    """Read the facts that explain a call's state; only its own record where it does not wait for an
    executor."""
    store = controller.store
    now = await store.now()
    if standing.phase != "ready":
        return CallCircumstances(name=name, standing=standing, now=now)
    family = standing.family
    executors, ended = await read_executors(controller, family.name)
    hosts = await store.hosts.list_hosts()
    pools = [pool.spec for pool in await store.fleet.list_pools()]
    settings = await controller.settings.current()
    most = settings.value("executors_max", family.queue)
    busy = await store.calls.read_busy()
    queued = [job for job in executors if job.state in (JobState.QUEUED, JobState.WAITING)]
    waiting: Sequence[WhyLine] = ()
    if queued:
        (circumstances,) = await find_circumstances(controller, queued[-1:])
        waiting = explain(circumstances).lines
    return CallCircumstances(
        name=name,
        standing=standing,
        now=now,
        hosts=hosts,
        room=find_room(family, hosts, pools, most if isinstance(most, int) else None),
        executors=executors,
        heard=controller.calls.find_executors(family.name),
        waiting=waiting,
        ended=ended,
        refusal=controller.calls.refusals.get(family.name, ""),
        busy=busy,
        endless=await _find_endless(controller, name, family, busy, hosts, pools),
    )


async def _find_endless(
    controller: Controller,
    name: str,
    family: Family,
    busy: Sequence[BusyCall],
    hosts: Sequence[HostRecord],
    pools: Sequence[PoolSpec],
) -> list[BusyCall]:
    if not family.gpus or all(each.waits_for != name for each in busy):
        return []
    holding = [each for each in busy[:MAX_EXECUTORS] if each.family.gpus and each.waits_for]
    blocked = [each for each in holding if await _waits_for_gpu(controller, each)]
    return find_endless(name, family, blocked, list(list_hosts_of(family, hosts)), pools)


def find_endless(
    name: str,
    family: Family,
    blocked: Sequence[BusyCall],
    serving: Sequence[HostRecord],
    pools: Sequence[PoolSpec],
) -> list[BusyCall]:
    """Return the calls of a deadlock: calls that hold GPUs without which this call cannot start,
    while one of those calls waits for this one. The list is empty where there is no deadlock. Where
    several calls block each other, the calls that began after the last one that waits for this call
    are left out, because that one would have blocked without them."""
    last = max((b.batch for b in blocked if b.waits_for == name), default=0)
    blocked = [each for each in blocked if each.batch <= last]
    held = Counter[str]()
    for each in blocked:
        held[each.host_id] += each.family.gpus
    return [] if not last or count_beside(family, serving, pools, held) else blocked


async def _waits_for_gpu(controller: Controller, busy: BusyCall) -> bool:
    set_id, _, index = busy.waits_for.rpartition(".")
    try:
        standing = await controller.store.calls.read_call(set_id, int(index))
    except (NotFound, ValueError):
        return False
    return standing.phase == "ready" and standing.family.gpus > 0


async def read_executors(
    controller: Controller, family: str
) -> tuple[list[JobRecord], list[JobRecord]]:
    """Return a family's live executors and its most recently ended ones, both newest first."""
    found = await controller.store.jobs.list_jobs(
        JobFilter(executors="only", family=family, limit=MAX_EXECUTORS)
    )
    live = [job for job in found if not job.state.terminal]
    return live, [job for job in found if job.state.terminal]
