"""What this replica has just told each host, so that a report made before that costs the store
nothing more.

An agent that has news calls before the answer to its last call has come. Such a report repeats the
ends of the last one, and does not name the tasks that the answer tells the host to start.

REPEAT-1  An end that the last answer to this incarnation of a host has acknowledged is acknowledged
          from memory, because an acknowledgement stays true (SYNC-1). Every other repeat goes to
          the store.
REPEAT-2  Orders that the last answer has brought are not brought again by the answer to a report
          that came before that one was given. A later report that does not name such a task gets
          its order again.
"""

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.moves.values import HostSync, HostSynced

MAX_HOSTS = 16_384


class _ToldHost(msgspec.Struct, frozen=True):
    """What the last answer said. number: that of its batch."""

    incarnation: str
    number: int
    acked: frozenset[TaskKey]
    offered: tuple[TaskKey, ...]


class LastAnswers:
    """The last answer to each host that had an acknowledgement or an order in it.

    number: the count of the batches that were answered.
    """

    def __init__(self) -> None:
        self.number = 0
        self._told: dict[str, _ToldHost] = {}

    def shorten(self, sync: HostSync, came: int) -> HostSync:
        """Return the sync without the ends that are known, and with the orders that are on their
        way. Where no end is left, the host takes no job, because the call that told of them has
        taken.

        came: the `number` when the sync came."""
        told = self._find(sync)
        if told is None:
            return sync
        if told.number > came and told.offered:
            sync = msgspec.structs.replace(sync, told=told.offered)
        if told.acked.isdisjoint(key for key, _ in sync.ended):
            return sync
        ended = tuple((key, facts) for key, facts in sync.ended if key not in told.acked)
        return msgspec.structs.replace(sync, ended=ended, takes=sync.takes and bool(ended))

    def note(self, sync: HostSync, answer: HostSynced) -> HostSynced:
        """Keep what the answer tells, and return it with the known ends of the sync. sync: as it
        came."""
        before = self._find(sync)
        self._told.pop(sync.host_id, None)
        if answer.status != "ok":
            return answer
        known: frozenset[TaskKey] = frozenset() if before is None else before.acked
        repeated = tuple(key for key, _ in sync.ended if key in known) if known else ()
        acked = frozenset((*repeated, *answer.acked))
        offered = tuple(offer.task.key for offer in answer.offers)
        if acked or offered:
            while len(self._told) >= MAX_HOSTS:
                del self._told[next(iter(self._told))]
            number = self.number + 1
            self._told[sync.host_id] = _ToldHost(sync.incarnation, number, acked, offered)
        return msgspec.structs.replace(answer, repeated=repeated) if repeated else answer

    def _find(self, sync: HostSync) -> _ToldHost | None:
        told = self._told.get(sync.host_id)
        return told if told is not None and told.incarnation == sync.incarnation else None
