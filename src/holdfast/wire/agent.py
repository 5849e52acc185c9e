"""Agent ↔ controller: JSON over HTTP, agents dial out.

An agent calls `POST /v1/agent/register` once per incarnation, and `POST /v1/agent/sync` from then
on: one idempotent long poll that sends the host's state and returns commands. A command repeats
until the agent reports the state that it orders. Log bytes and forensics have calls of their own,
`POST /v1/agent/logs` and `POST /v1/agent/forensics`, so that they never delay a heartbeat. So have
checkpoints: `PUT` and `GET /v1/agent/checkpoint?job=&rank=&epoch=&incarnation=`, with the bytes as
body. A PUT adds `&step=` and the header `Holdfast-Sha256`, and is answered by `CheckpointStored`; a
GET adds `&number=`. `POST /v1/agent/checkpoint/skip` asks for the checkpoint before.

`logs` takes a `LogsRequest` as msgpack (`application/msgpack`; log bytes need no base64) and
answers with a `LogsAnswer` as JSON. All other bodies are JSON.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.bounds import MAX_LARGE, Count, Elapsed, Figure, Instant, Large, MemoryBytes, Whole
from holdfast.core.bundles.code import CodeRef
from holdfast.core.calls.values import ExecutorLimits
from holdfast.core.causes import Cause
from holdfast.core.facts import TaskFacts
from holdfast.core.gpus import Gpu, GpuTelemetry
from holdfast.core.host_faults import Hindrance
from holdfast.core.ids import TaskKey
from holdfast.core.ledger.tally import Tally
from holdfast.core.readings.usage import RankUsage
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.spec import Name, ShortText
from holdfast.core.stragglers.agree import StepChecksums
from holdfast.core.stragglers.values import PaceText
from holdfast.wire.beat import Counts
from holdfast.wire.data.outputs import OutputsOrder
from holdfast.wire.sessions.messages import SessionOrder

MAX_SYNC_BYTES = 8 * 1024 * 1024
MAX_LOG_CHUNK_BYTES = 1024 * 1024
MAX_FORENSICS_BYTES = 2 * 1024 * 1024
MAX_WAIT_SECONDS = 30.0
MAX_UNREAD = 64
MAX_REPORTS = 65_536


class AgentMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Root of the messages. Unknown fields are ignored, so that versions one apart can talk."""


class HostFacts(AgentMessage, frozen=True, kw_only=True):
    """A host's description of itself at registration.

    cpu_slots: number of CPU tasks it runs at once. queues: the queues it serves; empty: all.
    address: the address at which other hosts of a gang reach it (`agent --advertise`). pool: its
    pool, or "". probe: "real", or "scripted" in tests; a scripted probe is shown wherever the host
    is. memory_limits: how a task over its memory limit is ended: by its control group, or by the
    agent's watch. boot_id: the id of its kernel's boot (`/proc/sys/kernel/random/boot_id`).
    """

    name: Name
    cpu_slots: Annotated[int, Meta(ge=0, le=65_536)] = 1
    memory_bytes: MemoryBytes = 0
    gpus: Annotated[list[Gpu], Meta(max_length=1024)] = []
    queues: Annotated[list[Name], Meta(max_length=256)] = []
    labels: Annotated[dict[Name, ShortText], Meta(max_length=64)] = {}
    pool: Name | Literal[""] = ""
    address: ShortText = "127.0.0.1"
    version: ShortText = ""
    probe: Literal["real", "scripted"] = "real"
    memory_limits: Literal["group", "watch", ""] = ""
    boot_id: Annotated[str, Meta(max_length=64)] = ""


class RegisterRequest(AgentMessage, frozen=True, kw_only=True):
    """The request to register, with a join token (a host key comes back) or with the host key.

    claim: a random word that the agent stores before its first try. A spent token that comes again
    with the same claim gets a key again, so a lost answer costs no new token.
    faults: as in SyncRequest. held: tasks of earlier incarnations whose containers may still run;
    they keep their leases, as on a silent host. intent: the id of the host for which a pool rented
    this machine; "" where no pool rented it. earlier: incarnations that this host announced before,
    newest first, also those that were never answered, so that their late registrations free nothing
    (LEASE-3).
    """

    incarnation: Annotated[str, Meta(min_length=8, max_length=64)]
    facts: HostFacts
    claim: Annotated[str, Meta(max_length=64)] = ""
    intent: Annotated[str, Meta(max_length=128)] = ""
    faults: Annotated[list[Hindrance], Meta(max_length=16)] = []
    held: Annotated[list[TaskKey], Meta(max_length=4096)] = []
    earlier: Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=16)] = []


class RegisterAnswer(AgentMessage, frozen=True, kw_only=True):
    """`host_key` answers a join token; it is shown once, and only its hash is stored."""

    host_id: str
    host_key: str | None = None
    sync_interval_seconds: Elapsed = 5.0


MAX_STILL_CHARS = 1024


class ControllersAnswer(AgentMessage, frozen=True, kw_only=True):
    """The addresses at which the cluster's controllers serve, as each names its own."""

    urls: Annotated[list[ShortText], Meta(max_length=64)] = []


class BeatReport(AgentMessage, frozen=True, kw_only=True):
    """The last beat of a task. `age_seconds` avoids comparing two machines' clocks. rate: its steps in
    a second of the last five minutes. still_seconds: since its step last moved forward. nan_beats:
    losses in a row that were not finite."""

    step: Large | None = None
    total: Large | None = None
    age_seconds: Elapsed = 0.0
    section: ShortText | None = None
    rate: Figure | None = None
    still_seconds: Elapsed | None = None
    nan_beats: Count = 0


class TaskReport(AgentMessage, frozen=True, kw_only=True, gc=False):
    """The state of one task, as its agent knows it.

    state: "claimed" is a rank of a gang for which the host keeps a place and which waits for the
    others (the start barrier). port: with "claimed", from rank 0: a free port of this host for the
    rendezvous. facts: set exactly with "ended", until the end is acknowledged. counts: totals since
    the start that a policy script reports for metrics, so a lost report loses nothing.
    section_seconds: for a rank that has announced sections, how long its present section excuses
    other ranks from now on, 0 outside of any. waits: the rank is in no section, and has been silent
    for so long that another rank's section has to excuse it (EXCUSE-1). tally: what it spent its
    time on, about once a minute; that of an ended task is among its facts. broken: its first step
    and that of its checkpoint, where the first is lower (UNSAVED-2). pace, checksums: a gang's
    rank's since the last one. still: why its work seems to stand still; "" where it does not.
    """

    key: TaskKey
    state: Literal["claimed", "starting", "running", "ended"]
    pid: Count = 0
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    beat: BeatReport | None = None
    facts: TaskFacts | None = None
    counts: Counts = {}
    section_seconds: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    waits: bool = False
    tally: Tally | None = None
    broken: tuple[Large, Large] | None = None
    pace: PaceText = ""
    checksums: StepChecksums = []
    still: Annotated[str, Meta(max_length=MAX_STILL_CHARS)] = ""


class SyncRequest(AgentMessage, frozen=True, kw_only=True):
    """The state of a host, as its agent sends it in every sync.

    seq: a number that grows with every call of one agent; a newer call makes an older waiting one
    return at once. wait_seconds: how long the answer may wait for a command; 0: not at all.
    settings_rev: the revision of the settings that the agent uses. leaving: the host shuts down.
    faults: every ability that the host lacks now. gpus: the last readings of its devices; empty
    where there are none.
    strain: in words, what may slow its tasks down. sent_at: the host's clock;
    round_trip: the shortest time that a sync lately took, without its wait at the controller.
    ranks: the readings of its tasks that no sync told before.
    """

    incarnation: Annotated[str, Meta(min_length=8, max_length=64)]
    seq: Large = 0
    tasks: Annotated[list[TaskReport], Meta(max_length=MAX_REPORTS)] = []
    wait_seconds: Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS)] = 0.0
    settings_rev: Large = 0
    leaving: bool = False
    faults: Annotated[list[Hindrance], Meta(max_length=16)] = []
    gpus: Annotated[list[GpuTelemetry], Meta(max_length=1024)] = []
    strain: ShortText = ""
    sent_at: Instant = 0.0
    round_trip: Elapsed | None = None
    ranks: Annotated[list[RankUsage], Meta(max_length=MAX_REPORTS)] = []


class ClaimOrder(AgentMessage, frozen=True, kw_only=True):
    """The order to keep a place for a rank of a gang and to report that; nothing starts yet
    (GANG-1)."""

    key: TaskKey
    attempt: Count
    ttl_seconds: Elapsed = 300.0


class RankPeer(AgentMessage, frozen=True, kw_only=True):
    """A rank of a gang and its host, with the address by which others reach it."""

    rank: Count
    host: str
    address: str


class GangHost(AgentMessage, frozen=True, array_like=True):
    """A host of a gang and its address; an array, because every host learns of every other."""

    name: str
    address: str


class Gang(AgentMessage, frozen=True, kw_only=True):
    """The hosts of a gang's ranks, once per answer, because every order would repeat them.

    hosts: in the order of their first ranks. places: for each rank an index of `hosts`, -1 where
    the rank has no host now.
    """

    job_id: str
    epoch: Large
    hosts: list[GangHost]
    places: list[Whole]

    def list_peers(self) -> list[RankPeer]:
        """Return every rank that has a host, in order."""
        count = len(self.hosts)
        return [
            RankPeer(rank=rank, host=self.hosts[place].name, address=self.hosts[place].address)
            for rank, place in enumerate(self.places)
            if 0 <= place < count
        ]


class CheckpointOffer(AgentMessage, frozen=True, kw_only=True):
    """An earlier attempt's checkpoint, to be fetched with `GET /v1/agent/checkpoint` first."""

    number: Large
    size: Large
    sha256: str
    step: Large | None = None


class AlikeTask(AgentMessage, frozen=True, array_like=True, gc=False):
    """The fields in which a further task of a `LaunchOrder` differs. It is sent as an array,
    because there may be hundreds."""

    key: TaskKey
    attempt: Count
    gpus: list[Count]
    ttl_seconds: Elapsed


class LaunchOrder(AgentMessage, frozen=True, kw_only=True):
    """The order to run a task. env: the user's variables; the agent adds HOLDFAST_*, devices and
    torchrun's.

    ttl_seconds: lease, from the *start* of the sync that brought the order (LEASE-1). attempt: from
    1. gpus: device indices on this host. visible_gpus: the devices that the task sees, where these
    are more: with one device a rank, those of all the gang's ranks on this host in their order, so
    that LOCAL_RANK is the index of the rank's own.
    local_rank … group_world_size: the rank's number among those on this host, and this host's among
    the gang's hosts, as torchrun counts.
    master_addr, master_port: the rendezvous on rank 0's host; port 0: the task runs alone, and the
    agent picks a port.
    checkpoint: an earlier attempt's checkpoint; up to `inline_bytes` of it also go into
    CHECKPOINT_DATA. image … pull_seconds: for a task in a container; see JobSpec, also
    for caches, mounts and outputs. An empty argv
    then means the image's own command.
    executor: the family of calls that it runs; argv is then empty, and the agent runs the executor
    of `app` with `limits`.
    falls_together: every rank of the attempt is on this host, and where one falls the agent stops
    the others at once (FALL-1).
    code: what is laid into the work folder first. setup … setup_seconds, fail_on: see JobSpec.
    also: further tasks that this order launches. stdin: the SHA-256 of the value that the task
    reads as its standard input.
    """

    key: TaskKey
    attempt: Count
    name: str
    queue: str
    project: str
    argv: list[str]
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    cwd: str | None = None
    fresh_workdir: bool = False
    fail_on: str = ""
    shell: str | None = None
    gpus: list[Count] = []
    visible_gpus: list[Count] = []
    memory_bytes: Large = 0
    world_size: Count = 1
    local_rank: Count = 0
    local_world_size: Count = 1
    group_rank: Count = 0
    group_world_size: Count = 1
    master_addr: str = "127.0.0.1"
    master_port: Count = 0
    checkpoint: CheckpointOffer | None = None
    inline_bytes: Large = 0
    image: str | None = None
    runtime: Literal["podman", "docker"] | None = None
    pull: Literal["missing", "always", "never"] = "missing"
    volumes: list[str] = []
    pull_seconds: Elapsed = 1800.0
    caches: list[str] = []
    mounts: list[str] = []
    outputs: OutputsOrder | None = None
    ttl_seconds: Elapsed = 300.0
    watch: WatchSettings = WatchSettings()
    executor: str = ""
    app: str = ""
    limits: ExecutorLimits = ExecutorLimits()
    falls_together: bool = False
    also: list[AlikeTask] = []
    stdin: Annotated[str, Meta(max_length=64)] = ""

    code: CodeRef | None = None
    setup: str | None = None
    setup_files: list[str] = []
    python: str | None = None
    setup_seconds: Elapsed = 3600.0
    terminal: bool = False

    @property
    def fetches(self) -> bool:
        """Return whether code, a checkpoint or an input must be fetched, or a bucket mounted, before
        the task starts."""
        return bool(self.checkpoint or self.stdin or self.mounts or self.code)

    @property
    def makes_environment(self) -> bool:
        """Return whether a Python environment is made before the task's program starts."""
        return self.setup is not None or self.python is not None

    def list_all(self) -> list[LaunchOrder]:
        """Return an order for each task."""
        if not self.also:
            return [self]
        first = msgspec.structs.replace(self, also=[])
        others = [
            msgspec.structs.replace(
                first, key=a.key, attempt=a.attempt, gpus=a.gpus, ttl_seconds=a.ttl_seconds
            )
            for a in self.also
        ]
        return [first, *others]


class PreemptOrder(AgentMessage, frozen=True, kw_only=True):
    """The order to stop a task: TERM, grace, KILL; `hard` kills at once. It repeats until the
    task's end is reported.

    operator_stop: an operator switched the host or queue off, hard; the trip of that watchdog (exit
    code 79) goes on record.
    """

    key: TaskKey
    grace_seconds: Elapsed
    cause: Cause
    reason: str = ""
    hard: bool = False
    operator_stop: bool = False


class CheckpointStored(AgentMessage, frozen=True, kw_only=True):
    """The answer to a stored checkpoint: it is on record under this number."""

    number: Large


class CheckpointSkip(AgentMessage, frozen=True, kw_only=True):
    """The report that an offered checkpoint cannot be used, because its bytes differ or are gone
    (`POST /v1/agent/checkpoint/skip`). The answer is a `CheckpointOffer` of the next older one of
    this rank, or 404."""

    key: TaskKey
    incarnation: Annotated[str, Meta(min_length=8, max_length=64)]
    number: Annotated[int, Meta(ge=1, le=MAX_LARGE)]
    reason: Annotated[str, Meta(max_length=2048)] = ""


class Renewed(AgentMessage, frozen=True, kw_only=True):
    """A renewed lease: it runs `ttl_seconds` from the start of this sync."""

    key: TaskKey
    ttl_seconds: Elapsed


class RefusedReport(AgentMessage, frozen=True, kw_only=True):
    """A report that changed nothing, because its epoch or host is not the current one (FENCE-1)."""

    key: TaskKey
    status: Count = 409
    code: str = "stale_epoch"


class NewWatch(AgentMessage, frozen=True, kw_only=True):
    """The changed settings of a task's watchdogs, which hold from now on."""

    key: TaskKey
    watch: WatchSettings


class LogReadOrder(AgentMessage, frozen=True, kw_only=True):
    """The order to send bytes `[offset, offset + length)` of a task's output, from its file on this
    host, for one reader. It repeats until `LogsRequest.reads` answers it."""

    id: str
    key: TaskKey
    stream: Literal["stdout", "stderr"]
    offset: Large
    length: Large


class Excused(AgentMessage, frozen=True, array_like=True):
    """An excuse for a rank that waits for another one in a section (EXCUSE-1). seconds: how long it
    holds, from the start of this sync."""

    key: TaskKey
    seconds: Elapsed


class SyncAnswer(AgentMessage, frozen=True, kw_only=True):
    """The commands to a host, as the answer to its sync.

    claim, launch, preempt, renewed, watch, reads, sessions, excused: orders, one struct each. gangs: the
    gangs of the tasks in `launch`. lost: tasks that the controller does not know on this host; the
    agent ends them (watchdog exit 77). acked: ends that are on record; the agent forgets them.
    refused: ends that were stale; the agent forgets them too. unread: reports of this sync that
    could not be read and were left out, and why. fenced: why this host is in error; no lease is
    renewed then, so its tasks end with their leases. held_seconds: the call's time there.
    """

    claim: list[ClaimOrder] = []
    launch: list[LaunchOrder] = []
    gangs: list[Gang] = []
    preempt: list[PreemptOrder] = []
    renewed: list[Renewed] = []
    lost: list[TaskKey] = []
    acked: list[TaskKey] = []
    refused: list[RefusedReport] = []
    watch: list[NewWatch] = []
    reads: list[LogReadOrder] = []
    sessions: list[SessionOrder] = []
    unread: list[str] = []
    fenced: str = ""
    excused: list[Excused] = []
    held_seconds: Elapsed = 0.0
    settings_rev: Large = 0
    sync_interval_seconds: Elapsed = 5.0


class Forensics(AgentMessage, frozen=True, kw_only=True):
    """Evidence gathered before a kill, bounded in time and size. `sections` maps a title to text."""

    key: TaskKey
    reason: str
    seconds: Elapsed
    sections: dict[str, str]


encode = msgspec.json.Encoder().encode
decode_controllers_answer = msgspec.json.Decoder(ControllersAnswer).decode
decode_register_answer = msgspec.json.Decoder(RegisterAnswer).decode
decode_sync_answer = msgspec.json.Decoder(SyncAnswer).decode
decode_checkpoint_stored = msgspec.json.Decoder(CheckpointStored).decode
decode_checkpoint_offer = msgspec.json.Decoder(CheckpointOffer).decode
