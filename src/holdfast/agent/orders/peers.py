"""Write the other ranks of a gang into a file for each of its tasks.

A sync answer names the ranks once for all orders of a gang (`SyncAnswer.gangs`); the text is made
once, too.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.agent.folders import PEERS_FILE
from holdfast.process.files import write_atomic
from holdfast.wire.agent import Gang, LaunchOrder


class Peers(NamedTuple):
    """The path of a file of peers, and its text (JSON)."""

    path: str
    text: str


class GangPeers:
    """Holds the gangs of the sync answer that is being carried out."""

    def __init__(self) -> None:
        self._gangs: dict[tuple[str, int], Gang] = {}
        self._texts: dict[tuple[str, int], str] = {}

    def learn(self, gangs: Sequence[Gang]) -> None:
        """Keep the gangs that a new sync answer describes, and forget those of the answer
        before."""
        self._gangs = {(gang.job_id, gang.epoch): gang for gang in gangs}
        self._texts.clear()

    def leave(self, order: LaunchOrder, folder: Path) -> Peers | None:
        """Write the other ranks of an order's gang into the task's folder and return them; None if
        the task has no gang. Raises OSError."""
        text = self._text_of(order)
        if text is None:
            return None
        found = Peers(f"{folder}/{PEERS_FILE}", text)
        # An agent that is killed here has launched nothing.
        write_atomic(Path(found.path), text.encode())
        return found

    def _text_of(self, order: LaunchOrder) -> str | None:
        key = (order.key.job_id, order.key.epoch)
        gang = self._gangs.get(key)
        if gang is not None and key not in self._texts:
            self._texts[key] = msgspec.json.encode(gang.list_peers()).decode()
        return self._texts.get(key)


def find_peers(folder: Path) -> Peers | None:
    """Return the peers that a task's folder names; None if the task runs alone. Raises OSError."""
    path = folder / PEERS_FILE
    text = path.read_text() if path.exists() else ""  # an empty one was made ahead
    return Peers(str(path), text) if text else None
