"""The process that sends notices by Apprise, one for each controller.

The library and what it loads stay out of the controller, and what it does can be bounded here: an
audit hook sees every connection of the process just before it is made, and refuses those to
addresses that webhooks may not reach either (HOOK-4), after every look-up and redirect. Its
environment has neither proxies nor tokens, and it takes no connection from its parent but a pipe.

Reads one `NoticeOrder` a line on stdin, in JSON, and answers each with one `NoticeOutcome` on stdout, in the order
of their ends.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from holdfast.core.webhooks.targets import as_address, judge_address

MAX_AT_ONCE = 32
_CLASSES = {
    "NotifyDiscord", "NotifyEmail", "NotifyGoogleChat", "NotifyMattermost", "NotifyNtfy", "NotifySlack",
    "NotifyTelegram", "NotifyWorkflows",
}  # fmt: skip
_MAX_ERROR_CHARS = 300
_asked = threading.local()


class NoticeOrder(msgspec.Struct, frozen=True):
    """A message to send. url: the address in the library's form, which is a secret. Without a title
    the url is only checked, and nothing is sent."""

    number: int
    url: str
    title: str = ""
    text: str = ""
    failed: bool = False
    allow_private: bool = False
    seconds: float = 10.0


class NoticeOutcome(msgspec.Struct, frozen=True):
    """The outcome of an order. error: "" where the service accepted the message."""

    number: int
    error: str = ""


class AddressRefused(OSError):
    """Raised where a notice may not connect to an address."""


def judge_connections(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse a connection to an address that may not be reached. This is the process's audit
    hook."""
    if event != "socket.connect":
        return
    address = arguments[1]
    if not isinstance(address, tuple):
        raise AddressRefused("it is no network address")
    found = as_address(str(address[0]))
    if found is None:
        raise AddressRefused(f"{address[0]!r} was not looked up")
    private = getattr(_asked, "allow_private", False)
    reason = judge_address(found, allow_private=private)
    if reason is not None:
        _asked.refused = reason
        raise AddressRefused(f"refused: {reason}")


def send(work: NoticeOrder) -> NoticeOutcome:
    """Send one message, in a thread of its own, and return the outcome."""
    import logging

    import apprise

    lines: list[str] = []
    _asked.allow_private, _asked.refused = work.allow_private, ""
    handler = _Lines(lines, threading.get_ident())
    logger = logging.getLogger("apprise")
    logger.addHandler(handler)
    try:
        asset = apprise.AppriseAsset(
            app_id="Holdfast",
            app_desc="Holdfast",
            app_url="",
            http_redirects=False,
            image_url_mask="",
            image_url_logo="",
        )
        target = apprise.Apprise.instantiate(work.url, asset=asset, suppress_exceptions=True)
        if target is None or type(target).__name__ not in _CLASSES:
            return NoticeOutcome(work.number, "the url is none that its service understands")
        if not work.title:
            return NoticeOutcome(work.number)
        target.socket_connect_timeout = target.socket_read_timeout = work.seconds / 2
        kind = apprise.NotifyType.FAILURE if work.failed else apprise.NotifyType.INFO
        sent = target.notify(body=work.text, title=work.title, notify_type=kind, body_format="text")
        if sent:
            return NoticeOutcome(work.number)
        said = f"refused: {_asked.refused}" if _asked.refused else _find_reason(lines)
        return NoticeOutcome(work.number, _hide(said, work.url)[:_MAX_ERROR_CHARS])
    except Exception as error:
        return NoticeOutcome(
            work.number, _hide(f"{type(error).__name__}: {error}", work.url)[:_MAX_ERROR_CHARS]
        )
    finally:
        logger.removeHandler(handler)


def _find_reason(lines: list[str]) -> str:
    return lines[0] if lines else "the service did not take it"


def _hide(text: str, url: str) -> str:
    """Remove the secret parts of a URL from an error: tokens of the path, and the password."""
    import re

    for part in sorted(set(re.split(r"[/?&=:@#]+", url)), key=len, reverse=True):
        if len(part) >= 6 and "." not in part:
            text = text.replace(part, "***")
    return " ".join(text.split())


def _make_lines_handler() -> type[Any]:
    import logging

    class Lines(logging.Handler):
        def __init__(self, lines: list[str], thread: int) -> None:
            super().__init__(logging.WARNING)
            self._lines, self._thread = lines, thread

        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == self._thread:
                self._lines.append(record.getMessage())

    return Lines


_Lines = _make_lines_handler()


def main() -> None:
    """Answer the orders that arrive on stdin, until it ends."""
    sys.addaudithook(judge_connections)
    lock = threading.Lock()
    decoder = msgspec.json.Decoder(NoticeOrder)

    def answer(work: NoticeOrder) -> None:
        line = msgspec.json.encode(send(work)) + b"\n"
        with lock:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    with ThreadPoolExecutor(MAX_AT_ONCE) as pool:
        for line in sys.stdin.buffer:
            pool.submit(answer, decoder.decode(line))


if __name__ == "__main__":
    main()
