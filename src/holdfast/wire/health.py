"""Health checks of hosts: `POST /v1/agent/health`, JSON, apart from `sync` so that they never delay a
heartbeat.

The agent asks after it has registered, then when the answer says, and soon after a task failed. An
order repeats until its report has come.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.bounds import Count, Elapsed, Figure
from holdfast.core.host_checks import CheckKind, Measured
from holdfast.wire.agent import AgentMessage

MAX_HEALTH_BYTES = 1024 * 1024
MAX_FAILURES = 256


class HealthOrder(AgentMessage, frozen=True, kw_only=True):
    """The order to measure this host. number: the name of the order, which its report repeats.

    mounts: paths to check. script: a shell line of the operator's, run in the agent's environment.
    disk_mb: megabytes to write to measure the disk's speed; 0: not measured. deadline_seconds: time
    for all of it. burn_seconds: how long each device computes one product again and again, where no
    task is on the host; 0: not at all.
    """

    number: str
    kind: CheckKind
    mounts: tuple[str, ...] = ()
    script: str | None = None
    disk_mb: Figure = 64.0
    deadline_seconds: Elapsed = 120.0
    burn_seconds: Elapsed = 0.0


class HealthReport(AgentMessage, frozen=True, kw_only=True):
    """The measurements for an order."""

    number: Annotated[str, Meta(max_length=64)]
    kind: CheckKind
    measured: Measured


class HealthRequest(AgentMessage, frozen=True, kw_only=True):
    """The request for the next check. passed, failed: number of tasks that ended here by themselves
    since the last answered request. failures: (job, attempt) of the newest failed ones. report: the
    result of the last order."""

    incarnation: Annotated[str, Meta(min_length=8, max_length=64)]
    passed: Count = 0
    failed: Count = 0
    failures: Annotated[tuple[tuple[str, Count], ...], Meta(max_length=MAX_FAILURES)] = ()
    report: HealthReport | None = None


class HealthAnswer(AgentMessage, frozen=True, kw_only=True):
    """The answer to a `HealthRequest`. order: the check to make now. next_seconds: seconds until
    the next request."""

    order: HealthOrder | None = None
    next_seconds: Elapsed = 60.0


encode = msgspec.json.Encoder().encode
decode_answer = msgspec.json.Decoder(HealthAnswer).decode
