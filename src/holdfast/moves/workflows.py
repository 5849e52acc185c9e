"""The moves of workflow runs, shared by both stores: from changes to rows, posts and events.

POST-1  The end of a node's work and its *post* (a row of the outbox) are one transaction; what a
          post does to the run and its deletion are another. So each end counts once.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.core.arrays.differences import MOST_NAMED, say_differences
from holdfast.core.workflows import advance
from holdfast.core.workflows.advance import Advance, NodeEnd, NodeRow, RunRow
from holdfast.core.workflows.records import NodeWork, RunRecord
from holdfast.core.workflows.values import NodeKind, NodeSpec, NodeState, RunState, WorkflowSpec
from holdfast.errors import Conflict, NotFound, ValidationError
from holdfast.moves.rows import NewEvent
from holdfast.moves.values import StoreValue

START, JOB_ENDED, CALLS_ENDED, ASK_OVER = "start", "job", "call_set", "ask"
STOP, STOP_HARD, STOP_QUEUED = "stop", "stop_hard", "stop_queued"
"""The kinds of posts: start a node; its job or call set ended; no answer came in time; stop its
work."""
SET_ASIDE_TRIES = 10


class NewRun(StoreValue, frozen=True, kw_only=True):
    """A run to be written. parents: numbers of the parents of each node
    (`core.workflows.check`)."""

    id: str
    spec: WorkflowSpec
    owner: str = ""
    parents: Sequence[Sequence[int]]
    out_dir: str = ""


class Post(StoreValue, frozen=True, kw_only=True):
    """A row of the outbox. n: its number, 0 before it is written. ref: id of the node's work.
    tries: number of failed tries to process it."""

    n: int = 0
    run: str
    node: int
    kind: str
    ref: str = ""
    tries: int = 0
    due_at: datetime | None = None
    error: str | None = None


class Started(StoreValue, frozen=True):
    """The news that a node's work is on record. prompt: the text of a question to a person.
    over_seconds: time that the person has to answer."""

    prompt: str | None = None
    over_seconds: float | None = None


class Broken(StoreValue, frozen=True):
    """The news that a post cannot be processed, so that its run fails."""

    reason: str


class Processed(StoreValue, frozen=True, kw_only=True):
    """A processed post, and the change to its node that follows, if any."""

    post: Post
    change: Started | NodeEnd | Broken | None = None


def hash_run(new: NewRun) -> str:
    """Return the SHA-256 of the workflow, secrets included, with which a repeat is compared."""
    return hashlib.sha256(msgspec.json.encode(new.spec, order="deterministic")).hexdigest()


def list_secrets(new: NewRun) -> dict[int, dict[str, str]]:
    """Return the secrets of each node's job, by the node's number; they are kept apart."""
    jobs = {number: node.job for number, node in enumerate(new.spec.nodes)}
    return {n: dict(job.spec.secrets) for n, job in jobs.items() if job and job.spec.secrets}


def make_rows(new: NewRun) -> tuple[RunRow, list[NodeRow]]:
    """Return the rows of a new run, before it begins."""
    spec = new.spec
    run = RunRow(
        id=new.id,
        name=spec.name,
        project=spec.project,
        state=RunState.RUNNING,
        on_failure=spec.on_failure,
        nodes=len(spec.nodes),
        unended=len(spec.nodes),
    )
    nodes = [
        NodeRow(
            number=number,
            name=node.name,
            kind=node.kind,
            state=NodeState.WAITING,
            waiting_on=len(parents),
        )
        for number, (node, parents) in enumerate(zip(spec.nodes, new.parents, strict=True))
    ]
    return run, nodes


def apply_processed(a: Advance, found: Iterable[Processed]) -> list[Post]:
    """Apply processed posts to the run; return the posts that follow."""
    questions: list[Post] = []
    for item in found:
        number, change, node = item.post.node, item.change, a.nodes.get(item.post.node)
        if node is None or change is None:
            continue
        if isinstance(change, Broken):
            advance.fail_run(a, number, change.reason)
        elif item.post.ref != (node.ref or ""):
            continue  # of an earlier round (FLOW-1)
        elif isinstance(change, NodeEnd):
            advance.end_node(a, number, change)
        else:
            advance.start_node(a, number, change.prompt or "")
            if change.prompt is not None and node.state is NodeState.STARTED:
                a.log("node_asked", f"node {node.name} asks: {change.prompt}", node)
                questions += _plan_end(a, node, change)
    return [*questions, *list_posts(a)]


def apply_late(a: Advance, found: Iterable[Processed]) -> None:
    """Stop work that this leader submitted for start posts which another leader had processed."""
    for item in found:
        node = a.nodes.get(item.post.node)
        if node is not None and item.post.ref == node.ref:
            advance.stop_late(a, node.number)


def find_late(found: Iterable[Processed], taken: Collection[int]) -> list[Processed]:
    """Return the starts that were carried out although their posts had been processed before."""
    return [
        item
        for item in found
        if item.post.n not in taken and item.post.kind == START and isinstance(item.change, Started)
    ]


def _plan_end(a: Advance, node: NodeRow, asked: Started) -> list[Post]:
    if asked.over_seconds is None:
        return []
    due = a.now + timedelta(seconds=asked.over_seconds)
    about = Post(run=a.run.id, node=node.number, kind=ASK_OVER, ref=node.ref or "", due_at=due)
    return [about]


def list_posts(a: Advance) -> list[Post]:
    """Return the posts that follow from the changes."""
    run = a.run.id
    starts = [
        Post(run=run, node=n, kind=START, ref=a.nodes[n].ref or "")
        for n in a.ready
        if a.nodes[n].state is NodeState.READY
    ]
    stops = [
        Post(
            run=run,
            node=stop.number,
            kind=STOP_HARD if stop.hard else STOP_QUEUED if stop.queued_only else STOP,
            ref=stop.ref,
        )
        for stop in a.stops
    ]
    return starts + stops


def list_events(a: Advance) -> list[NewEvent]:
    """Return the events about the changes."""
    return [
        NewEvent(kind=e.kind, project=a.run.project, message=e.message, data=e.data)
        for e in a.events
    ]


def ends_of(found: Iterable[Processed]) -> list[NodeEnd]:
    """Return the ends of nodes among processed posts, for `find_rows`."""
    broken = NodeEnd(state=NodeState.FAILED)
    changes = [item.change for item in found]
    return [
        broken if isinstance(c, Broken) else c for c in changes if isinstance(c, NodeEnd | Broken)
    ]


def say_set_aside(post: Post, error: str) -> str:
    """Return the sentence about a post that was given up."""
    return f"its event {post.kind!r} was set aside after {post.tries + 1} tries: {error}"


def set_aside_event(post: Post, project: str, error: str) -> NewEvent:
    """Return the alarm of a post that was given up."""
    text = f"run {post.run}, node {post.node}: {say_set_aside(post, error)}"
    about = {"run": post.run, "number": post.node, "post": post.kind, "ref": post.ref}
    return NewEvent(kind="workflow.set_aside", project=project, message=text, data=about)


def no_run(run_id: str) -> NotFound:
    """Return the error for an unknown run."""
    return NotFound(f"there is no run {run_id[:64]!r}; `holdfast workflow list` lists them")


def no_node(run_id: str, name: str) -> NotFound:
    """Return the error for an unknown node."""
    return NotFound(
        f"run {run_id} has no node {name[:128]!r}; `holdfast workflow show {run_id}` shows them"
    )


def refuse_repeat(run: RunRecord, nodes: Iterable[NodeSpec], new: NewRun) -> Conflict:
    """Return the error for an id that names another workflow. nodes: the first nodes of the run on
    record."""
    known = {node.name: node for node in nodes}
    differing = (
        (node.name, say_differences(known[node.name], node) if node.name in known else "new")
        for node in new.spec.nodes[: max(1, len(known))]
    )
    found = [f"node {name} ({said})" for name, said in differing if said][:MOST_NAMED]
    if run.name != new.spec.name:
        found.insert(0, "name")
    if run.nodes != len(new.spec.nodes):
        found.insert(0, f"nodes ({len(new.spec.nodes)} in place of {run.nodes})")
    return Conflict(
        f"run {run.id} is there already, and this one differs from it in "
        f"{', '.join(found) or 'secrets'}; use a new id for a new run",
        code="idempotency_mismatch",
    )


def check_answer(run_id: str, node: NodeWork, answer: str) -> None:
    """Raise Conflict or ValidationError unless `answer` may be given to this node now."""
    ask = node.spec.ask
    if node.kind is not NodeKind.ASK or ask is None:
        raise Conflict(f"node {node.name} of run {run_id} asks nothing; it is a {node.kind}")
    if node.state is not NodeState.STARTED:
        when = "was answered or is over" if node.state.terminal else "does not ask yet"
        raise Conflict(f"node {node.name} of run {run_id} is {node.state}: it {when}")
    if ask.choices and answer not in ask.choices:
        raise ValidationError(
            f"node {node.name} takes one of {', '.join(ask.choices)}, not {answer[:80]!r}",
            field="answer",
        )


def answer_node(a: Advance, number: int, answer: str, by: str) -> None:
    """End a question that was answered."""
    result = msgspec.json.encode(answer).decode()
    end = NodeEnd(state=NodeState.SUCCEEDED, result=result, reason=f"answered by {by}: {answer}")
    advance.end_node(a, number, end)
    node = a.nodes[number]
    a.log("node_answered", f"{by} answered node {node.name}: {answer}", node, answer=answer)
