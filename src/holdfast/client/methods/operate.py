"""Queues, projects, retries, hosts, settings, rules and tokens: what an operator changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.client.late import (
    on_hosts,
    on_projects,
    on_queues,
    on_reports,
    on_sessions,
    on_settings,
    on_tokens,
    wire,
)
from holdfast.client.rest import PageCall, RestCall, ask, make_body
from holdfast.client.scripts import Script, gives_list, gives_one, runs, take_answer
from holdfast.core.ledger.values import LedgerView
from holdfast.core.readings.records import HostTelemetryView
from holdfast.core.records import HostCheckRecord, ProjectRecord, QueueRecord, TokenRecord
from holdfast.core.report.depths import QueueDepth
from holdfast.core.settings.resolve import Effective, Value
from holdfast.wire.sessions.messages import SessionRecord, SessionRight

_SWITCH = ("retries_enabled", "retries_hold_reason")


class OperateMethods:
    """The client's methods about everything that is not a job."""

    # ---- queues
    @gives_list
    def queues(self, *, waiting: bool = True) -> PageCall[QueueRecord]:
        """Return every queue, with the counts of its jobs. waiting: False to count running jobs alone,
        because to count a million that wait takes seconds."""
        return ask(on_queues.LIST_QUEUES, waiting=None if waiting else 0)

    @gives_list
    def queue_depths(self, *, seconds: int = 86_400, step: int = 1800) -> PageCall[QueueDepth]:
        """Return how many jobs were queued in each queue in the last `seconds`, and how old the oldest
        was, the most of each `step` seconds; none for a stretch in which none was queued."""
        return ask(on_queues.LIST_DEPTHS, seconds=seconds, step=step)

    @gives_one
    def queue(self, name: str) -> RestCall[QueueRecord]:
        """Return one queue."""
        return ask(on_queues.GET_QUEUE, name)

    @gives_one
    def put_queue(
        self, name: str, changes: Mapping[str, Value], unset: Sequence[str] = ()
    ) -> RestCall[QueueRecord]:
        """Create a queue or change its settings."""
        body = wire.SettingsPatch(set=dict(changes), unset=list(unset))
        return ask(on_queues.PUT_QUEUE, name, body=body)

    @gives_one
    def delete_queue(self, name: str) -> RestCall[None]:
        """Delete a queue that has no unfinished jobs."""
        return ask(on_queues.DELETE_QUEUE, name)

    @gives_one
    def pause_queue(
        self, name: str, reason: str = "", *, hard: bool = False
    ) -> RestCall[QueueRecord]:
        """Start no more jobs from the queue; `hard` also stops those that run."""
        body = wire.PauseRequest(reason=reason, hard=hard)
        return ask(on_queues.PAUSE_QUEUE, name, body=body)

    @gives_one
    def resume_queue(self, name: str) -> RestCall[QueueRecord]:
        """Let jobs of the queue start again."""
        return ask(on_queues.RESUME_QUEUE, name)

    # ---- projects and retries
    @gives_list
    def projects(self, *, waiting: bool = True) -> PageCall[ProjectRecord]:
        """Return the projects that have settings or unfinished jobs, and their quotas in use. waiting:
        False to leave out how many jobs are unfinished, because to count a million takes seconds."""
        return ask(on_projects.LIST_PROJECTS, waiting=None if waiting else 0)

    @gives_one
    def project(self, name: str) -> RestCall[ProjectRecord]:
        """Return one project; an empty one if no job or setting has named it yet."""
        return ask(on_projects.GET_PROJECT, name)

    @gives_one
    def put_project(
        self, name: str, changes: Mapping[str, Value], unset: Sequence[str] = ()
    ) -> RestCall[ProjectRecord]:
        """Create a project or change its settings: quotas, retry defaults, its kill switch."""
        body = wire.SettingsPatch(set=dict(changes), unset=list(unset))
        return ask(on_projects.PUT_PROJECT, name, body=body)

    @gives_one
    def delete_project(self, name: str) -> RestCall[None]:
        """Forget a project's settings."""
        return ask(on_projects.DELETE_PROJECT, name)

    @gives_one
    def retries(self) -> RestCall[wire.RetriesView]:
        """Return the holds on retries, and how many jobs wait for a retry."""
        return ask(on_projects.GET_RETRIES)

    @runs
    def hold_retries(
        self, project: str | None = None, reason: str = ""
    ) -> Script[wire.RetriesView]:
        """Hold every retry of the cluster or of a project until `release_retries`; none is lost."""
        return _switch_retries(project, dict(zip(_SWITCH, (False, reason), strict=True)), ())

    @runs
    def release_retries(self, project: str | None = None) -> Script[wire.RetriesView]:
        """Let retries go again. Those that fell due meanwhile go no faster than the rate limit."""
        return _switch_retries(project, {}, _SWITCH)

    # ---- hosts
    @gives_list
    def hosts(
        self,
        *,
        dead: bool = False,
        include_terminated: bool = False,
        trouble: bool = False,
        gpus: bool = False,
        match: str | None = None,
        limit: int | None = None,
    ) -> PageCall[wire.HostView]:
        """Return hosts and their slots. dead: True for only those flagged dead. trouble: True for only
        those that do not simply serve. gpus: True for only those with GPUs. match: a part of the name
        in any case, or the beginning of the id. limit: the most hosts to return."""
        return ask(
            on_hosts.LIST_HOSTS,
            dead=dead or None,
            all=include_terminated or None,
            trouble=trouble or None,
            gpus=gpus or None,
            match=match,
            limit=limit,
        )

    @gives_one
    def host(self, host: str) -> RestCall[wire.HostView]:
        """Return one host, by id or name."""
        return ask(on_hosts.GET_HOST, host)

    @gives_one
    def host_telemetry(
        self, host: str, *, step: str = "minute", seconds: int = 3600
    ) -> RestCall[HostTelemetryView]:
        """Return the GPUs of a host: the newest reading, and minutes (of a day) or hours (of 90
        days)."""

        return ask(on_hosts.GET_TELEMETRY, host, step=step, seconds=seconds)

    @gives_one
    def ledger(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        by: Sequence[str] = (),
        where: Mapping[str, str] | None = None,
        unit: str = "gpu",
        step: str = "hour",
    ) -> RestCall[LedgerView]:
        """Return what GPUs or CPU slots were spent on, in milliseconds × devices by name.

        by: of job, owner, project, queue, pool, host, time and label:KEY. where: field → the value
        that it must have. since: by default a day before `until`, which is now.
        """
        times: dict[str, Any] = {
            name: None if at is None else int(at.timestamp())
            for name, at in (("since", since), ("until", until))
        }
        wanted = [f"{field}={value}" for field, value in (where or {}).items()]

        return ask(on_reports.GET_LEDGER, by=list(by), where=wanted, unit=unit, step=step, **times)

    @gives_list
    def host_checks(self, host: str) -> PageCall[HostCheckRecord]:
        """Return the last health checks of a host, newest first."""
        return ask(on_hosts.LIST_CHECKS, host)

    @gives_one
    def act_on_host(
        self,
        host: str,
        action: str,
        reason: str = "",
        *,
        hard: bool = False,
        deadline_seconds: float | None = None,
        scale_down: bool = False,
    ) -> RestCall[wire.HostView]:
        """Do one `action` to a host: drain, undrain, quarantine, release, terminate or revoke (its
        key).

        Args:
            hard: True to stop the tasks that run there, now.
            deadline_seconds: for a drain, how long tasks may go on before they are stopped.
            scale_down: for a drain, True where the host is not needed any more; its tasks are
                stopped with their grace, now or at the deadline.
        """
        body = wire.HostActionRequest(
            reason=reason, hard=hard, deadline_seconds=deadline_seconds, scale_down=scale_down
        )
        return ask(on_hosts.ACT_ON_HOST, host, action, body=body)

    # ---- settings
    @gives_list
    def config(self, queue: str | None = None, project: str | None = None) -> PageCall[Effective]:
        """Return every setting in force for the cluster, a queue or a project, and its source."""
        return ask(on_settings.GET_CONFIG, queue=queue, project=project)

    @gives_list
    def set_config(
        self, changes: Mapping[str, Value], unset: Sequence[str] = ()
    ) -> PageCall[Effective]:
        """Change the cluster's settings."""
        body = wire.SettingsPatch(set=dict(changes), unset=list(unset))
        return ask(on_settings.PATCH_CONFIG, body=body)

    # ---- rules
    @gives_one
    def rules(self) -> RestCall[wire.RulesView]:
        """Return the operators' rules of classification: their text, and the rules parsed from
        it."""
        return ask(on_settings.GET_RULES)

    @gives_one
    def set_rules(self, text: str) -> RestCall[wire.RulesView]:
        """Replace all rules by those of `text` (TOML; an empty text removes all). Needs an admin
        token.

        A bad rule is refused with its line.
        """
        return ask(on_settings.PUT_RULES, body=wire.RulesRequest(text=text))

    @gives_one
    def try_rules(self, /, **end: Any) -> RestCall[wire.RulesFinding]:
        """Return the cause that an end would be classified as.

        end: the fields of `wire.api.RulesTrial`: exit_code, signal, log, text, …
        """
        return ask(on_settings.TRY_RULES, body=wire.RulesTrial(**end))

    # ---- sessions
    @gives_list
    def sessions(
        self, job_id: str | None = None, *, also_over: bool = False
    ) -> PageCall[SessionRecord]:
        """Return the sessions of a job's tasks, or of all; those that ended, too, where `also_over`
        is set."""
        also = "yes" if also_over else None
        if job_id is None:
            return ask(on_sessions.LIST_SESSIONS, all=also)
        return ask(on_sessions.LIST_SESSIONS_OF_JOB, job_id, all=also)

    @gives_one
    def session_right(self, job_id: str) -> RestCall[SessionRight]:
        """Return whether this token may come into a job's tasks, and why not."""
        return ask(on_sessions.SHOW_RIGHT, job_id)

    @gives_one
    def end_session(self, session_id: str) -> RestCall[None]:
        """End a session."""
        return ask(on_sessions.STOP_SESSION, session_id)

    # ---- tokens
    @gives_list
    def tokens(self) -> PageCall[TokenRecord]:
        """Return every token, without its secret."""
        return ask(on_tokens.LIST_TOKENS)

    @gives_one
    def create_token(
        self,
        role: str,
        name: str = "",
        expires_seconds: float | None = None,
        user: str = "",
        reach: Sequence[str] = (),
    ) -> RestCall[wire.TokenCreated]:
        """Make a token. role: admin, submit, read or join. user: the owner of work submitted with
        the token, by default the token's name. reach: the projects into whose jobs of other users
        it may come.

        The answer alone has its secret; the call is not repeated after a lost answer.
        """
        given: dict[str, Any] = {"role": role, "name": name, "user": user, "reach": list(reach)}
        given |= {"expires_seconds": expires_seconds}
        body = make_body(given, wire.TokenRequest, "a token cannot be made like this")
        return ask(on_tokens.CREATE_TOKEN, body=body)

    @gives_one
    def revoke_token(self, token_id: str) -> RestCall[None]:
        """Revoke a token."""
        return ask(on_tokens.REVOKE_TOKEN, token_id)

    @gives_one
    def create_sign_in_link(self) -> RestCall[wire.SignInLink]:
        """Return a link that signs one browser in to the dashboard, once, within ten minutes. The
        browser then acts as this client's token."""

        return ask(on_tokens.CREATE_LINK)

    @gives_list
    def sign_ins(self) -> PageCall[wire.SignInView]:
        """Return the browsers that are signed in: one's own, and for an admin all."""
        return ask(on_tokens.LIST_SIGN_INS)

    @gives_one
    def end_sign_in(self, sign_in_id: str) -> RestCall[None]:
        """End a browser's sign-in."""
        return ask(on_tokens.END_SIGN_IN, sign_in_id)

    @gives_one
    def whoami(self) -> RestCall[TokenRecord]:
        """Return the token that this client uses."""
        return ask(on_tokens.WHO_AM_I)

    @gives_one
    def server(self) -> RestCall[wire.ServerView]:
        """Return the version and the clock of the controller."""
        return ask(on_tokens.GET_SERVER)


def _switch_retries(
    project: str | None, changes: Mapping[str, Value], unset: Sequence[str]
) -> Script[wire.RetriesView]:
    patch = wire.SettingsPatch(set=dict(changes), unset=list(unset))
    if project is None:
        yield ask(on_settings.PATCH_CONFIG, body=patch)
    else:
        yield ask(on_projects.PUT_PROJECT, project, body=patch)
    held: wire.RetriesView = yield from take_answer(ask(on_projects.GET_RETRIES))
    return held
