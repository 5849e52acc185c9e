"""Settings as they stand: the database's layers over the environment's, read again at most once a
second."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping

from holdfast.core.endings.decide import Policy
from holdfast.core.endings.rules import OperatorRule, parse_rules
from holdfast.core.retry import make_policy
from holdfast.core.settings.resolve import Effective, Value, job_layer, resolve, resolve_all
from holdfast.core.settings.watch import WatchSettings, watch_settings
from holdfast.core.spec import JobSpec
from holdfast.errors import Unavailable, ValidationError
from holdfast.moves.values import SettingsLayers
from holdfast.store.port.store import Store

log = logging.getLogger("holdfast.controller")

FRESH_SECONDS = 1.0
_MAX_CACHED_WATCHES = 4096


_parse_rules = functools.lru_cache(maxsize=2)(
    parse_rules
)  # the text seldom changes when something else does


class Settings:
    """One revision of every layer. Immutable but for its memory of what it has worked out."""

    def __init__(self, layers: SettingsLayers, environment: Mapping[str, Value]) -> None:
        self.rev = layers.revision
        self.queues = layers.queues
        self.projects = layers.projects
        self.rules_text = layers.rules
        self.rules: tuple[OperatorRule, ...] = ()
        self.rules_problem = ""
        try:
            self.rules = _parse_rules(layers.rules)
        except ValidationError as error:
            # Checked when they were written, but perhaps by an older version. Jobs must end
            # nevertheless.
            self.rules_problem = error.message
        self._below = [("cluster", layers.cluster), ("environment", environment)]
        self._watches: dict[tuple[str, bool, frozenset[tuple[str, Value]]], WatchSettings] = {}

    def effective(
        self, queue: str | None = None, spec: JobSpec | None = None, project: str | None = None
    ) -> dict[str, Effective]:
        """Every setting in force: for the cluster, a queue, a project, or a job of a queue."""
        found = resolve_all(self._layers(queue, spec, project))
        off = next(
            (source for source, layer in self._below if layer.get("retries_enabled") is False), None
        )
        if (
            off is not None
        ):  # no layer above can outvote the kill switch, and the page must not say so
            found["retries_enabled"] = Effective("retries_enabled", False, off)
        return found

    def value(self, name: str, queue: str | None = None, spec: JobSpec | None = None) -> Value:
        """One setting's value in force."""
        return resolve(name, self._layers(queue, spec)).value

    def number(self, name: str, queue: str | None = None, spec: JobSpec | None = None) -> float:
        """One number in force. Only for settings that cannot be off."""
        value = self.value(name, queue, spec)
        assert isinstance(value, (int, float))
        return float(value)

    def watch(self, queue: str, spec: JobSpec) -> WatchSettings:
        """What a task of this job is watched by."""
        key = (queue, spec.supervised, frozenset(job_layer(spec).items()))
        found = self._watches.get(key)
        if found is None:
            if len(self._watches) >= _MAX_CACHED_WATCHES:
                self._watches.clear()
            found = self._watches[key] = watch_settings(
                self.effective(queue, spec), supervised=spec.supervised
            )
        return found

    def policy(self, queue: str, spec: JobSpec) -> Policy:
        """What a job's end is decided by."""
        values = {name: found.value for name, found in self.effective(queue, spec).items()}
        limit, reset = values["no_progress_limit"], values["budget_reset_seconds"]
        return Policy(
            retry=make_policy(values),
            watchdog_cap=int(values["watchdog_cap"] or 0),
            infra_cap=int(values["infra_cap"] or 0),
            on_trip="fail" if values["on_trip"] == "fail" else "requeue",
            no_progress_limit=None if limit is None else int(limit),
            budget_reset_seconds=None if reset is None else float(reset),
            start_failure_limit=int(values["start_failure_limit"] or 1),
            held=self.retries_held(spec.project),
        )

    def retries_held(self, project: str) -> str | None:
        """Whose kill switch holds the project's retries back, or None. Off anywhere is off: here no
        layer outvotes another."""
        for source, layer in self._below:
            if layer.get("retries_enabled") is False:
                return f"the {source}"
        return (
            f"project {project}"
            if self.projects.get(project, {}).get("retries_enabled") is False
            else None
        )

    def find_holders(self) -> list[tuple[str, str | None, str]]:
        """Every kill switch that is thrown: (layer, project, the reason given)."""
        found: list[tuple[str, str | None, str]] = [
            (source, None, str(layer.get("retries_hold_reason") or ""))
            for source, layer in self._below
            if layer.get("retries_enabled") is False
        ]
        for name, layer in sorted(self.projects.items()):
            if layer.get("retries_enabled") is False:
                found.append(("project", name, str(layer.get("retries_hold_reason") or "")))
        return found

    def _layers(
        self, queue: str | None, spec: JobSpec | None, project: str | None = None
    ) -> list[tuple[str, Mapping[str, Value]]]:
        layers: list[tuple[str, Mapping[str, Value]]] = []
        if spec is not None:
            layers.append(("job", job_layer(spec)))
            project = spec.project
        if project is not None:
            layers.append(("project", self.projects.get(project, {})))
        if queue is not None:
            layers.append(("queue", self.queues.get(queue, {})))
        return layers + self._below


class SettingsCache:
    """The settings of now. A read that fails leaves the last known ones in force."""

    def __init__(
        self,
        store: Store,
        environment: Mapping[str, Value],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._environment = environment
        self._clock = clock
        self._known: Settings | None = None
        self._read_at = 0.0
        self._lock = asyncio.Lock()

    async def current(self) -> Settings:
        """Return the settings, at most `FRESH_SECONDS` old while the store answers. Raises
        Unavailable when none were ever read."""
        if self._known is not None and (
            self._clock() - self._read_at < FRESH_SECONDS or self._lock.locked()
        ):
            return self._known
        async with self._lock:
            if self._known is not None and self._clock() - self._read_at < FRESH_SECONDS:
                return self._known
            return await self._read()

    async def refresh(self) -> Settings:
        """Read now, whatever the age."""
        async with self._lock:
            return await self._read()

    async def _read(self) -> Settings:
        try:
            layers = await self._store.settings.read_settings()
        except Unavailable:
            if self._known is None:
                raise
            self._read_at = self._clock()
            return self._known
        known = self._known
        if (
            known is None
            or known.rev != layers.revision
            or known.queues.keys() != layers.queues.keys()
        ):
            before, known = known, Settings(layers, self._environment)
            if known.rules_problem and (
                before is None or before.rules_problem != known.rules_problem
            ):
                log.error(
                    "the operators' rules cannot be read, and none is in force: %s",
                    known.rules_problem,
                )
            self._known = known
        self._read_at = self._clock()
        return known
