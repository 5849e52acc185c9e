"""The URLs of notice targets: a fixed list of services, and the options that a URL may carry. Pure.

NOTICE-2  A URL may name no file and no second address: only the options of `_OPTIONS` are taken,
          because others make the library read a file of the controller (`template`), skip a
          certificate's check (`verify`) or keep data on its disk (`store`). Every connection is
          judged again where it is made (`controller.runtime.senders.notice_child`).
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from holdfast.core.webhooks.targets import MAX_URL_CHARS
from holdfast.errors import ValidationError

SERVICES = {
    "discord": "Discord",
    "gchat": "Google Chat",
    "mailto": "mail, without TLS",
    "mailtos": "mail",
    "mmost": "Mattermost, without TLS",
    "mmosts": "Mattermost",
    "ntfy": "ntfy, without TLS",
    "ntfys": "ntfy",
    "slack": "Slack",
    "tgram": "Telegram",
    "workflows": "Teams",
}
"""The scheme of a target's URL → its service."""
_PLAIN = frozenset({"mailto", "mmost", "ntfy"})
_NATIVE = (
    (r"hooks\.slack\.com", "Slack"),
    (r"(www\.)?discord(app)?\.com", "Discord"),
    (r"chat\.googleapis\.com", "Google Chat"),
    (r"([a-z0-9-]+\.)+logic\.azure\.com", "Teams"),
    (r"([a-z0-9-]+\.)+api\.powerplatform\.com", "Teams"),
)
# The first line is about mail, the last about the addresses that Teams and Google Chat give out.
_OPTIONS = frozenset(
    [
        *("to", "cc", "bcc", "from", "name", "reply", "smtp", "mode", "user", "pass"),
        *("format", "priority", "tags", "thread", "image", "avatar", "footer", "auth", "token"),
        *("api-version", "sp", "sv", "sig", "key"),
    ]
)
_VISIBLE = re.compile(r"[\x21-\x7e]+")


def name_service(url: str, *, allow_private: bool) -> str:
    """Return the service that a target's URL sends to. Raises ValidationError for a URL that cannot
    be used; its words never repeat the URL, which is a secret."""
    if len(url) > MAX_URL_CHARS or not _VISIBLE.fullmatch(url):
        raise _refuse(
            f"one of visible ASCII characters, at most {MAX_URL_CHARS}; encode others with %"
        )
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        raise _refuse("a URL") from None
    scheme = parts.scheme.lower()
    if scheme == "https":
        found = next((name for host_, name in _NATIVE if re.fullmatch(host_, host)), None)
    else:
        found = SERVICES.get(scheme)
    if found is None:
        schemes = ", ".join(f"{one}://" for one in SERVICES)
        raise _refuse(
            f"one of {schemes}, or an https:// address of Slack, Discord, Google Chat or Teams"
        )
    plain = scheme in _PLAIN and not (scheme == "ntfy" and not parts.path.strip("/"))
    if plain and not allow_private:
        raise _refuse(
            f"one with TLS ({scheme}s://); without it needs the setting webhook_allow_private"
        )
    strange = sorted(
        {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} - _OPTIONS
    )
    if strange:
        raise _refuse(
            f"one without the option {strange[0][:32]!r}; it may have {', '.join(sorted(_OPTIONS))}"
        )
    return found


def _refuse(what: str) -> ValidationError:
    return ValidationError(f"the url of a notice target is {what}", field="url")
