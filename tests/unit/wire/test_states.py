"""The state of each thing, as every face tells it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.core.arrays.records import ScheduleRecord
from holdfast.core.host_faults import Hindrance
from holdfast.core.records import ProjectRecord, QueueRecord, TokenRecord
from holdfast.core.states import HostState, Hue
from holdfast.core.webhooks.values import WebhookRecord, WebhookState
from holdfast.wire.api import HostView
from holdfast.wire.calls import CallSetView
from holdfast.wire.pools import PoolStatus
from holdfast.wire.states import tell_state

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


def make(kind: Any, **fields: Any) -> Any:
    """A record with these fields. Required fields that are not given are None, because no test of a
    state's words reads them."""
    required = [field.name for field in msgspec.structs.fields(kind) if field.required]
    return kind(**{**dict.fromkeys(required), **fields})


def host(state: HostState, **fields: Any) -> HostView:
    return make(HostView, **{"state": state, "reason": "", "faults": (), **fields})


BROKEN = Hindrance(part="starts", reason="no descriptors")
POOL = {
    "deleted_at": None,
    "paused_at": None,
    "paused_reason": "",
    "blocked": "",
    "quiet_reason": "",
}
QUEUE = {"paused_at": None, "paused_reason": "", "waiting": 0, "queued": 0}
SCHEDULE = {"paused_at": None, "paused_reason": ""}
TOKEN = {"role": "join", "revoked_at": None, "used_at": None, "expires_at": None}
CALLS = {"state": "open", "submitted": 2, "succeeded": 0, "failed": 0, "cancelled": 0, "cut": ""}
TOLD = [
    (host(HostState.ACTIVE), "active", Hue.RUNNING, "", False),
    (host(HostState.ACTIVE, faults=(BROKEN,)), "aside", Hue.DRAINING, "set aside: no descriptors", True),
    (host(HostState.ACTIVE, dead=True), "dead", Hue.FAILED, "no sync came from it lately", True),
    (host(HostState.QUARANTINED, reason="a fan"), "quarantined", Hue.FAILED, "a fan", True),
    (
        host(HostState.DRAINING, reason="a new driver", drain_deadline=NOW + timedelta(minutes=5)),
        "draining", Hue.DRAINING, "its tasks are stopped in 5 min: a new driver", False,
    ),
    (make(PoolStatus, **POOL), "ready", Hue.RUNNING, "", False),
    (make(PoolStatus, **{**POOL, "blocked": "no offer"}), "held", Hue.DRAINING, "no offer", True),
    (
        make(PoolStatus, **{**POOL, "paused_at": NOW, "paused_reason": "too dear", "blocked": "no offer"}),
        "paused", Hue.DRAINING, "too dear", False,
    ),
    (make(QueueRecord, **QUEUE), "open", Hue.RUNNING, "", False),
    (make(QueueRecord, **{**QUEUE, "paused_at": NOW}), "paused", Hue.DRAINING, "", False),
    (
        make(QueueRecord, **{**QUEUE, "paused_at": NOW, "paused_reason": "night", "queued": 2}),
        "paused", Hue.DRAINING, "night; 2 jobs wait in it", True,
    ),
    (make(ProjectRecord, held=""), "open", Hue.RUNNING, "", False),
    (make(ProjectRecord, held="its budget is spent"), "held", Hue.DRAINING, "its budget is spent", True),
    (make(ScheduleRecord, **SCHEDULE), "in force", Hue.RUNNING, "", False),
    (make(ScheduleRecord, **{**SCHEDULE, "paused_at": NOW}), "paused", Hue.DRAINING, "", False),
    (
        make(WebhookRecord, state=WebhookState.PAUSED, reason="it said 410", dead=0),
        "paused", Hue.DRAINING, "it said 410", True,
    ),
    (
        make(WebhookRecord, state=WebhookState.ACTIVE, reason="", dead=1),
        "active", Hue.RUNNING, "1 delivery was given up after the last try", True,
    ),
    (make(TokenRecord, **TOKEN), "in force", Hue.RUNNING, "", False),
    (make(TokenRecord, **{**TOKEN, "used_at": NOW}), "used", Hue.GONE, "", False),
    (make(TokenRecord, **{**TOKEN, "role": "read", "used_at": NOW}), "in force", Hue.RUNNING, "", False),
    (make(TokenRecord, **{**TOKEN, "expires_at": NOW}), "expired", Hue.GONE, "", False),
    (make(CallSetView, **CALLS), "queued", Hue.WAITING, "", False),
    (make(CallSetView, **{**CALLS, "running": True}), "running", Hue.RUNNING, "", False),
    (
        make(CallSetView, **{**CALLS, "state": "ended", "cut": "its client left"}),
        "failed", Hue.FAILED, "its client left", False,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("thing", "word", "hue", "sentence", "needs"), TOLD)
def test_a_thing_has_one_word_one_hue_and_one_sentence(
    thing: Any, word: str, hue: Hue, sentence: str, needs: bool
) -> None:
    told = tell_state(thing, NOW)
    assert (told.word, told.hue, told.sentence, told.needs_person) == (word, hue, sentence, needs)
