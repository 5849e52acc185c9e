"""The scripted runs of docs/reference/transcripts.md: the page is made of them, and checked against
them.

    python -m tests.protocol.transcripts > docs/reference/transcripts.md

Each scenario is a function: its name is the title, its docstring the sentence that opens the
transcript, its body what users, processes, hosts and the network do. Everything else that happens
is decided by Holdfast's own code.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.causes import Watchdog
from holdfast.core.endings.decide import Policy
from holdfast.core.ids import TaskKey
from holdfast.core.retry import RetryPolicy
from holdfast.core.settings.resolve import SETTINGS
from holdfast.wire.guardian import TaskEnded
from tests.protocol.host import Host
from tests.protocol.world import Times, World

HEAD = """# Transcripts

What Holdfast does, as runs of its own store and decisions on simulated hosts, time and network. Made from
`tests/protocol/transcripts.py` by `python -m tests.protocol.transcripts > docs/reference/transcripts.md`; a test holds the two
together.

The columns say when (in seconds), where or from where to where, and what. A task is written `job:rank:epoch`; the states are those of
[states](states.md); a sentence in quotation marks is the reason on record, as `holdfast show` and the events give it. `loop:` names a
loop of the leading controller; `sweeps` stands for its loops of reservations, back-offs, drained hosts and dead hosts. Heartbeats and
the renewals of leases leave no line.

The times are the product's defaults: a lease of {ttl:g} s with a margin of 5 % on each side, {grace:g} s between TERM and KILL, {force:g} s
until a drain is forced. Agents call every half second here, and a process that heeds TERM needs half its grace.
"""
TIMES = Times(
    **{
        name: float(str(SETTINGS[name].default))
        for name in (
            "lease_ttl_seconds",
            "reservation_seconds",
            "start_timeout_seconds",
            "drain_force_seconds",
            "hold_back_seconds",
            "dead_host_seconds",
            "grace_seconds",
        )
    }
)
Scenario = Callable[[], World]
SCENARIOS: list[Scenario] = []


def scenario(play: Scenario) -> Scenario:
    """Put a run on the page."""
    SCENARIOS.append(play)
    return play


def begin(
    *, hosts: int = 1, slots: int = 1, gpus: int = 1, retry: RetryPolicy | None = None
) -> World:
    """A world whose hosts are up and registered. Processes heed TERM, and die 0.4 s after a KILL."""
    policy = Policy(retry=retry or RetryPolicy())
    rates = [1.0] * hosts
    world = World(rates=rates, slots=slots, gpus=gpus, policy=policy, seed=0, times=TIMES)
    for host in world.hosts:
        host.draw = lambda: 0.25
        host.boot()
    world.wait(1.0)
    world.transcript.begin_here()
    names = [host.id for host in world.hosts]
    verb = "is" if hosts == 1 else "are"
    text = f"{', '.join(names)} {verb} up, with {gpus} GPU{' each' * (hosts > 1)}"
    world.transcript.say(world.t, "", text)
    return world


def find(world: World, job_id: str, rank: int = 0) -> tuple[Host, TaskKey]:
    """Where a rank runs, and its key."""
    for host in world.hosts:
        for process in host.processes.values():
            key = process.key
            if (key.job_id, key.rank) == (job_id, rank) and process.live:
                return host, key
    raise LookupError(f"rank {rank} of {job_id} runs nowhere")


def exits(world: World, job_id: str, code: int, rank: int = 0) -> None:
    """A rank's process exits by itself, and its host says so."""
    host, key = find(world, job_id, rank)
    host.exit(key, TaskEnded(key=key, exit_code=code))
    world.wait(1.0)


@scenario
def a_job_runs_and_succeeds() -> World:
    """A job of one task is placed, launched and reported, and the report of exit code 0 ends it."""
    w = begin()
    w.submit(job_id="train", tasks=1, gpus=1, late=False, priority=50)
    w.wait(10.0)
    exits(w, "train", 0)
    return w


@scenario
def a_job_fails_and_is_retried_with_a_growing_delay() -> World:
    """A job with two retries fails twice, waits 10 s and then 20 s, and succeeds on its third
    attempt."""
    w = begin(retry=RetryPolicy(max_retries=2, retry_delay=10.0, backoff="exponential"))
    w.submit(job_id="train", tasks=1, gpus=1, late=False, priority=50)
    w.wait(3.0)
    exits(w, "train", 1)
    w.wait(14.0)
    exits(w, "train", 1)
    w.wait(24.0)
    exits(w, "train", 0)
    return w


@scenario
def a_gang_of_three_starts() -> World:
    """Every host keeps a place for its rank, and only when all three places are claimed are the ranks
    launched (GANG-1); here the calls of one host are lost at first."""
    w = begin(hosts=3)
    w.links["host2"] = "lose_request"
    w.submit(job_id="gang", tasks=3, gpus=1, late=False, priority=50)
    w.wait(3.0)
    w.links["host2"] = "ok"
    w.wait(3.0)
    return w


@scenario
def a_gang_falls_and_is_resumed() -> World:
    """One rank of three fails: its siblings are drained, that rank alone is charged (DRAIN-2, GANG-4),
    and the gang starts again."""
    w = begin(hosts=3, retry=RetryPolicy(max_retries=1, retry_delay=0.0))
    w.submit(job_id="gang", tasks=3, gpus=1, late=False, priority=50)
    w.wait(5.0)
    exits(w, "gang", 1, rank=1)
    w.wait(12.0)
    return w


@scenario
def a_host_goes_silent() -> World:
    """A host loses its power: because silence proves nothing, its job is placed anew only when the
    lease and the margin are over (LEASE-3)."""
    w = begin(hosts=2)
    w.submit(job_id="train", tasks=1, gpus=1, late=False, priority=50)
    w.wait(5.0)
    host, _ = find(w, "train")
    host.crash()
    w.wait(320.0)
    return w


@scenario
def a_new_incarnation_frees_at_once() -> World:
    """A host boots again: its new incarnation proves that the old one's tasks are gone, so its job is
    placed anew at once (LEASE-3)."""
    w = begin(hosts=1)
    w.submit(job_id="train", tasks=1, gpus=1, late=False, priority=50)
    w.wait(5.0)
    host, _ = find(w, "train")
    host.crash()
    w.wait(20.0)
    host.boot()
    w.wait(3.0)
    return w


@scenario
def a_lease_lapses_on_the_host_first() -> World:
    """The network loses a host's calls: the host's guardian ends the task one margin before the lease is
    over, and the controller places it anew one margin after, so the two never overlap (LEASE-2)."""
    w = begin(hosts=2)
    w.submit(job_id="train", tasks=1, gpus=1, late=False, priority=50)
    w.wait(5.0)
    host, _ = find(w, "train")
    w.links[host.id] = "lose_request"
    w.wait(320.0)
    return w


@scenario
def a_drain_is_forced() -> World:
    """A stop is not confirmed because the host's agent is away: after 45 s the drain is forced, and
    the agent that comes back kills the task without grace."""
    w = begin(hosts=1)
    w.submit(job_id="train", tasks=1, gpus=1, late=False, priority=50)
    w.wait(5.0)
    find(w, "train")[0].kill_agent()
    w.cancel("train")
    w.wait(50.0)
    w.hosts[0].start_agent()
    w.wait(3.0)
    return w


@scenario
def a_watchdog_trips() -> World:
    """The stall watchdog kills a job, which is queued again at the front: it starts before a job that
    has waited meanwhile."""
    w = begin(hosts=1)
    w.submit(job_id="train", tasks=1, gpus=1, late=False, priority=50)
    w.wait(3.0)
    w.submit(job_id="other", tasks=1, gpus=1, late=False, priority=50)
    w.wait(3.0)
    host, key = find(w, "train")
    host.trip(key, Watchdog.STALL, w.t)
    w.wait(4.0)
    return w


@scenario
def a_more_important_job_preempts() -> World:
    """A job of higher priority finds no room: a preemptible job is stopped for it, charged with nothing,
    and runs again afterwards."""
    w = begin(hosts=1)
    w.submit(job_id="train", tasks=1, gpus=1, late=False, priority=50, preemptible=True)
    w.wait(5.0)
    w.submit(job_id="urgent", tasks=1, gpus=1, late=False, priority=90)
    w.wait(15.0)
    exits(w, "urgent", 0)
    w.wait(3.0)
    return w


@scenario
def a_user_cancels_during_a_drain() -> World:
    """A user cancels a gang that already drains for another attempt: the drain goes on, and the gang ends
    as cancelled."""
    w = begin(hosts=2, retry=RetryPolicy(max_retries=3, retry_delay=0.0))
    w.submit(job_id="gang", tasks=2, gpus=1, late=False, priority=50)
    w.wait(5.0)
    exits(w, "gang", 1, rank=0)
    w.cancel("gang")
    w.wait(12.0)
    return w


@scenario
def a_member_of_a_supervised_job_is_replaced() -> World:
    """A member of a supervised job is killed: it alone gets another host, under an epoch of its own, and
    the others run on (MEMBER-1)."""
    w = begin(hosts=4)
    w.submit(job_id="run", tasks=3, gpus=1, late=False, priority=50, supervised=True)
    w.wait(5.0)
    host, key = find(w, "run", 2)
    host.exit(key, TaskEnded(key=key, signal=9))
    w.wait(70.0)
    return w


@scenario
def a_late_report_is_refused() -> World:
    """A host comes back after its lease is over and reports an end under the old epoch: the report is
    refused, and the new attempt runs on (FENCE-1)."""
    w = begin(hosts=2)
    w.submit(job_id="train", tasks=1, gpus=1, late=False, priority=50)
    w.wait(5.0)
    host, _ = find(w, "train")
    w.links[host.id] = "lose_request"
    w.wait(325.0)
    w.links[host.id] = "ok"
    w.wait(3.0)
    return w


def render_page() -> str:
    """The whole page."""
    head = HEAD.format(
        ttl=TIMES.lease_ttl_seconds, grace=TIMES.grace_seconds, force=TIMES.drain_force_seconds
    )
    parts = [head]
    for play in SCENARIOS:
        title = play.__name__.replace("_", " ").capitalize()
        sentence = " ".join((play.__doc__ or "").split())
        parts.append(f"## {title}\n\n{sentence}\n\n```text\n{play().transcript.render()}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(render_page(), end="")
