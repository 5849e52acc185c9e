"""The keyword arguments of `submit` and `run`: the fields of a `JobSpec`, as people write them.

A test holds that the names are those of `JobSpec` and the short ones of `client.specs`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from holdfast.core.bundles.code import CodeRef
from holdfast.core.retry import RetryFields, RetryPolicy

Duration = float | str
"""Seconds, or a text such as "90s" or "2h"; where a limit may be off, also "off"."""
Size = int | str
"""Bytes, or a text such as "4G"."""


class SubmitFields(TypedDict, total=False):
    """The keyword arguments that describe a job; `core.spec.JobSpec` explains each field."""

    argv: Sequence[str]
    shell: str | None
    name: str | None
    queue: str | None
    project: str
    priority: int
    tasks: int
    gpus: int
    cpus: int | None
    memory: Size | None
    memory_bytes: Size | None
    labels: Mapping[str, Any]
    env: Mapping[str, Any]
    secrets: Mapping[str, Any]
    code: CodeRef | Mapping[str, Any] | None
    setup: str | None
    setup_files: Sequence[str]
    python: str | None
    workdir: str | os.PathLike[str] | None
    cwd: str | None
    fresh_workdir: bool
    fail_on: str | None
    time_limit: Duration | None
    time_limit_seconds: Duration | None
    expected: Duration | None
    expected_seconds: Duration | None
    stall_timeout: Duration | None
    stall_timeout_seconds: Duration | None
    silence_limit: Duration | None
    silence_limit_seconds: Duration | None
    first_beat_timeout: Duration | None
    first_beat_timeout_seconds: Duration | None
    grace: Duration | None
    grace_seconds: Duration | None
    stop_tells: Literal["main", "tree"] | None
    lease_ttl: Duration | None
    lease_ttl_seconds: Duration | None
    watchdog_cap: int | None
    no_progress_limit: int | Literal["off"] | None
    budget_reset: Duration | None
    budget_reset_seconds: Duration | None
    retry: RetryPolicy | RetryFields | Mapping[str, Any] | None
    interactive: bool
    terminal: bool
    attended: bool
    idle_timeout: Duration | None
    idle_timeout_seconds: Duration | None
    image: str | None
    runtime: Literal["podman", "docker"] | None
    pull: Literal["missing", "always", "never"]
    volumes: Sequence[str]
    pull_timeout: Duration | None
    image_pull_seconds: Duration | None
    setup_timeout: Duration | None
    setup_seconds: Duration | None
    caches: Sequence[str]
    mounts: Sequence[str]
    outputs: Sequence[str]
    placement: Literal["pack", "spread"]
    host_labels: Mapping[str, Any]
    supervised: bool
    on_partial: Literal["fail", "restart"]
    on_straggler: Literal["ignore", "tell", "blame", "replace", "restart"] | None
    straggler_seconds: Duration | None
    on_corruption: Literal["ignore", "tell", "restart"] | None
    on_standstill: Literal["ignore", "tell", "stop"] | None
    standstill_seconds: Duration | None
    preemptible: bool
    min_runtime: Duration | None
    preempt_min_run_seconds: Duration | None
    notice: Duration | None
    notice_seconds: Duration | None
    start_timeout: Duration | None
    start_timeout_seconds: Duration | None
    recovery_timeout: Duration | None
    recovery_timeout_seconds: Duration | None
    start_at: Any
    stdin: str
    parent: str
    detached: bool
    executor: str
    after: Sequence[str]
    notify: Sequence[str]
    idempotency_key: str | None
