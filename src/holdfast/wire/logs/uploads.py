"""Messages with output of tasks: those that a host sends, and the answer to a reader of its disk."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.bounds import Large
from holdfast.core.ids import TaskKey


class LogUpload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes `[offset, offset + len(data))` of a stream, secrets masked by as many asterisks.

    An offset beyond the last leaves a gap. ended: nothing follows; `data` may then be empty.
    """

    key: TaskKey
    stream: Literal["stdout", "stderr"]
    offset: Large
    data: bytes = b""
    ended: bool = False


class LogReadAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to a `LogReadOrder`. Bytes of its range before `offset` are not on this host any
    more. Without data none of the range is here, and if `offset` is the order's own, no later bytes
    are either. reason: why."""

    id: Annotated[str, Meta(max_length=64)]
    offset: Large
    data: bytes = b""
    reason: Annotated[str, Meta(max_length=2048)] = ""


class LogsRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Uploads of any tasks of this host, in order, and answers to readers. Together at most
    `MAX_LOG_CHUNK_BYTES`."""

    uploads: Annotated[list[LogUpload], Meta(max_length=4096)] = []
    reads: Annotated[list[LogReadAnswer], Meta(max_length=64)] = []


class LogsAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to uploads of logs. refused: tasks whose logs the agent must not send, because no
    such attempt ran on its host."""

    refused: list[TaskKey] = []


encode_logs = msgspec.msgpack.Encoder().encode
decode_logs_answer = msgspec.json.Decoder(LogsAnswer).decode
