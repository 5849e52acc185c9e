# Made from client/asynchronous/client.py by `python -m holdfast.client.generate`.
"""The blocking client."""

from __future__ import annotations

from holdfast.client.synchronous.checkpoints import CheckpointMethods
from holdfast.client.synchronous.jobs import JobMethods
from holdfast.client.synchronous.operate import OperateMethods
from holdfast.client.synchronous.webhooks import WebhookMethods


class Client(JobMethods, OperateMethods, WebhookMethods, CheckpointMethods):
    """A connection to a controller. Threads may share it, in a `with` block or up to
    `close()`.

    Args:
        url, token: the controller and the caller's token; `holdfast.client.locate` finds those
            that are left out.
        timeout_seconds: for one answer.
        retry_seconds: how long lost connections are tried again, for calls where that is harmless.
        ca_file: certificates to trust instead of the system's.
        transport: an `httpx.BaseTransport`, for tests.

    Raises (every method): the errors of `holdfast.errors`; `Unavailable` when the controller cannot
    be reached.
    """
