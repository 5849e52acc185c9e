"""The operations on agents."""

from typing import Annotated

from msgspec import Meta

from holdfast.wire.agent import (
    CheckpointOffer,
    CheckpointSkip,
    CheckpointStored,
    ControllersAnswer,
    Forensics,
    RegisterAnswer,
    RegisterRequest,
    SyncAnswer,
    SyncRequest,
)
from holdfast.wire.data.bundles import MissingAnswer
from holdfast.wire.data.caches import CachesReport
from holdfast.wire.data.outputs import OutputsMissing, OutputsStored
from holdfast.wire.health import HealthAnswer, HealthRequest
from holdfast.wire.logs.uploads import LogsAnswer
from holdfast.wire.operations.operation import Operation, Query, Role
from holdfast.wire.operations.queries import JobId, Number, Rank, Step

_BYTES = ("application/octet-stream",)


class AgentCheckpointQuery(Query, frozen=True, kw_only=True):
    """The task whose checkpoint is sent or fetched. incarnation: the host's incarnation, as in
    every sync. number: the number of the checkpoint to fetch."""

    job: JobId
    rank: Rank
    epoch: Number
    incarnation: Annotated[str, Meta(min_length=8, max_length=64)]
    step: Step | None = None
    number: Number | None = None


class AgentBundleQuery(Query, frozen=True, kw_only=True):
    """The task whose bundle is fetched. incarnation: that of the host, as in every sync."""

    job: Annotated[str, Meta(min_length=1, max_length=64)]
    rank: Annotated[int, Meta(ge=0, le=65_535)]
    epoch: Annotated[int, Meta(ge=1, le=2**62)]
    incarnation: Annotated[str, Meta(min_length=8, max_length=64)]


class AgentOutputsQuery(Query, frozen=True, kw_only=True):
    """The task whose outputs are sent. incarnation: that of the host, as in every sync."""

    job: Annotated[str, Meta(min_length=1, max_length=64)]
    rank: Annotated[int, Meta(ge=0, le=65_535)]
    epoch: Annotated[int, Meta(ge=1, le=2**62)]
    attempt: Annotated[int, Meta(ge=1, le=2**30)]
    incarnation: Annotated[str, Meta(min_length=8, max_length=64)]


class CallCheckpointQuery(Query, frozen=True, kw_only=True):
    """The executor's task, and the call that it runs: a batch and a position in it."""

    job: JobId
    rank: Rank
    epoch: Number
    batch: Number
    position: Annotated[int, Meta(ge=0, le=2**31)]


SYNC = Operation(
    "POST", "/v1/agent/sync", Role.HOST, "State up, commands down: a long poll.", body=SyncRequest,
    answers={200: SyncAnswer}
)  # fmt: skip
APPEND_LOGS = Operation(
    "POST", "/v1/agent/logs", Role.HOST, "Bytes of streams, a LogsRequest in msgpack.", raw=True,
    answers={200: LogsAnswer}
)  # fmt: skip
PUT_FORENSICS = Operation(
    "POST", "/v1/agent/forensics", Role.HOST, "What was gathered before a kill.", body=Forensics,
    answers={204: None}
)  # fmt: skip
REGISTER = Operation(
    "POST", "/v1/agent/register", Role.JOIN, "A new host, or a new incarnation of one.",
    body=RegisterRequest, answers={200: RegisterAnswer}
)  # fmt: skip
PUT_AGENT_CHECKPOINT = Operation(
    "PUT", "/v1/agent/checkpoint", Role.HOST, "What a task saved; the body is the bytes.",
    query=AgentCheckpointQuery, raw=True, media_in=_BYTES, answers={200: CheckpointStored}
)  # fmt: skip
GET_AGENT_CHECKPOINT = Operation(
    "GET", "/v1/agent/checkpoint", Role.HOST, "What an earlier attempt of a rank left.",
    query=AgentCheckpointQuery, media=_BYTES, answers={200: None}
)  # fmt: skip
SKIP_AGENT_CHECKPOINT = Operation(
    "POST", "/v1/agent/checkpoint/skip", Role.HOST,
    "What was offered cannot be used: the one before.", body=CheckpointSkip,
    answers={200: CheckpointOffer}
)  # fmt: skip
LIST_CONTROLLERS = Operation(
    "POST", "/v1/agent/controllers", Role.HOST,
    "The addresses at which the cluster's controllers serve.", answers={200: ControllersAnswer}
)  # fmt: skip
PUT_HEALTH = Operation(
    "POST", "/v1/agent/health", Role.HOST, "What a host's check measured, and which is due.",
    body=HealthRequest, answers={200: HealthAnswer}
)  # fmt: skip
PUT_CACHES = Operation(
    "POST", "/v1/agent/caches", Role.HOST, "The caches that are warm on a host.",
    body=CachesReport, answers={204: None}
)  # fmt: skip
EXCHANGE = Operation(
    "POST", "/v1/agent/calls", Role.HOST,
    "A host's executors: ends up, batches down, msgpack both ways: a long poll.", raw=True,
    media=("application/msgpack",), answers={200: None}
)  # fmt: skip
PUT_CALL_CHECKPOINT = Operation(
    "PUT", "/v1/agent/call-checkpoint", Role.HOST,
    "What a running call saved; the body is the bytes.", query=CallCheckpointQuery, raw=True,
    media_in=_BYTES, answers={204: None}
)  # fmt: skip
GET_CALL_CHECKPOINT = Operation(
    "GET", "/v1/agent/call-checkpoint", Role.HOST,
    "What an earlier attempt of a running call saved.", query=CallCheckpointQuery, media=_BYTES,
    answers={200: None}
)  # fmt: skip
PUT_VALUE = Operation(
    "PUT", "/v1/agent/values/{sha256}", Role.HOST,
    "Keep a large result of a call; the body is the bytes.", raw=True, media_in=_BYTES,
    answers={204: None}
)  # fmt: skip
GET_VALUE = Operation(
    "GET", "/v1/agent/values/{sha256}", Role.HOST, "A large argument of a call.", media=_BYTES,
    answers={200: None}
)  # fmt: skip
GET_AGENT_PLAN = Operation(
    "GET", "/v1/agent/bundles/{digest}", Role.HOST,
    "The manifest of a task's code, and the places of its bytes.", query=AgentBundleQuery,
    media=_BYTES, answers={200: None}
)  # fmt: skip
GET_AGENT_PACK = Operation(
    "GET", "/v1/agent/bundles/{digest}/packs/{pack}", Role.HOST, "A pack of a task's code.",
    query=AgentBundleQuery, media=_BYTES, answers={200: None}
)  # fmt: skip
FIND_MISSING_OUTPUTS = Operation(
    "POST", "/v1/agent/outputs/missing", Role.HOST,
    "Which digests the project of a task has no bytes of.", query=AgentOutputsQuery,
    body=OutputsMissing, answers={200: MissingAnswer}
)  # fmt: skip
PUT_OUTPUTS_PACK = Operation(
    "PUT", "/v1/agent/outputs/packs", Role.HOST,
    "Keep a pack of a task's outputs; the body is its bytes.", query=AgentOutputsQuery, raw=True,
    media_in=_BYTES, answers={204: None}
)  # fmt: skip
PUT_OUTPUTS = Operation(
    "PUT", "/v1/agent/outputs", Role.HOST,
    "What a host says of a task's outputs, an OutputsReport in msgpack.", query=AgentOutputsQuery,
    raw=True, answers={200: OutputsStored}
)  # fmt: skip
