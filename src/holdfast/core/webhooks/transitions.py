"""The state machines of webhooks, with notice targets, and of their deliveries: (state, event) → (state,
why the edge exists, what writes it). `core.webhooks.values.judge_try` decides what a try makes of a
delivery."""

from enum import StrEnum

from holdfast.core.transitions import Table, Transition
from holdfast.core.webhooks.values import DeliveryState, WebhookState


class WebhookEvent(StrEnum):
    """An event that moves a webhook on."""

    PAUSE = "pause"
    RESUME = "resume"


class DeliveryEvent(StrEnum):
    """An event that moves a delivery on."""

    DELIVER = "deliver"
    BACK_OFF = "back_off"
    GIVE_UP = "give_up"
    REDELIVER = "redeliver"


_to, _W, _WE = Transition, WebhookState, WebhookEvent
WEBHOOK: Table[WebhookState, WebhookEvent] = {
    (_W.ACTIVE, _WE.PAUSE): _to(
        _W.PAUSED, "a person asked, or its tries fail for good", "pause_webhook: webhooks._pause"
    ),
    (_W.PAUSED, _WE.RESUME): _to(
        _W.ACTIVE,
        "a person asked, or set a notice target anew",
        "resume_webhook, put_notice_target: webhooks.resume_webhook",
    ),
}

_TRY, _AGAIN = "record_tries", "redeliver, redeliver_dead"
_D, _DE = DeliveryState, DeliveryEvent
DELIVERY: Table[DeliveryState, DeliveryEvent] = {
    (_D.PENDING, _DE.DELIVER): _to(_D.DELIVERED, "its receiver took it", _TRY),
    (_D.PENDING, _DE.BACK_OFF): _to(_D.PENDING, "a try failed, and another is due later", _TRY),
    (_D.PENDING, _DE.GIVE_UP): _to(_D.DEAD, "its last try failed (HOOK-2)", _TRY),
    (_D.PENDING, _DE.REDELIVER): _to(_D.PENDING, "a person asked: it waits no longer", _AGAIN),
    (_D.DELIVERED, _DE.REDELIVER): _to(_D.PENDING, "a person asked for it once more", _AGAIN),
    (_D.DEAD, _DE.REDELIVER): _to(_D.PENDING, "a person asked: it starts with no tries", _AGAIN),
}
