"""The calls of nodes: submitted as one call set, and their ends and results read."""

from typing import Any

from holdfast.controller.runtime.context import Controller
from holdfast.core.workflows.advance import NodeEnd
from holdfast.core.workflows.plan_start import PlannedCalls
from holdfast.core.workflows.records import NodeWork, RunRecord
from holdfast.moves.flow.workflows import Post, Started


async def start_calls(
    controller: Controller, run: RunRecord, work: NodeWork, plan: PlannedCalls, out_dir: str
) -> Started | NodeEnd:
    """Submit a node's calls as one set; after a restart, retry those that did not succeed."""
    raise NotImplementedError


async def describe_calls_end(controller: Controller, work: NodeWork) -> NodeEnd | None:
    """Return how a set's end ends its node; None where calls of it go on."""
    raise NotImplementedError


async def read_map_result(controller: Controller, work: NodeWork) -> list[Any]:
    """Return the results of a map, in the order of its items."""
    raise NotImplementedError


async def stop_calls(controller: Controller, post: Post, reason: str) -> None:
    """Cancel a node's calls: at once those that wait, cooperatively those that run."""
    raise NotImplementedError
