"""A shell in a running task: a terminal in the browser, where the user may come in."""

from __future__ import annotations

import secrets

from holdfast.core.states import TaskState
from holdfast.errors import NotFound
from holdfast.web.page import Page, PageRequest, together


async def show(ask: PageRequest) -> Page:
    """Make the page. Raises NotFound."""
    reader, job_id = ask.reader, ask.params["job"]
    view, tasks, right = await together(
        reader.job(job_id), reader.tasks(job_id), reader.session_right(job_id)
    )
    text = ask.query.get("rank", "0")
    rank = int(text) if text.isdecimal() and len(text) <= 5 else -1
    if not 0 <= rank < view.tasks:
        raise NotFound(
            f"job {view.name} has no rank {text[:16]!r}; its ranks are 0 to {view.tasks - 1}"
        )
    task = next((each for each in tasks if each.rank == rank), None)
    values = {
        "job": view,
        "rank": rank,
        "task": task,
        "right": right,
        "runs": task is not None and task.state == TaskState.RUNNING,
    }
    return Page(
        template="shell.html",
        title=f"Shell in {view.name}",
        values=values,
        follows=(f"job:{view.id}",),
        nonce=secrets.token_urlsafe(16),
    )
