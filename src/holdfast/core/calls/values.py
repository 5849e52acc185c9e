"""The values of calls, function declarations and executors."""

import hashlib
from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.bounds import Count, Elapsed, Large
from holdfast.core.bundles.code import CodeRef
from holdfast.core.retry import RetryFields
from holdfast.core.spec import MAX_LABELS, Name, Off, Seconds, ShortText

MAX_SET_CALLS = 10_000_000
MAX_INLINE_BYTES = 256 * 1024
"""Arguments or a result above this are kept in the blob store, and a reference stands in their place."""

FunctionName = Annotated[
    str, Meta(max_length=256, pattern=r"^[A-Za-z_][\w.-]*:[A-Za-z_][\w.]*$(?!\n)")
]


class CallState(IntEnum):
    """The state of a call; the numbers are the database's."""

    PENDING = 0  # waits, runs in a batch, or backs off
    SUCCEEDED = 1
    FAILED = 2
    CANCELLED = 3


class FunctionSpec(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A function as its decorator declares it; None inherits from queue and cluster.

    function: "module:name", imported by the executor. app: the module or package that hosts list
    with `agent --app`; empty: the first part of the function's module.
    code: the code that brings the app along, so that any host can run it; None: hosts list the app.
    model: name of the `@holdfast.model` it runs with. vram_gb: GPU memory that this model needs.
    gpus, cpus, memory_bytes: resources that an executor of the function reserves.
    host_labels: labels that a host must have, as in JobSpec; a value that begins with `!` is one
    that it must not have.
    time_limit_seconds … first_beat_timeout_seconds: limits of one call, without the model's
    loading. watchdog_cap: as in JobSpec, for one call.
    parent: the job, or the call set, that submitted these calls; only Holdfast writes it.
    cold_wait_seconds: how long a call may wait because executors that have its model loaded are
    preferred.
    """

    function: FunctionName
    app: Name | None = None
    code: CodeRef | None = None
    queue: Name | None = None
    project: Name = "default"
    priority: Annotated[int, Meta(ge=0, le=100)] = 50
    model: Name | None = None
    vram_gb: Annotated[float, Meta(ge=0, le=65_536)] = 0.0
    gpus: Annotated[int, Meta(ge=0, le=1024)] = 0
    cpus: Annotated[int, Meta(ge=0, le=4096)] | None = None
    memory_bytes: Annotated[int, Meta(ge=0, le=1 << 50)] = 0
    host_labels: Annotated[dict[Name, ShortText], Meta(max_length=MAX_LABELS - 1)] = {}
    time_limit_seconds: Seconds | Off | None = None
    stall_timeout_seconds: Seconds | Off | None = None
    silence_limit_seconds: Seconds | Off | None = None
    first_beat_timeout_seconds: Seconds | Off | None = None
    watchdog_cap: Annotated[int, Meta(ge=0, le=1000)] | None = None
    retry: RetryFields | None = None
    cold_wait_seconds: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    parent: Annotated[str, Meta(max_length=20)] = ""

    @property
    def app_name(self) -> str:
        """Return the app that a host must list to run the function."""
        return self.app or self.function.partition(":")[0].partition(".")[0]


class Family(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The properties that all calls of one executor share. host_labels: sorted by name, because the
    order of labels must not make another family. code: the code without the words about where it
    came from, because the same bytes are one family, and other bytes never share an executor."""

    app: str
    queue: str
    project: str = "default"
    gpus: int = 0
    cpus: int | None = None
    memory_bytes: int = 0
    host_labels: dict[str, str] = {}
    code: CodeRef | None = None

    @property
    def name(self) -> str:
        """Return a short, stable name: the app, and a digest of the family."""
        digest = hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:10]
        return f"{self.app[:40]}-{digest}"


class ExecutorLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits at which an executor ends by itself between two calls. 0: no limit.

    idle_seconds: time without a call. calls: number of calls it has run. memory_bytes: its resident
    memory. model_idle_seconds: time without a call of the loaded model, after which the executor
    unloads the model and stays.
    """

    idle_seconds: Elapsed = 60.0
    calls: Count = 0
    memory_bytes: Large = 0
    model_idle_seconds: Elapsed = 60.0


def find_family(spec: FunctionSpec, queue: str) -> Family:
    """Return the family of executors that run calls of `spec`; `queue` is its resolved queue."""
    return Family(
        app=spec.app_name,
        queue=queue,
        project=spec.project,
        gpus=spec.gpus,
        cpus=spec.cpus,
        memory_bytes=spec.memory_bytes,
        host_labels=dict(sorted(spec.host_labels.items())),
        code=None if spec.code is None else spec.code.bare,
    )


class CallCharges(msgspec.Struct, frozen=True, array_like=True):
    """The failures of one call so far, by budget. infra_in_row: infrastructure failures in a row.
    unable_on: ids of hosts that could not import its function, once for each try."""

    retries: int = 0
    watchdog: int = 0
    infra: int = 0
    infra_in_row: int = 0
    unable_on: tuple[str, ...] = ()
