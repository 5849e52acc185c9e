"""Make the facts of a task's end, from the guardian's message, for the report."""

from holdfast.core.causes import Cause, Watchdog
from holdfast.core.facts import KEEPER_KILLED, TaskFacts, Trip
from holdfast.core.watchdogs.verdicts import make_trip
from holdfast.wire.guardian import TaskEnded

MAX_NAMED = 3
LAPSED = "its lease ended without word from the controller, so the guardian ended it"
STALLED = (
    "its lease ended while its guardian did not turn for {:.0f} s (it was stopped or starved, or the "
    "host slept), so the task was ended"
)


def make_facts(
    ended: TaskEnded,
    *,
    trip: Trip | None,
    kill_sent: bool,
    stop_asked: bool,
    host_stops: bool,
    log_tail: str,
    memory_limit_bytes: int = 0,
    over_memory_bytes: int = 0,
    rendezvous_port: int = 0,
    notices: tuple[str, ...] = (),
) -> TaskFacts:
    """Return the facts of an end.

    END-1  A task that finished by itself with 0 before the watchdog's kill was sent did its work:
           the trip is void.
    END-2  `stopped` is for drains. A task that a watchdog or the memory watch killed was not
           drained, with any signal; an operator's stop is a drain and a trip at once.
    END-3  A task that could not start because the host lacked something is the host's failure, and
           does not count as a start of the job.
    """
    if trip is not None and not kill_sent and not ended.stopped and ended.exit_code == 0:
        trip = None
    if trip is None and ended.lapsed:
        told = STALLED.format(ended.stalled_seconds) if ended.stalled_seconds else LAPSED
        trip = make_trip(Watchdog.LOST_LEASE, told, {"source": "the guardian's clock"})
    over = 0 if not ended.stopped and ended.exit_code == 0 else over_memory_bytes
    killed = trip is not None or over > 0
    stopped = ended.stopped and not ended.lapsed and (stop_asked or not killed)
    start_error = ended.start_error[:4096] if ended.start_error and not ended.lapsed else None
    lost = None
    if start_error and ended.hosts_fault:
        lost = f"it could not start the task: {start_error}"[:4096]
    elif ended.keeper_killed and not (ended.lapsed or ended.oom or killed):
        lost = KEEPER_KILLED
    own_code = ended.exit_code if ended.exit_code is None or 0 <= ended.exit_code <= 255 else 255
    return TaskFacts(
        exit_code=own_code,
        signal=ended.signal,
        oom=ended.oom,
        oom_counted=ended.oom_counted,
        trip=trip,
        stopped=stopped,
        stop_cause=Cause.HOST_DRAINED if stopped and host_stops and not stop_asked else None,
        unkillable=ended.unkillable,
        start_error=start_error,
        lost=lost,
        log_tail=log_tail,
        runtime_seconds=max(0.0, ended.runtime_seconds),
        max_memory_bytes=max(0, ended.max_memory_bytes),
        memory_limit_bytes=memory_limit_bytes,
        over_memory_bytes=over,
        rendezvous_port=rendezvous_port,
        notices=(*say_lost_output(ended), *say_left_running(ended), *notices),
    )


def say_lost_output(ended: TaskEnded) -> list[str]:
    """Return a sentence for each stream of which some bytes reached no file."""
    return [
        f"{end.lost_bytes:,} bytes of its {stream} are lost: {end.reason}".replace(",", " ")
        if end.lost_bytes
        else f"bytes of its {stream} may be lost: {end.reason}"
        for stream, end in sorted(ended.output.items())
        if end.reason
    ]


def say_left_running(ended: TaskEnded) -> list[str]:
    """Return a sentence on the processes that the task's command left running in the background."""
    names = ended.left_running
    if not names or ended.exit_code != 0:  # after a crash, leftovers are expected
        return []
    shown = ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
    if len(names) == 1:
        return [f"its command left a process running, which was ended with it: {shown}"]
    return [f"its command left {len(names)} processes running, which were ended with it: {shown}"]
