"""The last answer of this replica to each host, so that a report made before that answer costs the store
nothing more.

An agent that has news calls before the answer to its last call has come. Such a report repeats the
ends of the last one, and does not name the tasks that the answer tells the host to start.

REPEAT-1  An end that the last answer to this incarnation of a host has acknowledged is acknowledged
          from memory, because an acknowledgement stays true (SYNC-1). Every other repeat goes to
          the store.
REPEAT-2  Orders that the last answer has brought are not brought again by the answer to a report
          that came before that one was given. A later report that does not name such a task gets
          its order again.
REPEAT-3  A start of a task whose lease the last answer has renewed is on record, and is told to the
          store again only once in `START_SECONDS`, by all hosts at the same time: after a failover
          that lost it the store hears of it anew.
"""

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.moves.values import HostSync, HostSynced

MAX_HOSTS = 16_384
START_SECONDS = 60.0


class _ToldHost(msgspec.Struct, frozen=True):
    """The contents of the last answer. number: that of its batch. turn: that in which `started` was
    told."""

    incarnation: str
    number: int
    turn: int
    started: frozenset[TaskKey]
    acked: frozenset[TaskKey]
    offered: tuple[TaskKey, ...]


class LastAnswers:
    """The last answer to each host that had an acknowledgement, an order or a renewal in it.

    number: the count of the batches that were answered. turn: the count of `START_SECONDS`.
    """

    def __init__(self) -> None:
        self.number = self.turn = 0
        self._told: dict[str, _ToldHost] = {}

    def shorten(self, sync: HostSync, came: int) -> HostSync:
        """Return the sync without the starts and ends that are known, and with the orders that are
        on their way. Where no end is left, the host takes no job, because the call that told of
        them has taken.

        came: the `number` when the sync came."""
        told = self._find(sync)
        if told is None:
            return sync
        if told.number > came and told.offered:
            sync = msgspec.structs.replace(sync, told=told.offered)
        if told.turn == self.turn and not told.started.isdisjoint(sync.started):
            new = tuple(key for key in sync.started if key not in told.started)
            sync = msgspec.structs.replace(sync, started=new)
        if told.acked.isdisjoint(key for key, _ in sync.ended):
            return sync
        ended = tuple((key, facts) for key, facts in sync.ended if key not in told.acked)
        return msgspec.structs.replace(sync, ended=ended, takes=sync.takes and bool(ended))

    def keep_answer(self, sync: HostSync, answer: HostSynced) -> HostSynced:
        """Remember the contents of the answer, and return the answer with the ends of the sync that
        were known before. sync: as the host sent it."""
        before = self._find(sync)
        self._told.pop(sync.host_id, None)
        if answer.status != "ok":
            return answer
        known: frozenset[TaskKey] = frozenset() if before is None else before.acked
        repeated = tuple(key for key, _ in sync.ended if key in known) if known else ()
        acked = frozenset((*repeated, *answer.acked))
        offered = tuple(offer.task.key for offer in answer.offers)
        begun = frozenset(sync.started)
        if before is not None and before.turn == self.turn:
            begun |= before.started  # a call that was woken asks again without its starts
        started = begun.intersection(key for key, _ in answer.renewed) if begun else begun
        if acked or offered or started:
            while len(self._told) >= MAX_HOSTS:
                del self._told[next(iter(self._told))]
            number = self.number + 1
            told = _ToldHost(sync.incarnation, number, self.turn, started, acked, offered)
            self._told[sync.host_id] = told
        return msgspec.structs.replace(answer, repeated=repeated) if repeated else answer

    def _find(self, sync: HostSync) -> _ToldHost | None:
        told = self._told.get(sync.host_id)
        return told if told is not None and told.incarnation == sync.incarnation else None
