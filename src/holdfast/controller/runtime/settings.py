"""Settings in force: the database's layers over the environment's, read again at most once a
second."""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from holdfast.controller.runtime.background import Background
from holdfast.core.calls.decide import pace_retries
from holdfast.core.calls.executors import as_job, unwatched
from holdfast.core.calls.values import ExecutorLimits, FunctionSpec
from holdfast.core.endings.decide import Policy
from holdfast.core.endings.rules import OUTDATED, OperatorRule, list_outdated, parse_rules
from holdfast.core.placement.plan import silence_seconds
from holdfast.core.placement.takes import TakeTerms
from holdfast.core.placement.types import RunningTask, Share
from holdfast.core.records import ProjectRecord
from holdfast.core.retry import make_policy
from holdfast.core.settings.resolve import Effective, Value, job_layer, resolve, resolve_all
from holdfast.core.settings.table import find_call_limit
from holdfast.core.settings.watch import WatchSettings, watch_settings
from holdfast.core.spec import JobSpec
from holdfast.errors import Unavailable, ValidationError
from holdfast.moves.jobs.quotas import Use, read_share, sets_quota, sets_share
from holdfast.moves.values import SettingsLayers
from holdfast.store.postgres.store import PostgresStore

log = logging.getLogger("holdfast.controller")

FRESH_SECONDS = 1.0
RECENT_SECONDS = 30.0
TIME_LIMIT = "time_limit_seconds"
_MAX_CACHED_WATCHES = 4096
_WatchKey = tuple[str, bool, bool, str, frozenset[tuple[str, Value]]]


@functools.lru_cache(maxsize=2)  # the text seldom changes
def _parse_rules(text: str) -> tuple[tuple[OperatorRule, ...], list[str]]:
    rules = parse_rules(text, keeps=lambda pattern: True)
    return rules, list_outdated(rules)


class Settings:
    """One revision of every layer. Immutable, except for caches of what was computed."""

    def __init__(self, layers: SettingsLayers, environment: Mapping[str, Value]) -> None:
        self.rev = layers.revision
        self.queues = layers.queues
        self.projects = layers.projects
        self.rules_text = layers.rules
        self.rules: tuple[OperatorRule, ...] = ()
        self.rules_problem = ""
        self.outdated_rules: list[str] = []
        try:
            self.rules, self.outdated_rules = _parse_rules(layers.rules)
        except ValidationError as error:
            # They were checked when they were written, but perhaps by another version; jobs must
            # still end.
            self.rules_problem = error.message
        outdated = (f"the pattern of rule {name} {OUTDATED}" for name in self.outdated_rules)
        self.remarks = tuple(outdated)
        self._environment = environment
        self._below = [("cluster", layers.cluster), ("environment", environment)]
        self._watches: dict[_WatchKey, WatchSettings] = {}
        self._values: dict[tuple[str, str | None, str], Value] = {}
        self.take_terms = self._find_terms()

    def effective(
        self, queue: str | None = None, spec: JobSpec | None = None, project: str | None = None
    ) -> dict[str, Effective]:
        """Return every setting in force for the cluster, a queue, a project, or a job of a
        queue."""
        return resolve_all(self._layers(queue, spec, project))

    def value(
        self, name: str, queue: str | None = None, spec: JobSpec | None = None, project: str = ""
    ) -> Value:
        """Return one setting's value in force. project: the project of a job whose spec is not
        given."""
        if spec is not None:
            return resolve(name, self._layers(queue, spec)).value
        if queue not in self.queues:
            queue = None
        if project not in self.projects:
            project = ""
        key = (name, queue, project)
        if key not in self._values:
            self._values[key] = resolve(name, self._layers(queue, None, project)).value
        return self._values[key]

    def environment_number(self, name: str) -> float | None:
        """Return the number that the environment, or else the default, gives a setting."""
        value = resolve(name, [("environment", self._environment)]).value
        return float(value) if isinstance(value, (int, float)) else None

    def time_limit(self, queue: str, spec: JobSpec) -> Effective:
        """Return a job's time limit, and the layer that names it: "default" where none does."""
        return resolve(TIME_LIMIT, self._layers(queue, spec))

    def call_limit(self, queue: str, spec: FunctionSpec) -> Effective:
        """Return the time limit of a function's calls: where no layer names one, the limit of calls
        in a queue of this name."""
        found = self.time_limit(queue, as_job(spec))
        if found.source != "default":
            return found
        return Effective(TIME_LIMIT, find_call_limit(queue, spec.gpus), "calls")

    def start_limit(self, name: str, queue: str, spec: JobSpec) -> float:
        """Return how long a start may take, by the setting `name`, and longer by the limit of an
        environment's making where the job has one made."""
        making = self.number("setup_seconds", queue, spec) if spec.makes_environment else 0.0
        return self.number(name, queue, spec) + making

    def number(self, name: str, queue: str | None = None, spec: JobSpec | None = None) -> float:
        """Return the value in force of a setting that is a number and cannot be off."""
        value = self.value(name, queue, spec)
        assert isinstance(value, (int, float))
        return float(value)

    def min_run_seconds(self, task: RunningTask) -> float:
        """Return how long an attempt of a running job runs at least before it may be stopped for
        another job."""
        if task.min_run_seconds is not None:
            return task.min_run_seconds
        least = self.value("preempt_min_run_seconds", task.queue, project=task.project)
        return float(least or 0)

    @property
    def silence_seconds(self) -> float:
        """Return how long a host may be silent and still be given work, in seconds."""
        return silence_seconds(
            self.number("dead_host_seconds"), self.number("sync_interval_seconds")
        )

    def lease_ttl_seconds(self, queue: str, *, gang: bool) -> float:
        """Return the lease, in seconds, of a queue's jobs that set none themselves. A gang's is
        shorter, because its other ranks wait for a silent one."""
        layer = self.queues.get(queue, {})
        own = "lease_ttl_seconds" in layer and "gang_lease_ttl_seconds" not in layer
        return self.number(
            "gang_lease_ttl_seconds" if gang and not own else "lease_ttl_seconds", queue
        )

    def _find_terms(self) -> TakeTerms | None:
        """Return the terms under which hosts may take jobs by themselves (TAKE-1); None where a
        quota or a share is set, because these bind across queues."""
        layers = [*(layer for _, layer in self._below), *self.projects.values()]
        if any(sets_share(layer) or sets_quota(layer) for layer in layers):
            return None
        free = [name for name in self.queues if self.value("max_running", name) is None]
        ttls = {name: self.lease_ttl_seconds(name, gang=False) for name in free}
        return TakeTerms(revision=self.rev, ttls=ttls, whole=len(free) == len(self.queues))

    def watch(self, queue: str, spec: JobSpec) -> WatchSettings:
        """Return the watchdogs' settings for the tasks of a job."""
        if spec.executor:
            return unwatched(watch_settings(self.effective(queue, spec)))
        named = spec.project if TIME_LIMIT in self.projects.get(spec.project, {}) else ""
        attended = spec.attended or spec.terminal
        key = (queue, spec.supervised, attended, named, frozenset(job_layer(spec).items()))
        found = self._watches.get(key)
        if found is None:
            if len(self._watches) >= _MAX_CACHED_WATCHES:
                self._watches.clear()
            found = self._watches[key] = watch_settings(
                self.effective(queue, spec), supervised=spec.supervised, attended=attended
            )
        return found

    def watch_call(self, queue: str, spec: FunctionSpec) -> WatchSettings:
        """Return the watchdogs' settings for one call of a function."""
        limit = self.call_limit(queue, spec).value
        seconds = None if limit is None else float(limit)
        return msgspec.structs.replace(self.watch(queue, as_job(spec)), time_limit_seconds=seconds)

    def call_policy(self, queue: str, spec: FunctionSpec) -> Policy:
        """Return the policy that decides about the end of a function's call."""
        job = as_job(spec)
        delay = self.number("call_retry_delay_seconds", queue, job)
        return pace_retries(self.policy(queue, job), spec, delay)

    def cold_wait_seconds(self, queue: str) -> float:
        """Return how long a call of the queue may wait for a model that is loaded nowhere."""
        return self.number("cold_wait_seconds", queue)

    def executor_limits(self, queue: str, *, ahead: bool) -> ExecutorLimits:
        """Return when an executor of the queue ends by itself. ahead: True for an executor started
        before there are calls, which waits for them without an end."""
        idle, model_idle = (
            self._off("executor_idle_seconds", queue),
            self._off("model_idle_seconds", queue),
        )
        return ExecutorLimits(
            idle_seconds=0.0 if ahead else idle,
            calls=int(self._off("executor_max_calls", queue)),
            memory_bytes=int(self._off("executor_max_memory_mb", queue) * 2**20),
            model_idle_seconds=model_idle,
        )

    def _off(self, name: str, queue: str) -> float:
        """Return the value in force of a setting that is a number, and 0 where it is off."""
        value = self.value(name, queue)
        return float(value) if isinstance(value, (int, float)) else 0.0

    def policy(self, queue: str, spec: JobSpec) -> Policy:
        """Return the policy that decides about a job's end."""
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

    def gives_tokens(self, project: str) -> bool:
        """Return whether the project's jobs may use tokens of their own."""
        return bool(self.effective(project=project)["job_tokens"].value)

    def children_limit(self, project: str) -> int:
        """Return how many unfinished jobs one job of the project may have submitted."""
        value = self.effective(project=project)["job_children"].value
        assert isinstance(value, int)
        return value

    def is_shared(self, project: str) -> bool:
        """Return whether every user of the project may change its work (OWNER-1)."""
        return bool(self.effective(project=project)["shared"].value)

    def allow_sessions(self, project: str) -> bool:
        """Return whether users may come into the tasks of a project's jobs."""
        return bool(self.value("sessions", project=project))

    def retries_held(self, project: str) -> str | None:
        """Return the kill switch that holds the project's retries back, or None. Retries that are
        off in one layer are off, because no layer outvotes another here."""
        for source, _ in self._holding_layers():
            return f"the {source}"
        held = _is_off(self.projects.get(project, {}))
        return f"project {project}" if held else None

    def sets(self, name: str) -> bool:
        """Return whether any layer of cluster, environment or a project gives the setting a value."""
        layers = [*(layer for _, layer in self._below), *self.projects.values()]
        return any(layer.get(name) is not None for layer in layers)

    def find_holders(self) -> list[tuple[str, str | None, str]]:
        """Return every kill switch that is on: (layer, project, reason)."""
        off: list[tuple[str, str | None, Mapping[str, Value]]] = [
            *((source, None, layer) for source, layer in self._holding_layers()),
            *(
                ("project", n, layer)
                for n, layer in sorted(self.projects.items())
                if _is_off(layer)
            ),
        ]
        return [(s, p, str(layer.get("retries_hold_reason") or "")) for s, p, layer in off]

    def find_shares(self, projects: Iterable[ProjectRecord]) -> dict[str, Share]:
        """Return the shares of these projects and what they hold; an empty dict where no project
        has a share."""
        layers = [*(layer for _, layer in self._below), *self.projects.values()]
        if not any(map(sets_share, layers)):
            return {}
        return {
            p.name: read_share(
                self.projects.get(p.name, {}),
                self._below,
                Use(running_gpus=p.gpus, running_cpu_slots=p.cpu_slots),
            )
            for p in projects
        }

    def _holding_layers(self) -> list[tuple[str, Mapping[str, Value]]]:
        return [(source, layer) for source, layer in self._below if _is_off(layer)]

    def _layers(
        self, queue: str | None, spec: JobSpec | None, project: str | None = None
    ) -> list[tuple[str, Mapping[str, Value]]]:
        layers: list[tuple[str, Mapping[str, Value]]] = []
        if spec is not None:
            layers.append(("job", job_layer(spec)))
            project = spec.project
        if queue is not None:
            layers.append(("queue", self.queues.get(queue, {})))
        if project is not None:
            layers.append(("project", self.projects.get(project, {})))
        return layers + self._below


def _is_off(layer: Mapping[str, Value]) -> bool:
    return layer.get("retries_enabled") is False


class SettingsCache:
    """The current settings. A read that fails leaves the last known ones in force."""

    def __init__(
        self,
        store: PostgresStore,
        environment: Mapping[str, Value],
        clock: Callable[[], float] = time.monotonic,
        background: Background | None = None,
    ) -> None:
        self._store = store
        self._background = background
        self._environment = environment
        self._clock = clock
        self._known: Settings | None = None
        self._read_at = 0.0
        self._lock = asyncio.Lock()

    @property
    def known(self) -> Settings | None:
        """Return the last settings that were read, however old they are."""
        return self._known

    def confirm(self, revision: int) -> None:
        """Count the known settings as just read where they are of this revision, which the caller
        has just read, and else as too old."""
        of = None if self._known is None else self._known.rev
        now = self._clock()
        self._read_at = now if of == revision else min(self._read_at, now - FRESH_SECONDS)

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

    async def recent(self) -> Settings:
        """Return settings at most `RECENT_SECONDS` old, for a caller that must not wait and
        can use older ones. Settings older than `FRESH_SECONDS` are read again in the background."""
        age = self._clock() - self._read_at
        if self._known is None or self._background is None or age >= RECENT_SECONDS:
            return await self.current()
        if age >= FRESH_SECONDS:
            self._background.read_behind(self, self.current)
        return self._known

    async def refresh(self) -> Settings:
        """Read the settings now, at any age."""
        async with self._lock:
            return await self._read()

    async def _read(self) -> Settings:
        before, stored = self._known, self._store.settings
        try:
            if before is not None and await stored.read_revision() == before.rev:
                self._read_at = self._clock()
                return before
            layers = await stored.read_settings()
        except Unavailable:
            if before is None:
                raise
            self._read_at = self._clock()
            return before
        if before is None or before.rev != layers.revision:
            self._known = Settings(layers, self._environment)
            problem = self._known.rules_problem
            if problem and (before is None or before.rules_problem != problem):
                log.error("the operators' rules cannot be read, and none is in force: %s", problem)
            for sentence in self._known.remarks:
                if before is None or sentence not in before.remarks:
                    log.warning("%s", sentence)
        self._read_at = self._clock()
        assert self._known is not None
        return self._known
