"""Take secrets out of a text that leaves the machine: those that are known, and all that looks like
one. A word too many is taken out rather than one too few.

DOCTOR-1  Every byte of a report has gone through `Redaction.take_out`, file names included.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote, urlsplit

MASK = "***"
MIN_SECRET_CHARACTERS = 4
_WORDS = (
    r"password|passwd|passphrase|pwd|secret|token|api[_-]?key|apikey|access[_-]?key|private[_-]?key"
    r"|host[_-]?key|auth[_-]?key|authkey|credential|cookie|dsn"
)
_NAME = re.compile(rf"(?i){_WORDS}|(?:^|_)(?:key|pass|auth|pat|sas)(?:$|_)")
_PLAIN_NAMES = re.compile(
    r"(?i)^(?:PATH|HOME|PWD|OLDPWD|SHELL|USER|LOGNAME|LANG|LANGUAGE|TERM|COLORTERM|HOSTNAME|TZ|EDITOR"
    r"|LC_.*|XDG_.*|.*_?VERSION|TMPDIR|_|.*URL|.*FILE|.*DIR|.*HOST)$"
)
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    # private keys, whole
    (
        re.compile(
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
            re.S,
        ),
        MASK,
    ),
    # https://user:password@host, https://token@host
    (re.compile(r"(\b[a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/@\"'<>]+@"), rf"\1{MASK}@"),
    # a password with a slash in it, which should have been %2F
    (re.compile(r"(\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s:/@\"'<>]*:)[^\s@\"'<>]+@"), rf"\1{MASK}@"),
    (
        re.compile(r"(?i)\b(bearer|basic|digest|negotiate)(\s+)[A-Za-z0-9._~+/=-]{4,}"),
        rf"\1\2{MASK}",
    ),
    # our own: tokens, join tokens, host keys, tokens of jobs
    (re.compile(r"\bhf[a-z]_[A-Za-z0-9._~-]{8,}"), MASK),
    # of others: a prefix of their own, JSON web tokens
    (
        re.compile(
            r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}|\b(?:gh[opsur]|github_pat|glpat|npm|hf|xox[abeprs]|pypi|dckr_pat"
            r"|sk|pk|rk|rpa|shpat|dop_v1|AIza|ya29)[-_.A-Za-z0-9]{16,}"
            r"|\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}\.?[A-Za-z0-9_-]*"
        ),
        MASK,
    ),
)
# name=value, "name": "value" (also as text inside of JSON), --name value, the name is value
_VALUE = r"(\\?\"(?:[^\"\\]|\\(?!\").)*\\?\"|'[^']*'|[^\s\"',;&}\]]+)"
_NAMED: tuple[re.Pattern[str], ...] = (
    re.compile(rf"(?i)(\b[\w.-]*(?:{_WORDS})[\w.-]*\\?[\"']?\s*(?:[:=]|=>)\s*){_VALUE}"),
    re.compile(rf"(?i)(--[\w-]*(?:{_WORDS})[\w-]*[ =]+){_VALUE}"),
    re.compile(rf"(?i)(\b(?:{_WORDS})\s+(?:is|was)\s+){_VALUE}"),
)
_OF_A_FILE = re.compile(r"(?i)(?:file|path|dir|folder)\\?[\"']?\s*(?:[:=]|=>)?\s*$")


def _mask_value(match: re.Match[str]) -> str:
    """Return a name with asterisks for its value, in the value's own quotes; the path of a file is
    no secret."""
    name, value = match[1], match[2]
    if _OF_A_FILE.search(name) or value in ("null", "true", "false", "[", "{"):
        return match[0]
    quotes = re.match(r"\\?[\"']", value)
    mark = quotes[0] if quotes else ""
    return f"{name}{mark}{MASK}{mark}"


class Redaction:
    """Takes known secrets, and what looks like one, out of texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms: set[str] = set()
        for secret in secrets:
            if len(secret) < MIN_SECRET_CHARACTERS:
                continue
            data = secret.encode(errors="surrogateescape")
            plain = base64.b64encode(data).decode().rstrip("=")
            forms |= {
                secret,
                quote(data, safe=""),
                plain,
                plain.replace("+", "-").replace("/", "_"),
            }
            forms.add(secret.replace("\\", "\\\\").replace('"', '\\"'))  # inside of JSON
        self._forms = sorted(forms, key=len, reverse=True)

    def take_out(self, text: str) -> str:
        """Return a text without secrets, each replaced by asterisks."""
        for form in self._forms:
            text = text.replace(form, MASK)
        for rule, mask in _RULES:
            text = rule.sub(mask, text)
        for named in _NAMED:
            text = named.sub(_mask_value, text)
        return text


def find_secrets(environ: Mapping[str, str]) -> set[str]:
    """Return the values of variables that may be secrets: by their names, by a password in an
    address, or because they look random."""
    found: set[str] = set()
    for name, value in environ.items():
        found |= find_passwords(value)
        if _PLAIN_NAMES.match(name) or _is_plain(value):
            continue
        if _NAME.search(name) or _looks_random(value):
            found.add(value)
    return found


def find_passwords(text: str) -> set[str]:
    """Return the passwords of an address, or of a DSN such as `host=… password=…`."""
    found: set[str] = set()
    try:
        parts = urlsplit(text)
        if parts.password:
            found |= {parts.password, unquote(parts.password)}
    except ValueError:
        pass
    for word in re.findall(r"(?i)\bpassword\s*=\s*('[^']*'|\S+)", text):
        found |= {word, word.strip("'")}
    return {one for one in found if len(one) >= MIN_SECRET_CHARACTERS}


def _is_plain(value: str) -> bool:
    """Return whether a value is a switch or a number, which is no secret and occurs everywhere."""
    return value.lower() in ("true", "false", "none", "null", "auto", "default") or (
        len(value) < 6 and value.isdigit()
    )


def _looks_random(value: str) -> bool:
    if len(value) < 12 or any(letter in value for letter in "/ :,;=\n"):
        return False
    return any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
