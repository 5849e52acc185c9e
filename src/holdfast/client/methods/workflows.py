"""Workflows: run them, look at their nodes, wait, cancel, restart, answer."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.client.jobs.waiting import wait_for_ends
from holdfast.client.late import LateModule
from holdfast.client.rest import PageCall, RestCall, ask
from holdfast.client.scripts import Script, gives_each, gives_list, gives_one, runs
from holdfast.core.ids import ENTROPY_BITS, make_id

if TYPE_CHECKING:
    from holdfast.core.workflows import check, records
    from holdfast.core.workflows.values import WorkflowSpec
    from holdfast.wire import workflows as wire
    from holdfast.wire.operations.work import workflows as on_workflows
else:
    on_workflows = LateModule("holdfast.wire.operations.work.workflows")
    check = LateModule("holdfast.core.workflows.check")
    records = LateModule("holdfast.core.workflows.records")
    wire = LateModule("holdfast.wire.workflows")


def make_run_id() -> str:
    """Return a new id of a run."""
    entropy = int.from_bytes(os.urandom((ENTROPY_BITS + 7) // 8), "big")
    return make_id(int(time.time() * 1000), entropy)


class WorkflowMethods:
    """The client's methods about workflows."""

    @gives_one
    def submit_workflow(
        self, spec: WorkflowSpec, run_id: str | None = None
    ) -> RestCall[wire.RunView]:
        """Run a workflow. `run_id` (20 characters, `core.ids`) makes a repeat find the first run."""
        check.check_workflow(spec)
        body = wire.NewWorkflow(id=run_id or make_run_id(), spec=spec)
        return ask(on_workflows.SUBMIT_WORKFLOW, body=body)

    @gives_one
    def workflow(self, run_id: str) -> RestCall[wire.RunView]:
        """Return one run, and how many of its nodes are in each state."""
        return ask(on_workflows.GET_RUN, run_id)

    @gives_each
    def workflows(
        self,
        *,
        states: Sequence[str] = (),
        project: str | None = None,
        owner: str | None = None,
        name: str | None = None,
        page_size: int | None = None,
    ) -> PageCall[records.RunRecord]:
        """Yield runs, newest first."""
        return ask(
            on_workflows.LIST_RUNS,
            state=list(states),
            project=project,
            owner=owner,
            name=name,
            limit=page_size,
        )

    @gives_list
    def workflow_nodes(
        self, run_id: str, states: Sequence[str] = ()
    ) -> PageCall[records.NodeRecord]:
        """Return the nodes of a run, in the workflow's order."""

        return ask(on_workflows.LIST_NODES, run_id, state=list(states), limit=10_000)

    @gives_one
    def workflow_node(self, run_id: str, node: str) -> RestCall[wire.NodeView]:
        """Return one node with its work and its result."""
        return ask(on_workflows.GET_NODE, run_id, node)

    @gives_one
    def why_node(self, run_id: str, node: str) -> RestCall[wire.NodeWhy]:
        """Return the reasons for a node's present state, and what to do about each."""
        return ask(on_workflows.GET_NODE_WHY, run_id, node)

    @gives_one
    def answer_node(self, run_id: str, node: str, answer: str) -> RestCall[records.NodeRecord]:
        """Answer a node's question. A lost answer is not sent again, because the second would be
        refused."""

        return ask(on_workflows.ANSWER_NODE, run_id, node, body=wire.AnswerRequest(answer=answer))

    @gives_one
    def cancel_workflow(
        self, run_id: str, reason: str = "", *, hard: bool = False
    ) -> RestCall[wire.RunView]:
        """Cancel a run: waiting work at once, running work cooperatively."""
        body = wire.CancelRun(reason=reason, hard=hard)
        return ask(on_workflows.CANCEL_RUN, run_id, body=body)

    @gives_one
    def restart_workflow(
        self, run_id: str, reason: str = "", *, origins: Sequence[str] = ()
    ) -> RestCall[wire.RunView]:
        """Run the nodes again that did not succeed, and the nodes that follow from those named in
        `origins`."""
        body = wire.RestartRun(reason=reason, origins=tuple(origins))

        return ask(on_workflows.RESTART_RUN, run_id, body=body)

    @runs
    def wait_workflow(
        self, run_id: str, timeout_seconds: float | None = None
    ) -> Script[wire.RunView]:
        """Wait until the run has ended, and return it. Raises TimeoutError after
        `timeout_seconds`."""
        call: RestCall[wire.RunView] = ask(on_workflows.GET_RUN, run_id)
        (run,) = yield from wait_for_ends([call], timeout_seconds)
        return run
