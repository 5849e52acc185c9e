# Made from client/asynchronous/operate.py by `python -m holdfast.client.generate`.
"""Queues, projects, retries, hosts, settings, rules and tokens: what an operator changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.client.calls import ResultPage, delete, get, get_pages, make_body, path_of, send
from holdfast.client.synchronous.connection import RestConnection
from holdfast.core.records import ProjectRecord, QueueRecord, TokenRecord
from holdfast.core.settings.resolve import Effective, Value
from holdfast.wire.api import (
    HostActionRequest,
    HostView,
    PauseRequest,
    RetriesView,
    RulesFinding,
    RulesRequest,
    RulesTrial,
    RulesView,
    SettingsPatch,
    TokenCreated,
    TokenRequest,
)

_SWITCH = ("retries_enabled", "retries_hold_reason")


class OperateMethods(RestConnection):
    """The client's methods about everything that is not a job."""

    # ---- queues
    def queues(self) -> list[QueueRecord]:
        """Return every queue, with what is in it."""
        return self._list(get_pages(path_of("queues"), QueueRecord))

    def queue(self, name: str) -> QueueRecord:
        """Return one queue."""
        return self.call(get(path_of("queues", name), QueueRecord))

    def put_queue(
        self, name: str, changes: Mapping[str, Value], unset: Sequence[str] = ()
    ) -> QueueRecord:
        """Create a queue or change its settings."""
        body = SettingsPatch(set=dict(changes), unset=list(unset))
        return self.call(send("PUT", path_of("queues", name), QueueRecord, body))

    def delete_queue(self, name: str) -> None:
        """Delete a queue that has no unfinished jobs."""
        self.call(delete(path_of("queues", name)))

    def pause_queue(self, name: str, reason: str = "", *, hard: bool = False) -> QueueRecord:
        """Start nothing more from it; `hard` also stops what runs."""
        body = PauseRequest(reason=reason, hard=hard)
        return self.call(send("POST", path_of("queues", name, "pause"), QueueRecord, body))

    def resume_queue(self, name: str) -> QueueRecord:
        """Start jobs from it again."""
        return self.call(send("POST", path_of("queues", name, "resume"), QueueRecord))

    # ---- projects and retries
    def projects(self) -> list[ProjectRecord]:
        """Return the projects that have settings or unfinished jobs, and their quotas in use."""
        return self._list(get_pages(path_of("projects"), ProjectRecord))

    def project(self, name: str) -> ProjectRecord:
        """Return one project; it is empty if nothing has named it yet."""
        return self.call(get(path_of("projects", name), ProjectRecord))

    def put_project(
        self, name: str, changes: Mapping[str, Value], unset: Sequence[str] = ()
    ) -> ProjectRecord:
        """Create a project or change its settings: quotas, retry defaults, its kill switch."""
        body = SettingsPatch(set=dict(changes), unset=list(unset))
        return self.call(send("PUT", path_of("projects", name), ProjectRecord, body))

    def delete_project(self, name: str) -> None:
        """Forget a project's settings."""
        self.call(delete(path_of("projects", name)))

    def retries(self) -> RetriesView:
        """Return the holds on retries, and how many jobs wait for a retry."""
        return self.call(get(path_of("retries"), RetriesView))

    def hold_retries(self, project: str | None = None, reason: str = "") -> RetriesView:
        """Hold every retry of the cluster or of a project until `release_retries`; none is lost."""
        self._put_switch(project, dict(zip(_SWITCH, (False, reason), strict=True)), ())
        return self.retries()

    def release_retries(self, project: str | None = None) -> RetriesView:
        """Let retries go again, those that fell due meanwhile no faster than the rate limit."""
        self._put_switch(project, {}, _SWITCH)
        return self.retries()

    def _put_switch(
        self, project: str | None, changes: Mapping[str, Value], unset: Sequence[str]
    ) -> None:
        if project is None:
            self.set_config(changes, unset)
        else:
            self.put_project(project, changes, unset)

    # ---- hosts
    def hosts(self, *, dead: bool = False, include_terminated: bool = False) -> list[HostView]:
        """Return hosts and their slots; `dead` selects those flagged dead."""
        shown, every = dead or None, include_terminated or None
        return self._list(get_pages(path_of("hosts"), HostView, dead=shown, all=every))

    def host(self, host: str) -> HostView:
        """Return one host, by id or name."""
        return self.call(get(path_of("hosts", host), HostView))

    def act_on_host(
        self,
        host: str,
        action: str,
        reason: str = "",
        *,
        hard: bool = False,
        deadline_seconds: float | None = None,
        scale_down: bool = False,
    ) -> HostView:
        """Do one `action` to a host: drain, undrain, quarantine, release or terminate.

        Args:
            hard: stop what runs there, now.
            deadline_seconds: of a drain: let it run for so long.
            scale_down: of a drain: the host is not needed any more; what runs there is stopped with
                its grace, now or at the deadline.
        """
        body = HostActionRequest(
            reason=reason, hard=hard, deadline_seconds=deadline_seconds, scale_down=scale_down
        )
        return self.call(send("POST", path_of("hosts", host, action), HostView, body))

    # ---- settings
    def config(self, queue: str | None = None, project: str | None = None) -> list[Effective]:
        """Return every setting in force for the cluster, a queue or a project, and its source."""
        call = get_pages(path_of("config"), Effective, queue=queue, project=project)
        return self._list(call)

    def set_config(
        self, changes: Mapping[str, Value], unset: Sequence[str] = ()
    ) -> list[Effective]:
        """Change the cluster's settings."""
        body = SettingsPatch(set=dict(changes), unset=list(unset))
        call = send("PATCH", path_of("config"), ResultPage[Effective], body)
        return (self.call(call)).items

    # ---- rules
    def rules(self) -> RulesView:
        """Return the operators' rules of classification: their text, and how it is read."""
        return self.call(get(path_of("rules"), RulesView))

    def set_rules(self, text: str) -> RulesView:
        """Replace all rules by those of `text` (TOML; empty: none). Takes an admin token.

        A bad rule is refused with its line.
        """
        return self.call(send("PUT", path_of("rules"), RulesView, RulesRequest(text=text)))

    def try_rules(self, **end: Any) -> RulesFinding:
        """Return the cause that an end would be given.

        `end` has the fields of `wire.api.RulesTrial`: exit_code, signal, log, text, …
        """
        return self.call(send("POST", path_of("rules", "try"), RulesFinding, RulesTrial(**end)))

    # ---- tokens
    def tokens(self) -> list[TokenRecord]:
        """Return every token, without its secret."""
        return self._list(get_pages(path_of("tokens"), TokenRecord))

    def create_token(
        self, role: str, name: str = "", expires_seconds: float | None = None
    ) -> TokenCreated:
        """Make a token: `role` is admin, submit, read or join.

        The answer has its secret, this once; a lost answer is not asked for again.
        """
        given = {"role": role, "name": name, "expires_seconds": expires_seconds}
        body = make_body(given, TokenRequest, "a token cannot be made like this")
        return self.call(send("POST", path_of("tokens"), TokenCreated, body, repeatable=False))

    def revoke_token(self, token_id: str) -> None:
        """End a token."""
        self.call(delete(path_of("tokens", token_id)))

    def whoami(self) -> TokenRecord:
        """Return the token that this client uses."""
        return self.call(get(path_of("whoami"), TokenRecord))
