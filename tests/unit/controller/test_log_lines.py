"""What of the HTTP server's own lines reaches the log."""

import asyncio
import logging

import pytest

from holdfast.controller.log_lines import set_up_logging


@pytest.mark.parametrize(
    ("error", "told"), [(asyncio.CancelledError(), False), (RuntimeError("a bug"), True)]
)
def test_a_stream_that_a_stop_cancels_is_no_fault(
    error: BaseException, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stop ends streams that are still open; a bug is logged."""
    set_up_logging("text")
    logging.getLogger("uvicorn.error").error("Exception in ASGI application", exc_info=error)
    assert (type(error).__name__ in capsys.readouterr().err) == told
