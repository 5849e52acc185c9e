"""Outlooks for the tests of forecasts."""

from hypothesis import strategies as st

from holdfast.core.forecast.outlook import Outlook, PoolOutlook
from holdfast.core.forecast.spreads import Spread, foretell_left
from holdfast.core.placement.types import Candidate, Capacity, QuotaLeft, RunningTask

EXACT = Spread((50.0,))


def make_job(job_id: str, **words: object) -> Candidate:
    given: dict[str, object] = {
        "epoch": 0,
        "queue": "gpu",
        "priority": 50,
        "tasks": 1,
        "gpus": 1,
        "cpu_slots": 0,
        "memory_bytes": 0,
    }
    return Candidate(job_id=job_id, **(given | words))  # type: ignore[arg-type]


def make_host(name: str, free: int, **words: object) -> Capacity:
    given: dict[str, object] = {
        "incarnation": "i",
        "queues": frozenset(),
        "free_cpu_slots": 8,
        "free_memory_bytes": 64 << 30,
        "free_devices": tuple(range(free)),
    }
    return Capacity(host_id=name, name=name, **(given | words))  # type: ignore[arg-type]


def make_task(job_id: str, host: str, devices: int = 1, **words: object) -> RunningTask:
    given: dict[str, object] = {
        "priority": 50,
        "devices": devices,
        "cpu_slots": 0,
        "memory_bytes": 0,
        "ran_seconds": 60.0,
        "queue": "gpu",
    }
    return RunningTask(job_id=job_id, host_id=host, **(given | words))  # type: ignore[arg-type]


def make_outlook(**words: object) -> Outlook:
    given: dict[str, object] = {"line": (), "hosts": (), "span": EXACT}
    return Outlook(**(given | words))  # type: ignore[arg-type]


def make_pool(**words: object) -> PoolOutlook:
    given: dict[str, object] = {
        "name": "p",
        "host": make_host("", 1),
        "spawn": Spread((100.0,)),
        "room": 1,
        "cycle_seconds": 10.0,
    }
    return PoolOutlook(**(given | words))  # type: ignore[arg-type]


@st.composite
def outlooks(draw: st.DrawFn) -> Outlook:
    """Small clusters of a few sorts of hosts, with running jobs, a line of jobs of several sizes, labels,
    queues and priorities, and perhaps a quota, a queue's limit and room that is held back."""
    hosts, running, ends = [], [], {}
    for i in range(draw(st.integers(1, 4))):
        busy = draw(st.lists(st.integers(1, 3), max_size=3))
        labels = {"zone": draw(st.sampled_from("ab"))}
        queues = draw(st.sampled_from([frozenset[str](), frozenset({"gpu"}), frozenset({"other"})]))
        hosts.append(make_host(f"h{i}", draw(st.integers(0, 3)), labels=labels, queues=queues))
        for n, devices in enumerate(busy):
            limit = draw(st.sampled_from([None, 600.0, 5000.0]))
            task = make_task(
                f"r{i}-{n}",
                f"h{i}",
                devices,
                time_limit_seconds=limit,
                ends_in_seconds=None if limit is None else limit - 60.0,
                preemptible=draw(st.booleans()),
                stoppable=True,
                priority=draw(st.sampled_from([10, 50])),
            )
            running.append(task)
            ends[task.job_id] = foretell_left(60.0, None, limit, None, None)
    jobs = [
        make_job(
            f"j{n}",
            queue=draw(st.sampled_from(["gpu", "gpu", "other"])),
            priority=draw(st.sampled_from([20, 50, 80])),
            project=draw(st.sampled_from(["x", "y"])),
            tasks=draw(st.sampled_from([1, 1, 2, 3])),
            gpus=draw(st.integers(1, 4)),
            memory_bytes=draw(st.sampled_from([0, 100 << 30])),
            cpu_slots=draw(st.sampled_from([0, 4, 12])),
            host_labels=draw(st.sampled_from([{}, {"zone": "a"}, {"zone": "c"}])),
            waited_seconds=draw(st.sampled_from([0.0, 500.0])),
            time_limit_seconds=draw(st.sampled_from([None, 100.0, 20_000.0])),
        )
        for n in range(draw(st.integers(1, 6)))
    ]
    line = tuple(sorted(jobs, key=lambda job: -job.priority))
    lowest = min((t.priority for t in running if t.preemptible), default=None)
    return make_outlook(
        line=line,
        hosts=tuple(hosts),
        running=tuple(running),
        ends=ends,
        headroom=draw(st.sampled_from([{}, {"gpu": 0}, {"gpu": 2}])),
        quotas=draw(st.sampled_from([{}, {"x": QuotaLeft(gpus=1)}, {"y": QuotaLeft(jobs=0)}])),
        hold_back_seconds=draw(st.sampled_from([None, 60.0])),
        lowest_preemptible=draw(st.sampled_from([None, lowest])),
    )
