"""Runs of workflows, their nodes, and the outbox by which they advance.

The invariants are FLOW-1…5 (`core.workflows.advance`) and POST-1 (`moves.workflows`), and:

POST-2  A post that fails is tried again later and delays no other post. After `SET_ASIDE_TRIES`
        tries it is set aside with an alarm, and its run fails.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from holdfast.core.workflows.records import NodeRecord, NodeWork, RunRecord
from holdfast.moves.workflows import NewRun, Post, Processed
from holdfast.store.port.clock import Now


class WorkflowStore(Protocol):
    """Both stores pass `tests/store/conformance/workflows.py`."""

    async def submit_run(self, new: NewRun, *, now: Now = None) -> RunRecord:
        """Write a run, and posts that start the nodes without parents; secrets of its jobs are
        stored apart. A repeat changes nothing. Raises Conflict where the id names another
        workflow."""

    async def get_run(self, run_id: str) -> RunRecord:
        """Return a run. Raises NotFound."""

    async def list_runs(
        self,
        *,
        states: Collection[str] = (),
        project: str | None = None,
        owner: str | None = None,
        name: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[RunRecord]:
        """Return runs, the newest first."""

    async def count_nodes(self, run_id: str) -> dict[str, int]:
        """Return state → number of nodes."""

    async def list_nodes(
        self, run_id: str, *, states: Collection[str] = (), after: int = -1, limit: int = 1000
    ) -> list[NodeRecord]:
        """Return the nodes behind number `after`, by number."""

    async def find_node(self, run_id: str, name: str) -> NodeRecord:
        """Return a node by its name. Raises NotFound."""

    async def read_works(self, run_id: str, numbers: Collection[int]) -> dict[int, NodeWork]:
        """Return nodes by number, with their specs and results."""

    async def read_secrets(
        self, run_id: str, numbers: Collection[int]
    ) -> dict[int, dict[str, str]]:
        """Return the secrets of nodes' jobs by number; nodes without secrets are missing. Secrets
        are kept as long as their run."""

    async def read_parents(
        self, run_id: str, numbers: Collection[int], names: Collection[str]
    ) -> dict[str, NodeWork]:
        """Return name → node for those of `names` that are parents of one of these nodes."""

    async def cancel_run(
        self, run_id: str, reason: str, *, hard: bool = False, now: Now = None
    ) -> RunRecord:
        """Cancel a run; one that has ended stays as it is. Raises NotFound."""

    async def restart_run(
        self, run_id: str, reason: str, *, origins: Sequence[str] = (), now: Now = None
    ) -> RunRecord:
        """Restart the nodes that did not succeed, and the nodes `origins` with their descendants.

        Raises:
            NotFound: no such run, or node. Conflict: the run goes on, or no node is to be
            restarted.
        """

    async def answer_node(
        self, run_id: str, name: str, answer: str, by: str, *, now: Now = None
    ) -> NodeRecord:
        """End a question to a person.

        Raises:
            NotFound: no such node. Conflict: the node asks nothing now. ValidationError: the answer
            is not one of its choices.
        """

    async def read_outbox(self, *, runs: int = 64, rows: int = 500, now: Now = None) -> list[Post]:
        """Return posts that are due, by run and age: of at most `runs` runs, at most `rows` each, so
        that a large run delays no other."""

    async def record_posts(
        self, run_id: str, found: Sequence[Processed], *, now: Now = None
    ) -> RunRecord | None:
        """Delete processed posts of one run and apply their changes, in one transaction. A post
        that was deleted before changes nothing again (POST-1), except that work which it submitted
        for a cancelled node is stopped. Return None where the run is gone."""

    async def postpone_post(
        self, post: Post, error: str, delay_seconds: float, *, counted: bool = True, now: Now = None
    ) -> None:
        """Make a post due again after the delay. counted: it counts as one of the post's tries."""

    async def set_aside(self, post: Post, error: str, *, now: Now = None) -> RunRecord | None:
        """Remove a post from the outbox for good, with an event, and fail its run."""

    async def prune_runs(self, history_days: float, *, limit: int = 100, now: Now = None) -> int:
        """Delete runs that ended longer ago than that. Returns how many."""
