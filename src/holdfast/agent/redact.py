"""Mask secrets in all text that leaves the host: logs, log tails, forensics.

REDACT-1  An exact secret value of `MIN_SECRET_BYTES` or more is replaced by as many asterisks, also
          across the borders of chunks, so that offsets stay true. Encoded forms (base64, URL
          quoting) are not recognised.
"""

from collections.abc import Iterable

MIN_SECRET_BYTES = 4


class Redactor:
    """Masks the secret values of one task. overlap_bytes: the bytes to read on each side of a
    range, so that a secret across its border is found."""

    def __init__(self, secrets: Iterable[str]) -> None:
        values = {value.encode(errors="surrogateescape") for value in secrets}
        long = (value for value in values if len(value) >= MIN_SECRET_BYTES)
        self._secrets = sorted(long, key=len, reverse=True)
        self.overlap_bytes = max((len(v) - 1 for v in self._secrets), default=0)

    def mask(self, data: bytes) -> bytes:
        """Return `data` with every secret, overlapping ones too, replaced by as many asterisks."""
        masked: bytearray | None = None
        for secret in self._secrets:
            at = data.find(secret)
            while at >= 0:
                if masked is None:
                    masked = bytearray(data)
                masked[at : at + len(secret)] = b"*" * len(secret)
                at = data.find(secret, at + 1)
        return data if masked is None else bytes(masked)

    def mask_text(self, text: str) -> str:
        """Return `text` with every secret replaced by `***`."""
        for secret in self._secrets:
            text = text.replace(secret.decode(errors="replace"), "***")
        return text

    def count_settled(self, data: bytes, pending: int) -> int:
        """Return how many of the first bytes may be masked for good while the last `pending`
        wait for more. A secret that reaches into the pending bytes waits as a whole, because it
        may share bytes with another."""
        settled = len(data) - pending
        crossing = True
        # Each pass moves the border before a secret across it, where another may cross it then.
        while crossing:
            crossing = False
            for secret in self._secrets:
                at = data.find(secret, max(0, settled - len(secret) + 1))
                if 0 <= at < settled:
                    settled, crossing = at, True
        return settled

    def count_pending(self, data: bytes) -> int:
        """Return how many of the last bytes may be the beginning of a secret whose rest is not
        there yet."""
        for length in range(min(self.overlap_bytes, len(data)), 0, -1):
            tail = data[-length:]
            if any(len(secret) > length and secret.startswith(tail) for secret in self._secrets):
                return length
        return 0
