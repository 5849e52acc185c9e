"""The acts of persons with their consequences: one table, which pages, the command line and the
documents draw.

ACT-1  A face draws an act only where the API would take it: its role is the operation's, and work is
       changed by its owner (OWNER-1). Every act leaves an event with its user (BY-1),
       but for a test of a webhook or target, which keeps nothing.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.wire.operations.cluster import notices as on_notices
from holdfast.wire.operations.cluster import projects as on_projects
from holdfast.wire.operations.cluster import queues as on_queues
from holdfast.wire.operations.cluster import settings as on_settings
from holdfast.wire.operations.cluster import tokens as on_tokens
from holdfast.wire.operations.cluster import webhooks as on_webhooks
from holdfast.wire.operations.fleet import hosts as on_hosts
from holdfast.wire.operations.fleet import pools as on_pools
from holdfast.wire.operations.operation import Operation
from holdfast.wire.operations.work import calls as on_calls
from holdfast.wire.operations.work import jobs as on_jobs
from holdfast.wire.operations.work import schedules as on_schedules
from holdfast.wire.operations.work import sessions as on_sessions
from holdfast.wire.operations.work import workflows as on_workflows


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
    """An act of a person on a thing: an operation, and the sentence that says its consequence.

    query: of the call, with its `?`. least: the least role, where the operation takes a lesser one for
    other things. button: the act in a word. ask: the sentence of its consequence. stops: it ends or
    holds work. reason: it takes a reason. undo: the name of the act that takes it back. shows: the
    field of the answer that is shown, once. quiet: it leaves no event, because it changes nothing.
    """

    operation: Operation
    query: str = ""
    least: str = ""
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
        return self.operation.method

    @property
    def path(self) -> str:
        """Return the path and the query of its call, with names in braces."""
        return self.operation.path + self.query

    @property
    def role(self) -> str:
        """Return the role that a person needs for it."""
        return self.least or self.operation.role.name.lower()


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
        operation=on_jobs.CANCEL_JOB, button="Cancel", stops=True, reason=True,
        ask=_NO_UNDO + "the job is stopped, and starts again only when it is run again.",
    ),
    "job.retry": Act(
        operation=on_jobs.RETRY_JOB, button="Run again",
        ask="The job is queued again with fresh budgets, from its last checkpoint.",
    ),
    "host.drain": Act(
        operation=on_hosts.ACT_ON_HOST, button="Drain", stops=True, reason=True,
        ask="The host gets no new work. What runs there goes on; with a deadline it is stopped then.",
        fields=(_field("deadline_seconds", "Deadline in seconds", kind="number", hint="none"),),
        undo="host.undrain",
    ),
    "host.undrain": Act(
        operation=on_hosts.ACT_ON_HOST, button="Undrain", reason=True,
        ask="The host gets work again.", undo="host.drain",
    ),
    "host.quarantine": Act(
        operation=on_hosts.ACT_ON_HOST, button="Quarantine", stops=True,
        ask="The host gets no work until it is released. What runs there goes on.", reason=True,
        undo="host.release",
    ),
    "host.release": Act(
        operation=on_hosts.ACT_ON_HOST, button="Release", reason=True,
        ask="The host gets work again. Its checks still watch it.", undo="host.quarantine",
    ),
    "queue.pause": Act(
        operation=on_queues.PAUSE_QUEUE, button="Pause", stops=True, reason=True,
        ask="No job of it starts until it is resumed. Jobs that run go on, unless they are stopped too.",
        fields=(_field("hard", "Stop the jobs that run, too", kind="check"),),
        undo="queue.resume",
    ),
    "queue.resume": Act(
        operation=on_queues.RESUME_QUEUE, button="Resume",
        ask="Its jobs start again as room is free.", undo="queue.pause",
    ),
    "queue.set": Act(
        operation=on_queues.PUT_QUEUE, button="Change",
        ask="Jobs that start from now on follow it. An empty field follows the cluster's setting.",
    ),
    "queue.create": Act(
        operation=on_queues.PUT_QUEUE, button="New queue",
        ask="Jobs name it with --queue.", fields=(_field("path.name", "Name", needed=True),),
    ),
    "queue.delete": Act(
        operation=on_queues.DELETE_QUEUE, button="Delete", stops=True,
        ask="The queue and its settings are forgotten. A queue with unfinished jobs is kept.",
    ),
    "project.set": Act(
        operation=on_projects.PUT_PROJECT, button="Change",
        ask="Jobs that start from now on follow it. An empty field has no limit of its own.",
    ),
    "project.create": Act(
        operation=on_projects.PUT_PROJECT, button="New project",
        ask="Jobs name it with --project.", fields=(_field("path.name", "Name", needed=True),),
    ),
    "pool.pause": Act(
        operation=on_pools.PAUSE_POOL, button="Pause", stops=True, reason=True,
        ask="It rents no machine and ends none until it is resumed.", undo="pool.resume",
    ),
    "pool.resume": Act(
        operation=on_pools.RESUME_POOL, button="Resume",
        ask="It rents and ends machines again.", undo="pool.pause",
    ),
    "pool.scale": Act(
        operation=on_pools.SCALE_POOL, button="Scale", fields=_BOUNDS,
        ask="Its next cycle rents or ends machines up to the new bounds.",
    ),
    "pool.delete": Act(
        operation=on_pools.DELETE_POOL, button="Delete", stops=True,
        ask="It shrinks to nothing as its hosts fall idle, and is forgotten then.",
    ),
    "pool.forget": Act(
        operation=on_pools.DELETE_POOL, query="?forget=1", button="Forget", stops=True,
        ask="The pool is forgotten at once, on your word that its machines are gone: those that "
        "are not go on costing money.",
    ),
    "schedule.pause": Act(
        operation=on_schedules.PAUSE_SCHEDULE, button="Pause", stops=True,
        ask="It submits nothing until it is resumed.", reason=True, undo="schedule.resume",
    ),
    "schedule.resume": Act(
        operation=on_schedules.RESUME_SCHEDULE, button="Resume",
        ask="It submits its job again at its next time.", undo="schedule.pause",
    ),
    "schedule.run": Act(
        operation=on_schedules.RUN_SCHEDULE, button="Run now",
        ask="Its job is submitted now, beside its times.",
    ),
    "schedule.delete": Act(
        operation=on_schedules.DELETE_SCHEDULE, button="Delete", stops=True,
        ask="The schedule is forgotten; its jobs stay.",
    ),
    "run.cancel": Act(
        operation=on_workflows.CANCEL_RUN, button="Cancel", stops=True,
        ask="Its nodes that run are stopped, and no other begins. Restart runs them again.",
        reason=True,
    ),
    "run.restart": Act(
        operation=on_workflows.RESTART_RUN, button="Restart", reason=True,
        ask="Nodes that did not succeed run again; results that are there are used again.",
        fields=(_field("origins", "Also from these nodes", kind="list",
                       hint="names with commas; all that follow from them run again"),),
    ),
    "run.answer": Act(
        operation=on_workflows.ANSWER_NODE, button="Answer",
        ask="The answer is final: the workflow goes on with it.",
    ),
    "calls.cancel": Act(
        operation=on_calls.CANCEL_CALLS, button="Cancel", stops=True,
        ask="Calls that wait are cancelled; those that run are stopped. Retry makes them ready again.",
        reason=True,
    ),
    "calls.retry": Act(
        operation=on_calls.RETRY_CALLS, button="Retry",
        ask="Failed and cancelled calls are ready again, with fresh budgets.",
    ),
    "setting.set": Act(
        operation=on_settings.PATCH_CONFIG, button="Change",
        ask="It holds at once for the whole cluster, where no queue, project or job has its own.",
    ),
    "setting.unset": Act(
        operation=on_settings.PATCH_CONFIG, button="Unset",
        ask="The layer below holds again: the server's environment, or the default.",
    ),
    "retries.release": Act(
        operation=on_settings.PATCH_CONFIG, button="Release",
        ask="Retries go again; those that fell due meanwhile go no faster than the rate limit.",
    ),
    "project.release": Act(
        operation=on_projects.PUT_PROJECT, button="Release",
        ask="Retries of the project go again; those that fell due meanwhile go no faster than the "
        "rate limit.",
    ),
    "token.create": Act(
        operation=on_tokens.CREATE_TOKEN, button="New token", fields=_TOKEN, shows="secret",
        ask="Its secret is shown once, here.",
    ),
    "token.revoke": Act(
        operation=on_tokens.REVOKE_TOKEN, button="Revoke", stops=True,
        ask="It opens nothing any more, and its browsers are signed out within 5 s. This cannot be undone.",
    ),
    "sign-in.end": Act(
        operation=on_tokens.END_SIGN_IN, button="End", stops=True,
        ask="The browser is signed out within 5 s.",
    ),
    "hook.create": Act(
        operation=on_webhooks.CREATE_WEBHOOK, button="New webhook", fields=_HOOK, shows="secret",
        ask="It is sent every event from now on that it names. Its secret is shown once, here.",
    ),
    "hook.pause": Act(
        operation=on_webhooks.PAUSE_WEBHOOK, button="Pause", stops=True, reason=True,
        ask="Nothing is sent to it until it is resumed; its events are kept.", undo="hook.resume",
    ),
    "hook.resume": Act(
        operation=on_webhooks.RESUME_WEBHOOK, button="Resume",
        ask="It goes on where it stopped.", undo="hook.pause",
    ),
    "hook.test": Act(
        operation=on_webhooks.TEST_WEBHOOK, button="Test", shows="error", quiet=True,
        ask="One event webhook.test is sent now, once.",
    ),
    "hook.rotate": Act(
        operation=on_webhooks.ROTATE_WEBHOOK, button="New secret", shows="secret",
        ask="The new secret is shown once, here; the old one also signs for a day.",
    ),
    "hook.redeliver-dead": Act(
        operation=on_webhooks.REDELIVER_DEAD, button="Send dead ones again",
        ask="Every delivery that was given up has all its tries again.",
    ),
    "hook.delete": Act(
        operation=on_webhooks.DELETE_WEBHOOK, button="Delete", stops=True,
        ask="The webhook and its deliveries are forgotten.",
    ),
    "delivery.again": Act(
        operation=on_webhooks.REDELIVER,
        button="Send again", ask="The receiver gets the same delivery once more, under its old id.",
    ),
    "target.create": Act(
        operation=on_notices.PUT_TARGET, least="admin", button="New target",
        ask="Jobs name it with --notify, a project with its setting notify.",
        fields=(
            _field("path.name", "Name", needed=True),
            _field("url", "Address", hint="slack://…, as Apprise writes it", needed=True),
        ),
    ),
    "target.set": Act(
        operation=on_notices.PUT_TARGET, least="admin", button="Change", fields=(
            _field("url", "Address", hint="as Apprise writes it; no page shows it again", needed=True),
        ),
        ask="Its messages go to the new address from now on.",
    ),
    "target.test": Act(
        operation=on_notices.TEST_TARGET, least="admin", button="Test", shows="error", quiet=True,
        ask="One message is sent now, once.",
    ),
    "target.delete": Act(
        operation=on_notices.DELETE_TARGET, least="admin", button="Delete", stops=True,
        ask="The target and its messages are forgotten.",
    ),
    "session.end": Act(
        operation=on_sessions.STOP_SESSION, button="End", stops=True,
        ask="The session's program is ended.",
    ),
}  # fmt: skip
