"""The Python SDK: `Client` and `AsyncClient` do what the CLI does.

    from holdfast.client import Client

    with Client() as holdfast:                      # finds a local `holdfast up`, or HOLDFAST_URL
        job = holdfast.submit(["python", "train.py"], gpus=1)
        for data in holdfast.logs(job.id, follow=True):
            sys.stdout.buffer.write(data)
        print(holdfast.wait(job.id).state)
        holdfast.run(["python", "eval.py"], retry={"max_retries": 3, "retry_delay": "30s"})

Failures are the errors of `holdfast.errors`, with the controller's own sentence.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client.asynchronous import AsyncClient
    from holdfast.client.locate import ControllerPlace, locate
    from holdfast.client.synchronous import Client
    from holdfast.core.retry import RetryFields, RetryPolicy
    from holdfast.core.spec import JobSpec
    from holdfast.errors import JobFailed

__all__ = [
    "AsyncClient",
    "Client",
    "ControllerPlace",
    "JobFailed",
    "JobSpec",
    "RetryFields",
    "RetryPolicy",
    "locate",
]

_HOMES = {
    "AsyncClient": "holdfast.client.asynchronous",
    "Client": "holdfast.client.synchronous",
    "ControllerPlace": "holdfast.client.locate",
    "JobFailed": "holdfast.errors",
    "JobSpec": "holdfast.core.spec",
    "RetryFields": "holdfast.core.retry",
    "RetryPolicy": "holdfast.core.retry",
    "locate": "holdfast.client.locate",
}


def __getattr__(name: str) -> Any:
    # Imported late, because asyncio takes longer to import than all of `holdfast --help` may.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
