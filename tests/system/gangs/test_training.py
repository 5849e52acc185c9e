"""A training of eight ranks over two hosts, one of which is killed every few seconds, comes to the
right result."""

from __future__ import annotations

import hashlib
import os
import random
import re
import signal
import sys
import time

import pytest

from tests.system.cluster import Cluster
from tests.system.gangs.journal import check_one_at_a_time, find_pid, read_journal
from tests.system.gangs.trainer import CODE, load_example
from tests.waits import wait_until

pytestmark = pytest.mark.slow

RANKS, STEPS, EVERY = 8, 120, 10
KILLS = 4


@pytest.mark.parametrize("keeping", ["files", "checkpoints"])
def test_a_random_rank_is_killed_every_few_seconds(cluster: Cluster, keeping: str) -> None:
    """Each rank keeps files of its own, or the first one leaves its weights by
    `holdfast.checkpoint`."""
    for name in ("left", "right"):
        cluster.add_host(name, cpu_slots=RANKS // 2)
    journal = cluster.folder / "journal"
    state = str(cluster.folder / "state") if keeping == "files" else "-"
    job = cluster.submit(
        sys.executable,
        CODE,
        str(journal),
        state,
        str(STEPS),
        str(EVERY),
        "0.05",
        tasks=RANKS,
        cpus=1,
        env={"OPENBLAS_NUM_THREADS": "1"},
        retry={"max_retries": 1, "retry_delay": 0.0},
    )
    chance = random.Random(20)
    victims: list[int] = []
    for attempt in range(1, KILLS + 1):
        # A different rank each time, so that each stays within its budget of one (GANG-4).
        victim = chance.choice([rank for rank in range(RANKS) if rank not in victims])
        victims.append(victim)
        pid = wait_until(
            lambda r=victim, a=attempt: find_pid(journal, job, r, a), 90, what=f"attempt {attempt}"
        )
        before = len(read_journal(journal, job))
        # Somewhere: before the first step, between two, in a save. The first is left its time for
        # one save.
        wanted = chance.choice([0, 40, 120]) if attempt > 1 else 2 * EVERY * RANKS
        wait_until(
            lambda b=before, w=wanted: len(read_journal(journal, job)) >= b + w,
            60,
            what="steps to be made",
        )
        time.sleep(chance.uniform(0.0, 0.5))
        os.kill(pid, signal.SIGKILL)
    cluster.until(job, "succeeded", seconds=150)

    expected = hashlib.sha256(load_example().train_alone(STEPS, RANKS).tobytes()).hexdigest()
    output = cluster.output(job).decode()
    assert output.count(f"digest {expected}") == RANKS, output
    assert len(check_one_at_a_time(journal, job)) == KILLS + 1
    resumed = {int(text) for text in re.findall(r"goes on from step (\d+)", output)}
    assert len(resumed) == 1, f"the ranks began at different steps: {output}"
    assert resumed.pop() >= EVERY, "nothing was kept"
    attempts = cluster.client.attempts(job)
    assert [a.trigger_rank for a in attempts] == [*victims, None]
    assert [a.cause for a in attempts] == ["nonzero_exit"] * KILLS + [None]
    charged = {rank: c.retries for rank, c in cluster.client.job(job).rank_charges.items()}
    assert charged == {str(rank): 1 for rank in victims}, (
        "only the ranks that were killed are charged"
    )
