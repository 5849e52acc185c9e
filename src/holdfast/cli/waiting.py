"""The notice that the controller does not answer, printed once for each command."""

from __future__ import annotations

import sys
import threading

from holdfast.client.transport import AnswerWatch

NOTICE_SECONDS = 2.0


class WaitingNotice:
    """Says on stderr, once, that a request has had no answer for `NOTICE_SECONDS`, beyond the time
    that the controller was asked to hold it.

    The time goes on over connections that fail, because a controller that is away refuses each of
    them at once. It ends with the head of an answer, so a quiet stream gives no notice.
    """

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None
        self._said = False

    @property
    def watch(self) -> AnswerWatch:
        """Return the function that a client calls with every request, and with the head of every
        answer."""
        return AnswerWatch(self._ask, self.close)

    def close(self) -> None:
        """Print no notice any more, because the command has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ask(self, held_seconds: float) -> None:
        if self._timer is None and not self._said:
            self._timer = threading.Timer(NOTICE_SECONDS + held_seconds, self._say)
            self._timer.daemon = True
            self._timer.start()

    def _say(self) -> None:
        self._said = True
        sys.stderr.write("holdfast: waiting for the controller…\n")
        sys.stderr.flush()
