"""Length-prefixed frames on a byte stream: four bytes of length, big endian, then the body."""

from holdfast.errors import ValidationError

MAX_FRAME_BYTES = 16 * 1024 * 1024


def encode_frame(body: bytes) -> bytes:
    """Return `body` with its length in front. Raises ValidationError over `MAX_FRAME_BYTES`."""
    if len(body) > MAX_FRAME_BYTES:
        sentence = f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}"
        raise ValidationError(sentence)
    return len(body).to_bytes(4, "big") + body


class FrameReader:
    """A reader that cuts a byte stream into frames: `feed` takes the bytes that were read."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Add bytes in any portions; return the bodies of the frames that they complete.

        Raises ValidationError for a frame over `MAX_FRAME_BYTES`; the stream is of no use then.
        """
        self._buffer += data
        frames: list[bytes] = []
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if size > MAX_FRAME_BYTES:
                sentence = f"a frame announces {size} bytes; the limit is {MAX_FRAME_BYTES}"
                raise ValidationError(sentence)
            if len(self._buffer) < 4 + size:
                break
            frames.append(bytes(self._buffer[4 : 4 + size]))
            del self._buffer[: 4 + size]
        return frames
