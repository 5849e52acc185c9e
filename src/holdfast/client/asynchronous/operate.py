"""Queues, projects, retries, hosts, settings, rules and tokens: what an operator changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.client.asynchronous.connection import AsyncRestConnection
from holdfast.client.calls import ResultPage, delete, get, get_pages, make_body, path_of, send
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


class AsyncOperateMethods(AsyncRestConnection):
    """The client's methods about everything that is not a job."""

    # ---- queues
    async def queues(self) -> list[QueueRecord]:
        """Return every queue, with what is in it."""
        return await self._list(get_pages(path_of("queues"), QueueRecord))

    async def queue(self, name: str) -> QueueRecord:
        """Return one queue."""
        return await self.call(get(path_of("queues", name), QueueRecord))

    async def put_queue(
        self, name: str, changes: Mapping[str, Value], unset: Sequence[str] = ()
    ) -> QueueRecord:
        """Create a queue or change its settings."""
        body = SettingsPatch(set=dict(changes), unset=list(unset))
        return await self.call(send("PUT", path_of("queues", name), QueueRecord, body))

    async def delete_queue(self, name: str) -> None:
        """Delete a queue that has no unfinished jobs."""
        await self.call(delete(path_of("queues", name)))

    async def pause_queue(self, name: str, reason: str = "", *, hard: bool = False) -> QueueRecord:
        """Start nothing more from it; `hard` also stops what runs."""
        body = PauseRequest(reason=reason, hard=hard)
        return await self.call(send("POST", path_of("queues", name, "pause"), QueueRecord, body))

    async def resume_queue(self, name: str) -> QueueRecord:
        """Start jobs from it again."""
        return await self.call(send("POST", path_of("queues", name, "resume"), QueueRecord))

    # ---- projects and retries
    async def projects(self) -> list[ProjectRecord]:
        """Return the projects that have settings or unfinished jobs, and their quotas in use."""
        return await self._list(get_pages(path_of("projects"), ProjectRecord))

    async def project(self, name: str) -> ProjectRecord:
        """Return one project; it is empty if nothing has named it yet."""
        return await self.call(get(path_of("projects", name), ProjectRecord))

    async def put_project(
        self, name: str, changes: Mapping[str, Value], unset: Sequence[str] = ()
    ) -> ProjectRecord:
        """Create a project or change its settings: quotas, retry defaults, its kill switch."""
        body = SettingsPatch(set=dict(changes), unset=list(unset))
        return await self.call(send("PUT", path_of("projects", name), ProjectRecord, body))

    async def delete_project(self, name: str) -> None:
        """Forget a project's settings."""
        await self.call(delete(path_of("projects", name)))

    async def retries(self) -> RetriesView:
        """Return the holds on retries, and how many jobs wait for a retry."""
        return await self.call(get(path_of("retries"), RetriesView))

    async def hold_retries(self, project: str | None = None, reason: str = "") -> RetriesView:
        """Hold every retry of the cluster or of a project until `release_retries`; none is lost."""
        await self._put_switch(project, dict(zip(_SWITCH, (False, reason), strict=True)), ())
        return await self.retries()

    async def release_retries(self, project: str | None = None) -> RetriesView:
        """Let retries go again, those that fell due meanwhile no faster than the rate limit."""
        await self._put_switch(project, {}, _SWITCH)
        return await self.retries()

    async def _put_switch(
        self, project: str | None, changes: Mapping[str, Value], unset: Sequence[str]
    ) -> None:
        if project is None:
            await self.set_config(changes, unset)
        else:
            await self.put_project(project, changes, unset)

    # ---- hosts
    async def hosts(
        self, *, dead: bool = False, include_terminated: bool = False
    ) -> list[HostView]:
        """Return hosts and their slots; `dead` selects those flagged dead."""
        shown, every = dead or None, include_terminated or None
        return await self._list(get_pages(path_of("hosts"), HostView, dead=shown, all=every))

    async def host(self, host: str) -> HostView:
        """Return one host, by id or name."""
        return await self.call(get(path_of("hosts", host), HostView))

    async def act_on_host(
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
        return await self.call(send("POST", path_of("hosts", host, action), HostView, body))

    # ---- settings
    async def config(self, queue: str | None = None, project: str | None = None) -> list[Effective]:
        """Return every setting in force for the cluster, a queue or a project, and its source."""
        call = get_pages(path_of("config"), Effective, queue=queue, project=project)
        return await self._list(call)

    async def set_config(
        self, changes: Mapping[str, Value], unset: Sequence[str] = ()
    ) -> list[Effective]:
        """Change the cluster's settings."""
        body = SettingsPatch(set=dict(changes), unset=list(unset))
        call = send("PATCH", path_of("config"), ResultPage[Effective], body)
        return (await self.call(call)).items

    # ---- rules
    async def rules(self) -> RulesView:
        """Return the operators' rules of classification: their text, and how it is read."""
        return await self.call(get(path_of("rules"), RulesView))

    async def set_rules(self, text: str) -> RulesView:
        """Replace all rules by those of `text` (TOML; empty: none). Takes an admin token.

        A bad rule is refused with its line.
        """
        return await self.call(send("PUT", path_of("rules"), RulesView, RulesRequest(text=text)))

    async def try_rules(self, **end: Any) -> RulesFinding:
        """Return the cause that an end would be given.

        `end` has the fields of `wire.api.RulesTrial`: exit_code, signal, log, text, …
        """
        return await self.call(
            send("POST", path_of("rules", "try"), RulesFinding, RulesTrial(**end))
        )

    # ---- tokens
    async def tokens(self) -> list[TokenRecord]:
        """Return every token, without its secret."""
        return await self._list(get_pages(path_of("tokens"), TokenRecord))

    async def create_token(
        self, role: str, name: str = "", expires_seconds: float | None = None
    ) -> TokenCreated:
        """Make a token: `role` is admin, submit, read or join.

        The answer has its secret, this once; a lost answer is not asked for again.
        """
        given = {"role": role, "name": name, "expires_seconds": expires_seconds}
        body = make_body(given, TokenRequest, "a token cannot be made like this")
        return await self.call(
            send("POST", path_of("tokens"), TokenCreated, body, repeatable=False)
        )

    async def revoke_token(self, token_id: str) -> None:
        """End a token."""
        await self.call(delete(path_of("tokens", token_id)))

    async def whoami(self) -> TokenRecord:
        """Return the token that this client uses."""
        return await self.call(get(path_of("whoami"), TokenRecord))
