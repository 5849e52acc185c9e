"""Draw the state machines as a Markdown page: `python -m tests.reference.states`."""

from holdfast.core.sessions.transitions import SESSION
from holdfast.core.transitions import (
    AGENT_TASK,
    ATTEMPT,
    HOST,
    INSTANCE,
    JOB,
    OUTPUTS,
    TASK,
    E,
    S,
    Table,
)
from holdfast.core.webhooks.transitions import DELIVERY, WEBHOOK
from holdfast.core.workflows.transitions import NODE, RUN

_HEAD = """# States

Generated from `core/transitions.py`, and from `transitions.py` in `core/workflows/`, `core/sessions/` and
`core/webhooks/`, by `python -m tests.reference.states`; a test holds the two together.
Each edge is `event`, then the reason why it exists, and what writes it: a statement of
`store/postgres/sql/`, and after a colon the functions that decide on it.
"""


def render_table(title: str, table: Table[S, E]) -> str:
    """Return one machine: a Mermaid diagram and the table of its edges."""
    lines = [f"## {title}", "", "```mermaid", "stateDiagram-v2"]
    lines += [f"    {state} --> {after}: {event}" for (state, event), (after, *_) in table.items()]
    lines += [
        "```",
        "",
        "| state | event | becomes | because | written by |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {state} | {event} | {after} | {why} | {writer} |"
        for (state, event), (after, why, writer) in table.items()
    ]
    return "\n".join([*lines, ""])


def render_states_page() -> str:
    """Return the whole page."""
    tables = [
        render_table("Job", JOB),
        render_table("Task", TASK),
        render_table("Attempt", ATTEMPT),
        render_table("Host", HOST),
        render_table("Rented instance", INSTANCE),
        render_table("Task inside its agent", AGENT_TASK),
        render_table("Outputs of a rank", OUTPUTS),
        render_table("Run of a workflow", RUN),
        render_table("Node of a run", NODE),
        render_table("Session of a person in a task", SESSION),
        render_table("Webhook, or notice target", WEBHOOK),
        render_table("Delivery to a webhook", DELIVERY),
    ]
    return "\n".join([_HEAD, *tables])


if __name__ == "__main__":
    print(render_states_page(), end="")
