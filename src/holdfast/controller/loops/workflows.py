"""The dispatcher: posts of the outbox → ends of nodes, starts of their children, stops.

A post is a row of the outbox: a start or a stop to be carried out, or the end of a node's work,
which its run must learn of. Any leader goes on where the last one stopped: a post's effect on its
run and the post's deletion are one transaction, and work is submitted under ids that are on record
(POST-1, FLOW-2).
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from itertools import groupby

from holdfast.controller.loops.loop import Loop, Summary, prune_history
from holdfast.controller.runtime.context import Controller
from holdfast.controller.workflows import call_nodes, ends
from holdfast.controller.workflows.starts import start_nodes
from holdfast.core.workflows.advance import NodeEnd
from holdfast.core.workflows.records import NodeWork, RunRecord
from holdfast.core.workflows.values import NodeKind, NodeState
from holdfast.errors import NotFound, QuotaExceeded, Stale, Unavailable
from holdfast.moves.workflows import (
    ASK_OVER,
    CALLS_ENDED,
    JOB_ENDED,
    SET_ASIDE_TRIES,
    START,
    STOP,
    STOP_HARD,
    STOP_QUEUED,
    Post,
    Processed,
)
from holdfast.store.postgres.sync.witness import Sought

log = logging.getLogger("holdfast.loops")
MAX_ROUNDS = 1000
QUOTA_SECONDS = 5.0
MAX_DELAY_SECONDS = 60.0
REST_SECONDS = 1.0
PACE_SECONDS = 0.03


class DispatchLoop(Loop):
    """Advances runs, a group of posts of one run in one transaction."""

    name = "dispatch"
    topic = "workflows"
    by_look = True
    interval_seconds = REST_SECONDS

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._looked_at = -PACE_SECONDS

    async def run_once(self) -> Summary:
        done = 0
        # Ends of calls wake the loop far more often than sets end.
        wait = self._looked_at + PACE_SECONDS - self._controller.clock()
        if wait > 0:
            await asyncio.sleep(wait)
        for _ in range(MAX_ROUNDS):
            posts = await self._controller.store.workflows.read_outbox()
            for run_id, group in groupby(posts, key=lambda post: post.run):
                done += await self._dispatch(run_id, list(group))
            if not posts:
                self._looked_at = self._controller.clock()
                break
        if done:
            self._controller.poke("events")
        return {"posts": done} if done else {}

    async def _dispatch(self, run_id: str, posts: Sequence[Post]) -> int:
        """Process posts of one run together; where that fails, each by itself (POST-2)."""
        began = time.perf_counter()
        try:
            run = await self._process(run_id, posts)
        except (Unavailable, Stale):
            raise
        except Exception as error:
            if len(posts) > 1:
                return sum([await self._dispatch(run_id, [post]) for post in posts])
            await self._fail(posts[0], error)
            return 1
        metrics = self._controller.metrics.workflows
        metrics.posts.inc(len(posts))
        metrics.dispatch_seconds.observe(time.perf_counter() - began)
        if run is not None and run.state.terminal:
            metrics.runs.labels(run.state.value).inc()
            log.info("run %s %s: %s", run.id, run.state.value, run.reason, extra={"run": run.id})
        return len(posts)

    async def _process(self, run_id: str, posts: Sequence[Post]) -> RunRecord | None:
        controller = self._controller
        store = controller.store.workflows
        try:
            run = await store.get_run(run_id)
        except NotFound:
            await controller.doubts.confirm(Sought(runs=frozenset({run_id})))
            return await store.record_posts(run_id, [Processed(post=post) for post in posts])
        found = await self._process_ends(run, posts)
        starts = [post for post in posts if post.kind == START]
        if starts:
            found += await start_nodes(controller, run, starts)
        for post in posts:
            if post.kind in (STOP, STOP_HARD, STOP_QUEUED):
                found.append(Processed(post=post, change=await self._stop(run, post)))
        return await store.record_posts(run_id, found)

    async def _process_ends(self, run: RunRecord, posts: Iterable[Post]) -> list[Processed]:
        controller = self._controller
        over = [post for post in posts if post.kind in (JOB_ENDED, CALLS_ENDED, ASK_OVER)]
        if not over:
            return []
        jobs = await controller.store.jobs.get_jobs([p.ref for p in over if p.kind == JOB_ENDED])
        absent = frozenset(p.ref for p in over if p.kind == JOB_ENDED) - jobs.keys()
        await controller.doubts.confirm(Sought(jobs=absent))
        asked = [post.node for post in over if post.kind != JOB_ENDED]
        works = await controller.store.workflows.read_works(run.id, asked) if asked else {}
        found = []
        for post in over:
            if post.kind == JOB_ENDED:
                end = ends.describe_job_end(jobs.get(post.ref))
            else:
                end = await self._describe_end(works.get(post.node), post)
            if end is not None:
                controller.metrics.workflows.nodes.labels(end.state.value).inc()
            found.append(Processed(post=post, change=end))
        return found

    async def _describe_end(self, work: NodeWork | None, post: Post) -> NodeEnd | None:
        if work is None or work.ref != post.ref:
            return None  # the post is of an earlier round
        if post.kind == ASK_OVER:
            return ends.describe_silence(work)
        return await call_nodes.describe_calls_end(self._controller, work)

    async def _stop(self, run: RunRecord, post: Post) -> NodeEnd | None:
        """Stop a node's work. A node without work on record that was about to begin ends here
        (FLOW-5)."""
        works = await self._controller.store.workflows.read_works(run.id, [post.node])
        reason = f"run {run.id} of workflow {run.name}: {run.reason}"
        work = works.get(post.node)
        if work is not None and work.kind in (NodeKind.CALL, NodeKind.MAP):
            live = await call_nodes.stop_calls(self._controller, post, reason)
        else:
            live = await ends.stop_job(self._controller, post, reason)
        if live or work is None or work.state is not NodeState.READY:
            return None
        return NodeEnd(state=NodeState.CANCELLED, reason=run.reason)

    async def _fail(self, post: Post, error: Exception) -> None:
        controller, words = self._controller, f"{type(error).__name__}: {error}"[:2000]
        about = {"run": post.run, "node": post.node}
        store = controller.store.workflows
        if isinstance(error, QuotaExceeded):  # a quota is no fault of the post, and frees up again
            await store.postpone_post(post, error.message, QUOTA_SECONDS, counted=False)
        elif post.tries + 1 < SET_ASIDE_TRIES:
            log.warning("a post of run %s failed; it is tried again: %s", post.run, words,
                        extra=about, exc_info=error)  # fmt: skip
            delay = min(0.5 * 2.0**post.tries, MAX_DELAY_SECONDS)
            await store.postpone_post(post, words, delay)
        else:
            controller.metrics.workflows.set_aside.inc()
            log.error("a post of run %s was set aside, and the run fails: %s", post.run, words,
                      extra=about, exc_info=error)  # fmt: skip
            await store.set_aside(post, words)


class PruneRunsLoop(Loop):
    """Deletes runs that are older than the history that is kept."""

    name = "prune-runs"
    interval_seconds = 3600.0

    async def run_once(self) -> Summary:
        return await prune_history(self._controller, self._controller.store.workflows.prune_runs)
