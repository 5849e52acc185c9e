"""The other ranks of a gang, left for each of its tasks as a file.

An answer names them once for all orders of a gang (`SyncAnswer.gangs`); the text is made once, too.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.process.files import write_atomic
from holdfast.wire.agent import Gang, LaunchOrder

PEERS_FILE = "peers.json"


class GangPeers:
    """The gangs of the answer that is being carried out."""

    def __init__(self) -> None:
        self._gangs: dict[tuple[str, int], Gang] = {}
        self._texts: dict[tuple[str, int], bytes] = {}

    def learn(self, gangs: Sequence[Gang]) -> None:
        """Take the gangs of a new answer in place of those of the one before."""
        self._gangs = {(gang.job_id, gang.epoch): gang for gang in gangs}
        self._texts.clear()

    def leave(self, order: LaunchOrder, folder: Path) -> None:
        """Write the peers of an order, where it has any, into its task's folder. Raises OSError."""
        text = msgspec.json.encode(order.peers) if order.peers else self._text_of(order)
        if text is not None:
            write_atomic(folder / PEERS_FILE, text)

    def _text_of(self, order: LaunchOrder) -> bytes | None:
        key = (order.key.job_id, order.key.epoch)
        gang = self._gangs.get(key)
        if gang is not None and key not in self._texts:
            self._texts[key] = msgspec.json.encode(gang.list_peers())
        return self._texts.get(key)


def find_peers(folder: Path) -> Path | None:
    """The file in a task's folder, None where it runs alone."""
    path = folder / PEERS_FILE
    return path if path.exists() else None
