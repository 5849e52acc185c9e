"""Checkpoints of the running call, on their way through the agent to the blob store."""

import hashlib
import os
import sys
import threading
from pathlib import Path

from holdfast.errors import Unavailable, ValidationError
from holdfast.functions.executor.line import AgentLine
from holdfast.wire.calls import CallSave


class HostedCheckpoint:
    """The checkpoint of one call, which its next attempt reads, whichever host that runs on.
    folder: the folder through which executor and agent pass the bytes."""

    def __init__(self, line: AgentLine, folder: Path, batch: int, position: int) -> None:
        self._line, self._folder = line, folder
        self._place = batch, position
        self._lock = threading.Lock()

    def save(self, data: bytes) -> None:
        """Keep `data` in place of the last checkpoint, and return when it is on record.

        The call waits for a while for a controller that is away; then a line in the log says that
        the next attempt starts from an older checkpoint. Raises ValidationError where the data is
        refused.
        """
        save = CallSave(*self._place, hashlib.sha256(data).hexdigest())
        path = self._folder / save.file_name
        with self._lock:
            part = path.with_name(f".{path.name}.{os.getpid()}.part")
            part.write_bytes(data)
            part.replace(path)
            done = self._line.move_checkpoint(save)
            path.unlink(missing_ok=True)
        if done.refused:
            raise ValidationError(f"the checkpoint is not taken: {done.error}")
        if done.error is not None:
            text = f"[holdfast] the checkpoint is not kept; the one before stays: {done.error}"
            print(text, file=sys.stderr)

    def load(self) -> bytes | None:
        """Return the last checkpoint, None where there is none. Raises Unavailable where it cannot
        be fetched now."""
        save = CallSave(*self._place)
        with self._lock:
            done = self._line.move_checkpoint(save)
            if done.error is not None:
                raise Unavailable(f"the checkpoint of this call cannot be had: {done.error}")
            if not done.found:
                return None
            path = self._folder / save.file_name
            data = path.read_bytes()
            path.unlink(missing_ok=True)
        return data
