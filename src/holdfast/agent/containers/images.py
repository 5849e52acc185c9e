"""Lock the pulls of images, describe their progress, and read the errors of registries.

PULL-1  A task that needs an image locks the image while it looks for it and pulls it. A task that
        waited for the lock uses the outcome of the other task's pull, good or bad, and does not
        pull again. A task that was killed left no outcome, and the next one pulls.
- Locks are the kernel's (`flock`), so that a killed process holds none.
"""

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
    r"^([0-9a-f]{12}): (Pulling fs layer|Waiting|Already exists|Downloading|Verifying Checksum"
    r"|Download complete|Extracting|Pull complete)"
)
_MISSING = re.compile(r"(?i)no such image|image not known|no such object|not found: image")
# The words of docker's client up to version 28, and since.
_AWAY = re.compile(r"(?i)cannot connect to the docker daemon|failed to connect to the docker api")
_ERROR_LINE = re.compile(
    r"(?i)error\b|.*\berror (response|from)\b|.*\bdenied\b|.*\bcannot connect\b"
)
_UNRESOLVED = re.compile(r"short-name .* did not resolve", re.DOTALL)


class PullOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a pull. at: the instant of its end (CLOCK_BOOTTIME). error: the reason of a
    failure; "" after a success."""

    at: float
    error: str = ""


class ImageLock:
    """Holds the right to pull one image on this host (PULL-1)."""

    def __init__(self, folder: str, image: str) -> None:
        """Open the lock file. Raises OSError."""
        name = hashlib.sha256(image.encode()).hexdigest()[:32]
        self._fd = os.open(f"{folder}/image-{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def try_take(self) -> bool:
        """Lock the file if it is free; return True if that worked."""
        return _try_flock(self._fd)

    def read_outcome(self, since: float) -> PullOutcome | None:
        """Return the outcome of a pull that ended after `since`; None if there was none."""
        try:
            outcome = msgspec.json.decode(os.pread(self._fd, 1 << 16, 0), type=PullOutcome)
        except (OSError, msgspec.MsgspecError):
            return None
        return outcome if outcome.at >= since else None

    def note_outcome(self, outcome: PullOutcome) -> None:
        """Write an outcome for the tasks that wait. Raises OSError."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, msgspec.json.encode(outcome), 0)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._fd)


def try_take_slot(folder: str, count: int) -> int | None:
    """Lock one of `count` rights to pull; return a descriptor to close afterwards, or None if no
    right is free. Raises OSError."""
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
    """Return True if a runtime's output says that an image is not on this host."""
    return bool(_MISSING.search(text))


def is_engine_away(text: str) -> bool:
    """Return True if the output of docker's client says that no engine answers it."""
    return bool(_AWAY.search(text))


def qualify(image: str, text: str) -> str | None:
    """Return an image's full name at docker's registry, if this error of podman says that no
    registry is known for the short name; None for other errors."""
    if not _UNRESOLVED.search(text):
        return None
    return f"docker.io/{image}" if "/" in image else f"docker.io/library/{image}"


def describe_progress(text: str) -> str:
    """Return the progress in a runtime's output so far; "" before the output names layers."""
    found = (_DOCKER_LAYER.match(line.strip()) for line in text.splitlines())
    states = {layer[1]: layer[2] for layer in found if layer}
    if states:
        done = sum(state in ("Pull complete", "Already exists") for state in states.values())
        return f"layer {done} of {len(states)} done"
    layers = {layer[1][:12] for layer in _PODMAN_LAYER.finditer(text)}
    retries = len(_RETRYING.findall(text))
    words = []
    if layers:
        words.append(f"{len(layers)} layer{'s' * (len(layers) != 1)}")
        words.append("all of them copied" if "Writing manifest" in text else "copying")
    if retries:
        words.append(f"try {retries + 1}")
    return ", ".join(words)


def read_last_words(text: str) -> str:
    """Return the last error in a runtime's output, in the registry's words, without credentials."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR_LINE.match(line) and "level=" not in line]
    chosen = errors[-1:] or lines[-3:]
    words = "; ".join(re.sub(r"^Error: ", "", line) for line in chosen)
    return clean_words(words) or "it said nothing"


def clean_words(text: str) -> str:
    """Return `text` without control characters and credentials, and not too long."""
    text = _BEARER.sub(r"\1 ***", _CREDENTIALS.sub("***@", text))
    text = re.sub(r"[\x00-\x1f\x7f]+", " ", text).strip()
    return text if len(text) <= _MAX_WORDS else f"{text[:_MAX_WORDS]} …"
