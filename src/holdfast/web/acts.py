"""The acts that pages offer, as values: each is one call of the API, with the sentence of its consequence.

ACT-1  A page draws an act only where the API would take it: its role is the endpoint's, and work is
       changed by its owner (OWNER-1). Every act leaves an event with its user (BY-1),
       but for a test of a webhook or target, which keeps nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec


class ActField(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One field that a person fills in before an act.

    name: its place in the body, with dots between the names of nested objects; `path.x` fills `{x}`
    in the path instead, and `set.x` is a setting. kind: text, number, area, check, list (words with
    commas) or choice.
    """

    name: str
    label: str
    kind: str = "text"
    value: str = ""
    hint: str = ""
    choices: tuple[str, ...] = ()
    needed: bool = False


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """An act as the table has it.

    call: the method and the path of the API, with names in braces. role: the endpoint's. button:
    its word. ask: the sentence of its consequence. stops: it ends or holds work. reason: it takes a
    reason. undo: the name of the act that takes it back. shows: the field of the answer that is
    shown, once. quiet: it leaves no event, because it changes nothing.
    """

    call: str
    role: str
    button: str
    ask: str
    stops: bool = False
    reason: bool = False
    fields: tuple[ActField, ...] = ()
    body: Mapping[str, Any] = {}
    undo: str = ""
    shows: str = ""
    quiet: bool = False

    @property
    def method(self) -> str:
        """Return the method of its call."""
        return self.call.partition(" ")[0]

    @property
    def path(self) -> str:
        """Return the path of its call, as the table of routes has it, but for a query."""
        return self.call.partition(" ")[2]


def _field(name: str, label: str, **more: Any) -> ActField:
    return ActField(name=name, label=label, **more)


_NO_UNDO = "A cancel cannot be undone: "
_BOUNDS = (
    _field("min", "Fewest hosts", kind="number"),
    _field("max", "Most hosts", kind="number"),
    _field("buffer", "Idle hosts kept ready", kind="number"),
)
_HOOK = (
    _field("url", "Address", hint="https://example.org/hook", needed=True),
    _field("name", "Name"),
    _field("events", "Events", kind="list", hint="job.*, host.quarantined; none: all"),
    _field("project", "Project", hint="none: the whole cluster"),
)
_TOKEN = (
    _field("role", "Role", kind="choice", choices=("read", "submit", "admin", "join")),
    _field("name", "Name"),
    _field("user", "User", hint="the owner of what it submits"),
    _field("expires_seconds", "Ends after, in seconds", kind="number", hint="none: never"),
)
ACTS: Mapping[str, Act] = {
    "job.cancel": Act(
        call="POST /v1/jobs/{id}/cancel", role="submit", button="Cancel", stops=True, reason=True,
        ask=_NO_UNDO + "the job is stopped, and starts again only when it is run again.",
    ),
    "job.retry": Act(
        call="POST /v1/jobs/{id}/retry", role="submit", button="Run again",
        ask="The job is queued again with fresh budgets, from its last checkpoint.",
    ),
    "host.drain": Act(
        call="POST /v1/hosts/{host}/{action}", role="admin", button="Drain", stops=True, reason=True,
        ask="The host gets no new work. What runs there goes on; with a deadline it is stopped then.",
        fields=(_field("deadline_seconds", "Deadline in seconds", kind="number", hint="none"),),
        undo="host.undrain",
    ),
    "host.undrain": Act(
        call="POST /v1/hosts/{host}/{action}", role="admin", button="Undrain", reason=True,
        ask="The host gets work again.", undo="host.drain",
    ),
    "host.quarantine": Act(
        call="POST /v1/hosts/{host}/{action}", role="admin", button="Quarantine", stops=True,
        ask="The host gets no work until it is released. What runs there goes on.", reason=True,
        undo="host.release",
    ),
    "host.release": Act(
        call="POST /v1/hosts/{host}/{action}", role="admin", button="Release", reason=True,
        ask="The host gets work again. Its checks still watch it.", undo="host.quarantine",
    ),
    "queue.pause": Act(
        call="POST /v1/queues/{name}/pause", role="admin", button="Pause", stops=True, reason=True,
        ask="No job of it starts until it is resumed. Jobs that run go on, unless they are stopped too.",
        fields=(_field("hard", "Stop the jobs that run, too", kind="check"),),
        undo="queue.resume",
    ),
    "queue.resume": Act(
        call="POST /v1/queues/{name}/resume", role="admin", button="Resume",
        ask="Its jobs start again as room is free.", undo="queue.pause",
    ),
    "queue.set": Act(
        call="PUT /v1/queues/{name}", role="admin", button="Change",
        ask="Jobs that start from now on follow it. An empty field follows the cluster's setting.",
    ),
    "queue.create": Act(
        call="PUT /v1/queues/{name}", role="admin", button="New queue",
        ask="Jobs name it with --queue.", fields=(_field("path.name", "Name", needed=True),),
    ),
    "queue.delete": Act(
        call="DELETE /v1/queues/{name}", role="admin", button="Delete", stops=True,
        ask="The queue and its settings are forgotten. A queue with unfinished jobs is kept.",
    ),
    "project.set": Act(
        call="PUT /v1/projects/{name}", role="admin", button="Change",
        ask="Jobs that start from now on follow it. An empty field has no limit of its own.",
    ),
    "project.create": Act(
        call="PUT /v1/projects/{name}", role="admin", button="New project",
        ask="Jobs name it with --project.", fields=(_field("path.name", "Name", needed=True),),
    ),
    "pool.pause": Act(
        call="POST /v1/pools/{name}/pause", role="admin", button="Pause", stops=True, reason=True,
        ask="It rents no machine and ends none until it is resumed.", undo="pool.resume",
    ),
    "pool.resume": Act(
        call="POST /v1/pools/{name}/resume", role="admin", button="Resume",
        ask="It rents and ends machines again.", undo="pool.pause",
    ),
    "pool.scale": Act(
        call="POST /v1/pools/{name}/scale", role="admin", button="Scale", fields=_BOUNDS,
        ask="Its next cycle rents or ends machines up to the new bounds.",
    ),
    "pool.delete": Act(
        call="DELETE /v1/pools/{name}", role="admin", button="Delete", stops=True,
        ask="It shrinks to nothing as its hosts fall idle, and is forgotten then.",
    ),
    "pool.forget": Act(
        call="DELETE /v1/pools/{name}?forget=1", role="admin", button="Forget", stops=True,
        ask="The pool is forgotten at once, on your word that its machines are gone: those that "
        "are not go on costing money.",
    ),
    "schedule.pause": Act(
        call="POST /v1/schedules/{name}/pause", role="submit", button="Pause", stops=True,
        ask="It submits nothing until it is resumed.", reason=True, undo="schedule.resume",
    ),
    "schedule.resume": Act(
        call="POST /v1/schedules/{name}/resume", role="submit", button="Resume",
        ask="It submits its job again at its next time.", undo="schedule.pause",
    ),
    "schedule.run": Act(
        call="POST /v1/schedules/{name}/run", role="submit", button="Run now",
        ask="Its job is submitted now, beside its times.",
    ),
    "schedule.delete": Act(
        call="DELETE /v1/schedules/{name}", role="submit", button="Delete", stops=True,
        ask="The schedule is forgotten; its jobs stay.",
    ),
    "run.cancel": Act(
        call="POST /v1/workflows/{id}/cancel", role="submit", button="Cancel", stops=True,
        ask="Its nodes that run are stopped, and no other begins. Restart runs them again.",
        reason=True,
    ),
    "run.restart": Act(
        call="POST /v1/workflows/{id}/restart", role="submit", button="Restart", reason=True,
        ask="Nodes that did not succeed run again; results that are there are used again.",
        fields=(_field("origins", "Also from these nodes", kind="list",
                       hint="names with commas; all that follow from them run again"),),
    ),
    "run.answer": Act(
        call="POST /v1/workflows/{id}/nodes/{node}/answer", role="submit", button="Answer",
        ask="The answer is final: the workflow goes on with it.",
    ),
    "calls.cancel": Act(
        call="POST /v1/call-sets/{id}/cancel", role="submit", button="Cancel", stops=True,
        ask="Calls that wait are cancelled; those that run are stopped. Retry makes them ready again.",
        reason=True,
    ),
    "calls.retry": Act(
        call="POST /v1/call-sets/{id}/retry", role="submit", button="Retry",
        ask="Failed and cancelled calls are ready again, with fresh budgets.",
    ),
    "setting.set": Act(
        call="PATCH /v1/config", role="admin", button="Change",
        ask="It holds at once for the whole cluster, where no queue, project or job has its own.",
    ),
    "setting.unset": Act(
        call="PATCH /v1/config", role="admin", button="Unset",
        ask="The layer below holds again: the server's environment, or the default.",
    ),
    "retries.release": Act(
        call="PATCH /v1/config", role="admin", button="Release",
        ask="Retries go again; those that fell due meanwhile go no faster than the rate limit.",
    ),
    "project.release": Act(
        call="PUT /v1/projects/{name}", role="admin", button="Release",
        ask="Retries of the project go again; those that fell due meanwhile go no faster than the "
        "rate limit.",
    ),
    "token.create": Act(
        call="POST /v1/tokens", role="admin", button="New token", fields=_TOKEN, shows="secret",
        ask="Its secret is shown once, here.",
    ),
    "token.revoke": Act(
        call="DELETE /v1/tokens/{id}", role="admin", button="Revoke", stops=True,
        ask="It opens nothing any more, and its browsers are signed out within 5 s. This cannot be undone.",
    ),
    "sign-in.end": Act(
        call="DELETE /v1/sign-ins/{id}", role="read", button="End", stops=True,
        ask="The browser is signed out within 5 s.",
    ),
    "hook.create": Act(
        call="POST /v1/webhooks", role="admin", button="New webhook", fields=_HOOK, shows="secret",
        ask="It is sent every event from now on that it names. Its secret is shown once, here.",
    ),
    "hook.pause": Act(
        call="POST /v1/webhooks/{id}/pause", role="admin", button="Pause", stops=True, reason=True,
        ask="Nothing is sent to it until it is resumed; its events are kept.", undo="hook.resume",
    ),
    "hook.resume": Act(
        call="POST /v1/webhooks/{id}/resume", role="admin", button="Resume",
        ask="It goes on where it stopped.", undo="hook.pause",
    ),
    "hook.test": Act(
        call="POST /v1/webhooks/{id}/test", role="admin", button="Test", shows="error", quiet=True,
        ask="One event webhook.test is sent now, once.",
    ),
    "hook.rotate": Act(
        call="POST /v1/webhooks/{id}/rotate", role="admin", button="New secret", shows="secret",
        ask="The new secret is shown once, here; the old one also signs for a day.",
    ),
    "hook.redeliver-dead": Act(
        call="POST /v1/webhooks/{id}/redeliver-dead", role="admin", button="Send dead ones again",
        ask="Every delivery that was given up has all its tries again.",
    ),
    "hook.delete": Act(
        call="DELETE /v1/webhooks/{id}", role="admin", button="Delete", stops=True,
        ask="The webhook and its deliveries are forgotten.",
    ),
    "delivery.again": Act(
        call="POST /v1/webhooks/{id}/deliveries/{delivery}/redeliver", role="admin",
        button="Send again", ask="The receiver gets the same delivery once more, under its old id.",
    ),
    "target.create": Act(
        call="PUT /v1/notices/{name}", role="admin", button="New target",
        ask="Jobs name it with --notify, a project with its setting notify.",
        fields=(
            _field("path.name", "Name", needed=True),
            _field("url", "Address", hint="slack://…, as Apprise writes it", needed=True),
        ),
    ),
    "target.set": Act(
        call="PUT /v1/notices/{name}", role="admin", button="Change", fields=(
            _field("url", "Address", hint="as Apprise writes it; no page shows it again", needed=True),
        ),
        ask="Its messages go to the new address from now on.",
    ),
    "target.test": Act(
        call="POST /v1/notices/{name}/test", role="admin", button="Test", shows="error", quiet=True,
        ask="One message is sent now, once.",
    ),
    "target.delete": Act(
        call="DELETE /v1/notices/{name}", role="admin", button="Delete", stops=True,
        ask="The target and its messages are forgotten.",
    ),
    "session.end": Act(
        call="DELETE /v1/sessions/{id}", role="submit", button="End", stops=True,
        ask="The session's program is ended.",
    ),
}  # fmt: skip


def write_act(
    name: str,
    what: str,
    *,
    params: Mapping[str, str],
    sentence: str = "",
    fields: Sequence[ActField] | None = None,
    body: Mapping[str, Any] | None = None,
    undo_body: Mapping[str, Any] | None = None,
    query: str = "",
) -> str:
    """Return an act as the JSON that the pages' script carries out. what: the thing, for the title.
    sentence: the consequence, where the thing itself makes it more exact. undo_body: of the call that
    takes the act back, which is its own one where the table names no other; None: none does."""
    act = ACTS[name]
    given = act.fields if fields is None else tuple(fields)
    value: dict[str, Any] = {
        "method": act.method,
        "path": _fill(name, params) + query,
        "title": f"{act.button} {what}".strip(),
        "ask": sentence or act.ask,
    }
    if act.reason:
        value["reason"] = True
    if given:
        value["fields"] = given
    if body or act.body:
        value["body"] = {**act.body, **(body or {})}
    if act.shows:
        value["shows"] = act.shows
    if undo_body is not None:
        undo = act.undo or name
        path = _fill(undo, params) + query
        value["undo"] = {"method": ACTS[undo].method, "path": path, "body": undo_body}
    return msgspec.json.encode(value).decode()


def make_way_back(name: str, was: Any, now: datetime) -> dict[str, Any] | None:
    """Return the body of the call that takes an act back, so that all is as it was; None where no call
    does that. was: the thing before the act, of whose pause, drain or quarantine the reason returns."""
    undo = ACTS.get(ACTS[name].undo)
    if undo is None:
        return None
    if not undo.stops:  # to release a host that drained before its quarantine would give it work
        return None if getattr(was, "state", "") == "draining" else {}
    back = {"reason": getattr(was, "paused_reason", "") or getattr(was, "reason", "")}
    deadline = getattr(was, "drain_deadline", None)
    if deadline is not None:
        back["deadline_seconds"] = max(1.0, (deadline - now).total_seconds())
    return {**back, "hard": True} if getattr(was, "hard", False) else back


def list_takes(names: Iterable[str], was: Any, now: datetime) -> dict[str, Any]:
    """Return which acts on many rows a row takes in its state: the word of each, and the body with
    which it is taken back."""
    return {ACTS[name].button: make_way_back(name, was, now) for name in names}


def write_takes(names: Iterable[str], was: Any, now: datetime) -> str:
    """Return as JSON which acts on many rows a row takes in its state."""
    return msgspec.json.encode(list_takes(names, was, now)).decode()


def write_bulk(name: str, noun: str, key: str, **more: Any) -> str:
    """Return an act on many rows as JSON. key: the name in its path that a row's value fills. more:
    `many`, a path that takes ids; `find`, where all that match may be meant, and `states`, of which a
    row that was found and does not say what it takes has one."""
    act = ACTS[name]
    path = _fill(name, {}).replace("{" + key + "}", "{}")
    value: dict[str, Any] = {
        "verb": act.button,
        "noun": noun,
        "ask": act.ask,
        "reason": act.reason,
        "fields": act.fields,
        "each": f"{act.method} {path}",
        **more,
    }
    if act.undo:
        undo = _fill(act.undo, {}).replace("{" + key + "}", "{}")
        value["undo"] = f"{ACTS[act.undo].method} {undo}"
    return msgspec.json.encode(value).decode()


def _fill(name: str, params: Mapping[str, str]) -> str:
    """Return the path of an act. `action` is the last word of the act's own name."""
    path = ACTS[name].path
    for key, value in {**params, "action": name.rpartition(".")[2]}.items():
        path = path.replace("{" + key + "}", quote(value, safe=""))
    return path
