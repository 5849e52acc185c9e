"""The beat datagram: how a job, in any language, says that its work moved forward.

One JSON object per datagram, sent to the Unix datagram socket named by `HOLDFAST_BEAT_SOCKET`, at
most `MAX_DATAGRAM_BYTES` long:

    {"task": "<value of HOLDFAST_TASK>", "step": 12, "total": 100}

`step` and `total` are optional whole numbers. While the work is inside a named section every
datagram carries `"section": "eval"`, with `"timeout": 600` where the section has one of its own; a
datagram without `section` says that the work is in none. So a lost datagram loses nothing that the
next one does not bring. `"leave": true` beside `section` ends the section and counts its pass for
the learned timeout. `"checkpoint": true` says that a checkpoint lies in the folder
`HOLDFAST_CHECKPOINT_OUT`, with the seconds that the save blocked as `"took"`, and
`"counts": {"frames_in": 7}` brings totals since the start for the controller's metrics, at most
`MAX_COUNTS` of them; such datagrams are no beats.
`"waited": 12.5` is how many seconds the process has waited for other ranks since its start, and
`"checksum": "9f2c"` a fingerprint of what this step computed, which ranks of one `"group"` (none: all
ranks) must have alike.
`"nan_beats": 3` is how many losses in a row were NaN or infinite.
A sender never waits: a datagram that cannot be taken at once is dropped.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.bounds import MAX_FIGURE, Elapsed

MAX_DATAGRAM_BYTES = 2048
MAX_COUNTS = 32
Counts = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[float, Meta(ge=0, le=MAX_FIGURE)]],
    Meta(max_length=MAX_COUNTS),
]
Checksum = Annotated[str, Meta(min_length=1, max_length=64)]


class Beat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One datagram. `task` is a `TaskKey` in text; readers ignore a stale epoch."""

    task: Annotated[str, Meta(max_length=128)]
    step: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    total: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    section: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=30 * 86_400)] | None = None
    leave: bool = False
    checkpoint: bool = False
    took: Annotated[float, Meta(ge=0, le=30 * 86_400)] = 0.0
    counts: Counts = {}
    waited: Elapsed | None = None
    checksum: Checksum | None = None
    group: Annotated[str, Meta(max_length=64)] = ""
    nan_beats: Annotated[int, Meta(ge=0, le=2**53)] | None = None


encode_beat = msgspec.json.Encoder().encode
decode_beat = msgspec.json.Decoder(Beat).decode
