"""A gang that falls on one host and is started anew with its ends (FALL-2)."""

from __future__ import annotations

from holdfast.core.endings.decide import Policy
from holdfast.core.retry import RetryPolicy
from holdfast.core.states import JobState
from holdfast.wire.guardian import TaskEnded
from tests.protocol.transcripts import find
from tests.protocol.world import World, run


def test_a_fall_is_decided_with_its_ends() -> None:
    """Its ranks are one attempt, and the one before is over on its host."""
    retry = RetryPolicy(max_retries=3, retry_delay=0.0)
    policy = Policy(retry=retry, watchdog_cap=1, infra_cap=1, start_failure_limit=3)
    world = World(rates=[1.0], slots=3, gpus=0, policy=policy, seed=0)
    (host,) = world.hosts
    host.boot()
    world.submit(job_id="gang", tasks=3, gpus=0, late=False, priority=50)
    world.wait(8.0)
    for fall in range(1, 4):
        keys = [find(world, "gang", rank)[1] for rank in range(3)]
        for key in keys:  # so close together that one call tells of all
            host.exit(key, TaskEnded(key=key, exit_code=7))
        world.wait(12.0)
        job = run(world.store.jobs.get_job("gang"))
        assert (job.state, job.attempts, job.retries_charged) == (JobState.RUNNING, fall + 1, fall)
    assert world.falls == 2, "the second was left to the three transactions"
