"""The options of a job, which are fields of its spec, and how their values come over those of a file."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click

from holdfast.cli.options import options_of
from holdfast.client.specs import SHORT_NAMES, read_retry
from holdfast.core.retry import RetryFields
from holdfast.core.spec import JobSpec

_WORDS = {
    "labels": "--label K=V",
    "env": "--env K[=V]",
    "secrets": "--secret K[=V|=@FILE]",
    "host_labels": "--host-label K=V",
    "cwd": "DIR",
    "fail_on": "PATTERN",
    "tasks": "N",
    "preemptible": "--preemptible/--not-preemptible",
    "notify": "TARGET[:KIND,…]",
    "interactive": "--once",
    "no_progress_limit": "N",
    "image": "REF",
    "volumes": "--volume HOST:INSIDE[:ro]",
    "setup": "LINE",
    "setup_files": "PATTERN",
    "python": "VERSION",
    "outputs": "PATH",
    "caches": "--cache NAME[:/PATH]",
    "mounts": "--mount NAME[:/PATH]",
    "idempotency_key": "KEY",
    "start_at": "TIME",
    "after": "JOB[:END]",
    "detached": "--detach",
    "shell": "LINE",
}
_RETRY = {
    "max_retries": "max_retries",
    "retry_delay": "retry_delay",
    "retry_backoff": "backoff",
    "retry_multiplier": "backoff_multiplier",
    "max_retry_delay": "max_retry_delay",
    "retry_jitter": "jitter",
    "retry_jitter_ratio": "jitter_ratio",
    "retry_on": "eligible_causes",
}
"""The parameter of an option → the field of the policy."""
_APART = {"labels", "host_labels", "env", "secrets", "shell", "stdin", "terminal", "attended"}
"""Parameters that `submit` reads in a way of their own."""
_FIELDS = {*JobSpec.__struct_fields__, *SHORT_NAMES} - _APART
job_options: Callable[[str], Callable[..., Any]] = partial(
    options_of, JobSpec, words=_WORDS, fields=SHORT_NAMES
)
"""Return a decorator that adds the options of these fields of a job."""
_retry_options = partial(
    options_of,
    RetryFields,
    words={"retry_delay": "TIME", "max_retry_delay": "TIME", "retry_on": "CAUSE"},
    fields=_RETRY,
)
ABOUT_OPTIONS = job_options("name queue project priority")
RUN_OPTIONS = job_options(
    "cwd fresh_workdir fail_on time_limit expected stall_timeout silence_limit on_standstill "
    "first_beat_timeout idle_timeout grace stop_tells watchdog_cap"
)
PLACE_OPTIONS = job_options(
    "host_labels preemptible min_runtime notice start_timeout recovery_timeout"
)
WATCH_OPTIONS = job_options("on_straggler on_corruption")
POLICY_OPTIONS = (
    job_options("notify"),
    _retry_options(" ".join(_RETRY)),
    click.option("--no-retry-events", is_flag=True, help="Write no job.retry_* events."),
    job_options("interactive no_progress_limit budget_reset"),
)
DATA_OPTIONS = job_options("outputs caches mounts")
START_OPTIONS = job_options("lease_ttl idempotency_key start_at after")


def read_options(fields: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Put the options' values over `fields`, one policy field at a time. Words that may be repeated
    come after those of the file, but for `setup_files`. Raises ValidationError."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    policy = {field: given[name] for name, field in _RETRY.items() if name in given}
    if given.get("no_retry_events"):
        policy["emit_retry_events"] = False
    if policy:
        fields["retry"] = {**read_retry(fields.get("retry") or {}), **policy}
    for name, value in given.items():
        if name in _FIELDS:
            old = () if name == "setup_files" else fields.get(name) or ()
            fields.pop(SHORT_NAMES.get(name, name), None)
            fields[name] = [*old, *value] if isinstance(value, tuple) else value
