"""A gang of `member.py`, its journal, and the file that lets it end."""

from __future__ import annotations

import sys
from typing import Any

from holdfast.core.records import AttemptRecord, JobRecord
from tests.system.cluster import Cluster
from tests.system.gangs.journal import (
    Line,
    check_one_at_a_time,
    find_pid,
    ranks_started,
    read_journal,
)
from tests.system.gangs.member import CODE
from tests.waits import wait_until

SECONDS = 90.0  # for what must happen at all, on the slowest machine


class Gang:
    """One submitted gang."""

    def __init__(self, cluster: Cluster, name: str, tasks: int, *words: str, **fields: Any) -> None:
        self.cluster = cluster
        self.tasks = tasks
        self.journal = cluster.folder / f"{name}.journal"
        self.go = cluster.folder / f"{name}.go"
        argv = [sys.executable, "-S", CODE, str(self.journal), "--until", str(self.go), *words]
        fields = {"retry": {"max_retries": 1, "retry_delay": 0.0}, **fields}
        self.id = cluster.submit(*argv, tasks=tasks, **fields)

    def wait_all(self, attempt: int, seconds: float = SECONDS) -> None:
        """Wait until every rank of that attempt has written."""
        try:
            wait_until(
                lambda: len(ranks_started(self.journal, self.id, attempt)) == self.tasks,
                seconds,
                what=f"all ranks of attempt {attempt}",
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.cluster.tell(self.id)}") from None

    def pid(self, rank: int, attempt: int = 1) -> int:
        """The pid of a rank that has started."""
        return int(wait_until(lambda: find_pid(self.journal, self.id, rank, attempt), SECONDS))

    def lines(self) -> list[Line]:
        return read_journal(self.journal, self.id)

    def until(self, *states: str, seconds: float = SECONDS) -> JobRecord:
        return self.cluster.until(self.id, *states, seconds=seconds)

    def attempts(self) -> list[AttemptRecord]:
        return self.cluster.client.attempts(self.id)

    def finish(self) -> None:
        """Let it end, see it succeed, and that no two attempts ever lived at once."""
        self.go.touch()
        self.until("succeeded")
        self.check()

    def check(self) -> None:
        check_one_at_a_time(self.journal, self.id)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.cluster.client.events(job_id=self.id)]
