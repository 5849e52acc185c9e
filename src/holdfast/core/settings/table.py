"""The registry of settings: each with its bounds, its default and the layers that may set it."""

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

Value = float | int | bool | str | None
Kind = Literal["seconds", "int", "number", "bool", "word", "causes", "text"]
Scope = Literal["job", "queue", "project", "cluster"]


class Setting(msgspec.Struct, frozen=True):
    """One setting. `name` ends in its unit, `low` and `high` bound it, `words` are a word's choices.

    kind: "causes" is a list of causes as one text ("all", "none" or "a,b"); "text" is a sentence of
    at most `high` characters.
    scope: the most specific layer that may set it. layer: the middle layer it belongs to.
    off_wins: True for a switch that is off where any layer has it off: no layer outvotes another.
    """

    name: str
    kind: Kind
    default: Value
    help: str
    low: float = 0
    high: float = math.inf
    may_be_off: bool = False
    words: tuple[str, ...] = ()
    scope: Scope = "job"
    layer: Literal["queue", "project", "queue or project"] = "queue"
    off_wins: bool = False

    @property
    def environment_name(self) -> str:
        """Return the name of the environment variable that sets it."""
        return "HOLDFAST_" + self.name.upper()


_DAY = 86_400.0
# One table: a setting is two lines.
# fmt: off
_ALL = (
    # watchdogs
    Setting("time_limit_seconds", "seconds", None,
            "wall clock an attempt or a call may take; where no layer sets it, a job has no limit, and a call has "
            "that of calls in its queue (`holdfast calls show`)",
            low=0.05, high=366 * _DAY, may_be_off=True, layer="queue or project"),
    Setting("stall_watch", "bool", True, "watch for beats that stop"),
    Setting("stall_timeout_seconds", "seconds", 120.0,
            "silence after the first beat that is suspected", low=0.05, high=_DAY, may_be_off=True),
    Setting("stall_samples", "int", 3, "samples that must all say idle before a stall is believed", low=1, high=100),
    Setting("stall_sample_interval_seconds", "seconds", 1.0, "time between those samples", low=0.01, high=60),
    Setting("silence_limit_seconds", "seconds", 1800.0,
            "silence after the first beat that needs no confirmation", low=0.05, high=30 * _DAY, may_be_off=True),
    Setting("first_beat_timeout_seconds", "seconds", None,
            "a task without a first beat so long after its start has hung", low=0.05, high=30 * _DAY, may_be_off=True),
    Setting("idle_timeout_seconds", "seconds", 7200.0,
            "a job at which a person sits (`run -it`, `notebook`) ends after so long without a key, traffic and work",
            low=0.05, high=30 * _DAY, may_be_off=True),
    Setting("on_standstill", "word", "tell",
            "what follows when a step, or a counter that a job prints, moved and then stood beside idle hardware: an "
            "event (tell), or the job is stopped as stalled (stop)",
            words=("ignore", "tell", "stop")),
    Setting("standstill_seconds", "seconds", 600.0,
            "a step or printed counter that stands for so long is suspected, and for three times the longest time "
            "that it stood before", low=1, high=30 * _DAY, may_be_off=True),
    Setting("section_factor", "number", 5.0,
            "a named section's learned timeout is its longest pass times this", low=1, high=100),
    Setting("health_watch", "word", "auto",
            "watch for idle and static GPUs; auto: tasks with GPUs, except those of supervised jobs",
            words=("auto", "on", "off")),
    Setting("health_window_seconds", "seconds", 300.0, "idle and static for this long is wedged", low=0.05, high=_DAY),
    Setting("health_load_grace_seconds", "seconds", 1200.0,
            "the first window, while a job loads; any beat ends it", low=0.05, high=_DAY),
    Setting("health_sample_interval_seconds", "seconds", 5.0, "time between health samples", low=0.01, high=600),
    Setting("gpu_idle_percent", "number", 5.0, "GPU utilisation at or under this is idle", low=0, high=100),
    Setting("gpu_memory_moving_mb", "number", 5120.0,
            "GPU memory that moved more than this over a window is working", low=0),
    Setting("cpu_idle_percent", "number", 5.0,
            "CPU time of the tree, in percent of one core, at or under this is idle", low=0, high=6400),
    Setting("memory_moving_mb_per_second", "number", 2.0,
            "memory of the tree that moves faster than this between two samples is working", low=0),
    Setting("io_moving_mb_per_second", "number", 0.25,
            "a tree that reads and writes faster than this between two samples is working", low=0),
    Setting("watchdog_cap", "int", 3,
            "watchdog trips a job is requeued after; the next one fails it", low=0, high=1000),
    Setting("on_trip", "word", "requeue", "what a trip does", words=("requeue", "fail"), scope="queue"),
    # gangs: slow and wrong ranks
    Setting("on_straggler", "word", "tell",
            "what follows when a rank of a gang is slow by itself: an event (tell); besides, its host gets no other "
            "work for an hour (blame), the rank of a supervised job is replaced, or the job restarts on other hosts",
            words=("ignore", "tell", "blame", "replace", "restart")),
    Setting("straggler_seconds", "seconds", 60.0, "a rank is slow for this long before more than an event follows",
            low=0, high=_DAY),
    Setting("on_corruption", "word", "restart",
            "what follows when checksums of ranks differ that must be alike: an event (tell); besides, the host of the "
            "rank that computed wrongly is set aside and the job restarts on others (restart)",
            words=("ignore", "tell", "restart")),
    # endings
    Setting("grace_seconds", "seconds", 15.0, "time between TERM and KILL", low=0, high=_DAY),
    Setting("stop_tells", "word", "main",
            "which processes of a task hear the TERM of a stop first: the main one, so that no helper's death breaks "
            "its save (main), or all (tree)",
            words=("main", "tree")),
    Setting("drain_force_seconds", "seconds", 45.0,
            "a drain not confirmed by then, or by its grace and half of this if longer, is forced: KILL without grace",
            low=1, high=_DAY, scope="cluster"),
    Setting("forensics_seconds", "seconds", 10.0,
            "bound on what is gathered before a kill", low=0, high=60, scope="cluster"),
    # leases
    Setting("lease_ttl_seconds", "seconds", 300.0,
            "a host's right to run a task, renewed at every sync", low=15, high=3600),
    Setting("gang_lease_ttl_seconds", "seconds", 60.0,
            "the same for jobs of several tasks, where neither job nor queue sets lease_ttl_seconds",
            low=15, high=3600, scope="queue"),
    Setting("sync_interval_seconds", "seconds", 5.0,
            "time between an agent's syncs when nothing happens", low=0.05, high=60, scope="cluster"),
    Setting("reservation_seconds", "seconds", 30.0,
            "time a reservation may wait for its start", low=1, high=_DAY, scope="cluster"),
    Setting("dead_host_seconds", "seconds", 30.0,
            "a heartbeat older than this while work runs flags the host", low=1, high=_DAY, scope="cluster"),
    Setting("dead_host_sweep_seconds", "seconds", 5.0,
            "time between two looks for such hosts", low=0.1, high=3600, scope="cluster"),
    # budgets
    Setting("infra_cap", "int", 10,
            "infrastructure failures a job is requeued after; the next one fails it", low=0, high=1000),
    Setting("no_progress_limit", "int", 3,
            "attempts in a row that got no further, by the step of their beats, after which a job fails",
            low=1, high=1000, may_be_off=True),
    Setting("budget_reset_seconds", "seconds", None, "an attempt that ran this long gives its job all its budgets back",
            low=1, high=366 * _DAY, may_be_off=True),
    # retries
    Setting("max_retries", "int", 0, "retries after the first attempt", low=0, high=10_000, layer="project"),
    Setting("retry_delay_seconds", "seconds", 60.0, "time before the first retry", low=0, high=_DAY, layer="project"),
    Setting("call_retry_delay_seconds", "seconds", 1.0,
            "time before the first retry of a call whose function sets none; it grows by retry_multiplier",
            low=0, high=_DAY, scope="project", layer="project"),
    Setting("retry_backoff", "word", "fixed", "how the delay grows", words=("fixed", "exponential"), layer="project"),
    Setting("retry_multiplier", "number", 2.0,
            "what an exponential delay grows by with every retry", low=1, high=100, layer="project"),
    Setting("max_retry_delay_seconds", "seconds", 3600.0, "no delay is longer; off leaves the hard ceiling of 24 h",
            low=0.001, high=_DAY, may_be_off=True, layer="project"),
    Setting("retry_jitter", "word", "none", "what is added to a delay so that retries spread",
            words=("none", "deterministic", "random"), layer="project"),
    Setting("retry_jitter_ratio", "number", 0.25,
            "jitter is at most this part of the delay", low=0, high=1, layer="project"),
    Setting("retry_on", "causes", "all", "causes that are followed by another attempt", layer="project"),
    Setting("retry_events", "bool", True, "write the job.retry_* events", layer="project"),
    Setting("retries_enabled", "bool", True,
            "kill switch: off, in the cluster or in a project, holds every retry back until it is on again",
            scope="project", layer="project", off_wins=True),
    Setting("retries_hold_reason", "text", "",
            "why the kill switch was thrown, shown by `why`", high=512, scope="project", layer="project"),
    Setting("agent_url", "text", "",
            "where hosts of pools reach this controller, several addresses with commas; empty: the one it serves",
            high=512, scope="cluster"),
    Setting("retry_rate_limit", "number", 50.0, "retries dispatched per second at most, over the whole cluster",
            low=0.01, high=1e6, may_be_off=True, scope="cluster"),
    # quotas
    Setting("job_tokens", "bool", True,
            "jobs of the project have a token of their own, with which they submit jobs",
            scope="project", layer="project"),
    Setting("job_children", "int", 1000, "unfinished jobs that one job may have submitted with its own token",
            low=0, high=1_000_000, scope="project", layer="project"),
    Setting("sessions", "bool", True,
            "users may come into running tasks (exec, shell, attach, port-forward, cp); off, in the cluster or in a "
            "project, is off",
            scope="project", layer="project", off_wins=True),
    Setting("shared", "bool", False,
            "submit tokens may change the jobs, arrays, call sets, runs and schedules of every user of a project",
            scope="project", layer="project"),
    Setting("quota_jobs", "int", None, "jobs of a project that may run at once",
            low=0, high=1 << 30, may_be_off=True, scope="project", layer="project"),
    Setting("quota_gpus", "int", None, "GPUs that running jobs of a project may hold at once",
            low=0, high=1 << 30, may_be_off=True, scope="project", layer="project"),
    Setting("share_gpus", "int", None,
            "GPUs of a project's own: more are borrowed while idle, and given back by a drain when their project asks",
            low=0, high=1 << 30, may_be_off=True, scope="project", layer="project"),
    Setting("share_cpu_slots", "int", None,
            "the same in CPU slots, for jobs without GPUs",
            low=0, high=1 << 30, may_be_off=True, scope="project", layer="project"),
    Setting("quota", "word", "soft", "over quota a job waits (soft), or is refused at submission (hard)",
            words=("soft", "hard"), scope="project", layer="project"),
    # money, and GPUs that are held for nothing
    Setting("gpu_hour_usd", "number", None,
            "price of a GPU-hour on hosts that no pool rents, in dollars; a host's label gpu_hour_usd goes before it",
            low=0, high=1e6, may_be_off=True, scope="cluster"),
    Setting("budget_usd_per_month", "number", None,
            "dollars that a project may spend in a calendar month (UTC)",
            low=0, high=1e12, may_be_off=True, scope="project", layer="project"),
    Setting("at_budget", "word", "notice",
            "once the month's budget is spent: people are told, or also no further job starts (hold), or running "
            "jobs are stopped as well and wait (preempt)",
            words=("notice", "hold", "preempt"), scope="project", layer="project"),
    Setting("idle_gpus", "word", "tell",
            "jobs that hold GPUs and leave them idle: off, told of, or told of, then stopped and queued again (drain)",
            words=("off", "tell", "drain"), scope="project", layer="project"),
    Setting("idle_gpus_seconds", "seconds", 1800.0, "all GPUs of a job are idle for so long before people are told",
            low=60, high=30 * _DAY, scope="project", layer="project"),
    Setting("idle_gpus_drain_seconds", "seconds", 1800.0,
            "with idle_gpus=drain: a job whose GPUs stay idle for so long after people were told is stopped",
            low=60, high=30 * _DAY, scope="project", layer="project"),
    # gangs
    Setting("start_timeout_seconds", "seconds", 1800.0,
            "from a job's reservation until every task runs, as long as no attempt of it ran", low=1, high=_DAY),
    Setting("recovery_timeout_seconds", "seconds", 600.0,
            "the same for the attempts after one that ran, whose images and data are there already", low=1, high=_DAY),
    Setting("start_failure_limit", "int", 8,
            "failed starts in a row, 60 s to 1 h apart, after which a job is parked", low=1, high=1000),
    Setting("hold_back_seconds", "seconds", 60.0,
            "a job that found no room for this long has freed room held back for it",
            low=0, high=_DAY, may_be_off=True, scope="cluster"),
    Setting("preemption", "bool", True,
            "a job of higher priority may take the place of preemptible ones", scope="cluster"),
    Setting("preempt_min_run_seconds", "seconds", 300.0,
            "an attempt runs at least this long before it may be preempted, or gives back what was borrowed",
            low=0, high=30 * _DAY, layer="queue or project"),
    Setting("notice_seconds", "seconds", 60.0,
            "a job whose place another one takes is told so long before it is killed, and at least its grace before; "
            "it goes as soon as it has saved",
            low=0, high=3600, layer="queue or project"),
    # calls of Python functions
    Setting("executor_idle_seconds", "seconds", 60.0, "an executor without a call for this long ends",
            low=0.05, high=30 * _DAY, may_be_off=True, scope="queue"),
    Setting("executors_ahead", "int", 0, "executors of every app that are started before there are calls, and stay",
            low=0, high=1000, scope="cluster"),
    Setting("executors_max", "int", None, "executors of one family at once; off: as many as there is room for",
            low=0, high=100_000, may_be_off=True, scope="queue"),
    Setting("executor_max_calls", "int", None, "calls after which an executor is replaced by a fresh one",
            low=1, high=1 << 30, may_be_off=True, scope="queue"),
    Setting("executor_max_memory_mb", "number", None, "memory over which an executor is replaced after its call",
            low=1, high=1 << 30, may_be_off=True, scope="queue"),
    Setting("model_idle_seconds", "seconds", 60.0, "a loaded model without a call for this long is unloaded",
            low=0.05, high=30 * _DAY, may_be_off=True, scope="queue"),
    Setting("cold_wait_seconds", "seconds", 60.0,
            "a call may wait so long while executors that have another model loaded take calls of that one first",
            low=0, high=_DAY, scope="queue"),
    Setting("call_value_max_mb", "number", 1024.0,
            "size of an argument or a result that is kept apart, because it is too large for a row",
            low=0.001, high=1 << 20, scope="cluster"),
    # bundles: code that was sent, and outputs
    Setting("bundle_max_mb", "number", 100_000.0, "bytes of code and outputs that are kept in all", low=0, high=1 << 30,
            scope="cluster"),
    Setting("bundle_project_max_mb", "number", 20_000.0, "bytes of code and outputs that are kept for one project",
            low=0, high=1 << 30, scope="project", layer="project"),
    Setting("bundle_keep_days", "number", 7.0,
            "days after its last use for which a bundle is kept that no job, schedule or workflow on record names",
            low=0, high=3650, scope="cluster"),
    Setting("outputs_max_mb", "number", 10_240.0, "bytes of the outputs of one rank of an attempt",
            low=0.001, high=1 << 30, scope="queue"),
    Setting("outputs_keep_days", "number", 30.0, "days for which the outputs of an attempt are kept",
            low=0, high=3650, scope="cluster"),
    Setting("outputs_lost_seconds", "number", 900.0,
            "silence of a host after which the outputs that it has still to send count as lost",
            low=1, high=30 * 86_400, scope="cluster"),
    # checkpoints
    Setting("checkpoint_max_mb", "number", 4096.0,
            "size of one checkpoint of one task; larger ones are better kept as a path or an address in a small one",
            low=0.001, high=1 << 20, scope="queue"),
    Setting("checkpoint_keep", "int", 2, "checkpoints kept of each task", low=1, high=100, scope="queue"),
    Setting("checkpoint_inline_kb", "number", 32.0,
            "a checkpoint of at most this size is also handed over in CHECKPOINT_DATA", low=0, high=96, scope="queue"),
    # containers
    Setting("image_pull_seconds", "seconds", 1800.0, "time the pull of a container image may take", low=1, high=_DAY),
    # environments
    Setting("setup_seconds", "seconds", 3600.0,
            "time the making of an environment (--setup) may take, the wait for another job's making included",
            low=1, high=_DAY),
    # limits
    Setting("log_keep_mb", "number", 16.0,
            "log kept by the controller per stream and attempt: its head and its tail", low=0.1, high=4096),
    Setting("log_disk_mb", "number", 256.0,
            "log kept on the host's disk per stream", low=1, high=1 << 20, scope="cluster"),
    Setting("max_running", "int", None,
            "jobs of a queue that may run at once", low=0, high=1 << 30, may_be_off=True, scope="queue"),
    # webhooks
    Setting("webhook_timeout_seconds", "seconds", 10.0,
            "time one try of a webhook delivery may take, from the look-up of its name to its status",
            low=0.1, high=120, scope="cluster"),
    Setting("webhook_tries", "int", 12,
            "tries of a webhook delivery after which it is given up (dead) and may be sent again by hand",
            low=1, high=1000, scope="cluster"),
    Setting("webhook_allow_private", "bool", False,
            "webhooks and notices may go without TLS, and to loopback and private networks", scope="cluster"),
    Setting("notify", "text", "",
            "what people are told of every job of a project: TARGET or TARGET:KIND,…, with spaces between",
            high=1024, scope="project", layer="project"),
    Setting("public_url", "text", "", "where people reach the controller, for the links of notices",
            high=512, scope="cluster"),
    Setting("health_check_seconds", "seconds", 3600.0,
            "a host is checked so often, besides before it serves and after tasks failed on it",
            low=1, high=30 * _DAY, may_be_off=True, scope="cluster"),
    Setting("burn_in_seconds", "seconds", None,
            "in each of these checks, GPUs of a host without a task repeat one product for so long; bits that "
            "differ set the host aside", low=1, high=3600, may_be_off=True, scope="cluster"),
    Setting("blame_hosts", "bool", True,
            "quarantine a host whose checks fail, or that fails jobs which then succeed elsewhere", scope="cluster"),
    Setting("workflow_out_dir", "text", "",
            "folder that all hosts see, in which runs of workflows keep their files; a workflow may name another",
            high=1024, scope="cluster"),
    Setting("history_days", "number", 30.0, "ended jobs, their attempts and logs are deleted after this",
            low=0.01, high=36_500, may_be_off=True, scope="cluster"),
    Setting("ledger_minutes_days", "number", 2.0, "days for which the ledger keeps minutes",
            low=0.1, high=365, scope="cluster"),
    Setting("ledger_hours_days", "number", 90.0, "days for which the ledger keeps hours; days are kept for ever",
            low=1, high=36_500, scope="cluster"),
)
# fmt: on
SETTINGS: Mapping[str, Setting] = {s.name: s for s in _ALL}

BUILTIN_QUEUES: Mapping[str, Mapping[str, Value]] = {"cpu": {}, "gpu": {}}
"""The queues a new cluster starts with, and their settings."""

RENDER_LIMITS: Mapping[str, float] = {
    "gpu": 8100.0,
    "video": 1800.0,
    "cpu": 2100.0,
    "ingest-fetch": 7200.0,
    "ingest-load": 3600.0,
    "input": 120.0,
}
"""Queue → seconds that a call of a function may take in it, where no layer sets a limit."""

QUEUE_PRESETS: Mapping[str, Mapping[str, Mapping[str, Value]]] = {
    "render": {
        "video": {"time_limit_seconds": RENDER_LIMITS["video"], "stall_watch": False},
        "ingest-fetch": {"time_limit_seconds": RENDER_LIMITS["ingest-fetch"], "on_trip": "fail"},
        "ingest-load": {"time_limit_seconds": RENDER_LIMITS["ingest-load"], "on_trip": "fail"},
        "input": {"time_limit_seconds": RENDER_LIMITS["input"]},
    }
}
"""Queues that are made together, with settings for the jobs and the calls in them."""

INGEST_LANE: Mapping[str, Value] = {
    "time_limit_seconds": RENDER_LIMITS["ingest-load"],
    "on_trip": "fail",
}


def begin_queue(name: str) -> dict[str, Value]:
    """Return the settings that a new queue begins with; a name of an ingest lane brings some."""
    return dict(INGEST_LANE) if name == "ingest" or name.startswith("ingest-") else {}


def find_call_limit(queue: str, gpus: int) -> float:
    """Return how long a call may take, in seconds, where neither its function nor a layer sets
    it."""
    return RENDER_LIMITS.get(queue, RENDER_LIMITS["gpu" if gpus else "cpu"])
