"""A note beside the checkpoints that says how the save of a stop goes: empty while it is made, its
error once it failed, gone once it succeeded. The agent reads what is left when the attempt ends."""

from __future__ import annotations

import os

PREFIX = ".save."
MAX_BYTES = 400


class SaveNote:
    """The note of this process; it does nothing outside Holdfast, and raises nothing, because a
    stop has no time for a full disk. failed: True once an error was written."""

    failed = False

    def __init__(self) -> None:
        folder = os.environ.get("HOLDFAST_CHECKPOINT_OUT")
        self._path = os.path.join(folder, f"{PREFIX}{os.getpid()}") if folder else ""

    def write(self, text: str) -> None:
        """Put `text` into the note, in the place of what it said."""
        SaveNote.failed = bool(text)
        if not self._path:
            return
        try:
            with open(self._path, "wb") as file:
                file.write(text.encode("utf-8", "replace")[:MAX_BYTES])
        except OSError:
            pass

    def remove(self) -> None:
        """Remove the note, because the save was made, unless it names an error."""
        if self.failed:
            return
        try:
            os.unlink(self._path)
        except OSError:
            pass
