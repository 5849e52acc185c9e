"""Pulls: one at a time per image and host, a few at once, with progress, and with the registry's
own words when they fail.

PULL-1  Who wants an image holds its lock while it looks and pulls. Whoever waited for the lock
        takes over what the holder's pull came to, good or bad, instead of pulling again. A holder
        that was killed left no word, and the next one pulls.
PULL-2  Locks are the kernel's (`flock`): a killed process holds none.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re

import msgspec

_MAX_WORDS = 1500
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@\"']+@")
_BEARER = re.compile(
    r"(?i)\b(bearer|basic|token[=:]|password[=:]|signature=|x-amz-[a-z-]+=)\s*[A-Za-z0-9._~+/=%-]{8,}"
)
_RETRYING = re.compile(r"retrying in")
_PODMAN_LAYER = re.compile(r"Copying blob (?:sha256:)?([0-9a-f]{8,64})")
_DOCKER_LAYER = re.compile(
    r"^([0-9a-f]{12}): (Pulling fs layer|Waiting|Already exists|Downloading|Verifying "
    r"Checksum|Download complete|Extracting"
    r"|Pull complete)"
)
_MISSING = re.compile(
    r"no such image|image not known|no such object|not found: image", re.IGNORECASE
)
_AWAY = re.compile(
    r"cannot connect to the docker daemon|failed to connect to the docker api", re.IGNORECASE
)  # until 28, and after
_UNRESOLVED = re.compile(r"short-name .* did not resolve", re.DOTALL)


class PullOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a pull came to. at: CLOCK_BOOTTIME of its end. error: "" for a good one."""

    at: float
    error: str = ""


class ImageLock:
    """The right to pull one image on this host (PULL-1)."""

    def __init__(self, folder: str, image: str) -> None:
        """Open it. Raises OSError."""
        name = hashlib.sha256(image.encode()).hexdigest()[:32]
        self._fd = os.open(f"{folder}/image-{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def try_take(self) -> bool:
        """Take it if nobody has it."""
        return _try_flock(self._fd)

    def read_outcome(self, since: float) -> PullOutcome | None:
        """What a pull that ended after `since` came to."""
        try:
            outcome = msgspec.json.decode(os.pread(self._fd, 1 << 16, 0), type=PullOutcome)
        except (OSError, msgspec.MsgspecError):
            return None
        return outcome if outcome.at >= since else None

    def note_outcome(self, outcome: PullOutcome) -> None:
        """Leave word for those who wait. Raises OSError."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, msgspec.json.encode(outcome), 0)

    def close(self) -> None:
        """Let go."""
        os.close(self._fd)


def try_take_slot(folder: str, count: int) -> int | None:
    """Take one of the `count` rights to pull anything on this host: a descriptor to close
    afterwards. Raises OSError."""
    for number in range(count):
        fd = os.open(f"{folder}/slot-{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if _try_flock(fd):
            return fd
        os.close(fd)
    return None


def _try_flock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_missing(text: str) -> bool:
    """Whether a runtime says that an image is not on this host."""
    return bool(_MISSING.search(text))


def is_engine_away(text: str) -> bool:
    """Whether docker's client says that nobody answers it."""
    return bool(_AWAY.search(text))


def qualify(image: str, text: str) -> str | None:
    """The name to try where podman, unlike docker, has no registry for a short one; None where that
    was not it."""
    if not _UNRESOLVED.search(text):
        return None
    return f"docker.io/{image}" if "/" in image else f"docker.io/library/{image}"


def describe_progress(text: str) -> str:
    """What a runtime's output so far means, "" while it has said nothing of layers."""
    states: dict[str, str] = {}
    for line in text.splitlines():
        found = _DOCKER_LAYER.match(line.strip())
        if found:
            states[found[1]] = found[2]
    if states:
        done = sum(1 for state in states.values() if state in ("Pull complete", "Already exists"))
        return f"layer {done} of {len(states)} done"
    layers = dict.fromkeys(found[1][:12] for found in _PODMAN_LAYER.finditer(text))
    retries = len(_RETRYING.findall(text))
    words = []
    if layers:
        words.append(f"{len(layers)} layer{'s' * (len(layers) != 1)}")
        words.append("all of them copied" if "Writing manifest" in text else "copying")
    if retries:
        words.append(f"try {retries + 1}")
    return ", ".join(words)


def read_last_words(text: str) -> str:
    """What a runtime says went wrong, in the registry's words: the last lines that name an error,
    without credentials."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [
        line
        for line in lines
        if re.match(
            r"(?i)error\b|.*\berror (response|from)\b|.*\bdenied\b|.*\bcannot connect\b", line
        )
    ]
    chosen = [line for line in errors if "level=" not in line][-1:] or lines[-3:]
    words = "; ".join(re.sub(r"^Error: ", "", line) for line in chosen)
    return clean_words(words) or "it said nothing"


def clean_words(text: str) -> str:
    """Without control characters and credentials, and not too long."""
    text = _BEARER.sub(r"\1 ***", _CREDENTIALS.sub("***@", text))
    text = re.sub(r"[\x00-\x1f\x7f]+", " ", text).strip()
    return text if len(text) <= _MAX_WORDS else f"{text[:_MAX_WORDS]} …"
