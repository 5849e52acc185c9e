"""The asyncio client."""

from __future__ import annotations

from holdfast.client.asynchronous.checkpoints import AsyncCheckpointMethods
from holdfast.client.asynchronous.jobs import AsyncJobMethods
from holdfast.client.asynchronous.operate import AsyncOperateMethods
from holdfast.client.asynchronous.webhooks import AsyncWebhookMethods


class AsyncClient(
    AsyncJobMethods, AsyncOperateMethods, AsyncWebhookMethods, AsyncCheckpointMethods
):
    """A connection to a controller. One event loop uses it, as an `async with` block or up to
    `close()`.

    Args:
        url, token: the controller and the caller's token; `holdfast.client.locate` finds those
            that are left out.
        timeout_seconds: for one answer.
        retry_seconds: how long lost connections are tried again, for calls where that is harmless.
        ca_file: certificates to trust instead of the system's.
        transport: an `httpx.AsyncBaseTransport`, for tests.

    Raises (every method): the errors of `holdfast.errors`; `Unavailable` when the controller cannot
    be reached.
    """
