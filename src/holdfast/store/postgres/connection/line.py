"""A connection that sends several statements at once and reads all their answers after.

The driver's cursors do the same at several times the cost, most of which is asyncio's: they wait
for the socket at every statement, and look up how to write and read each value anew.
"""

import re
import select
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
import psycopg
from psycopg.abc import Buffer, PQGen
from psycopg.abc import Transformer as Adapter
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.generators import fetch_many, send
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGresult

MAX_PREPARED = 150
"""Statements that a connection keeps prepared; each costs the server some 50 KiB."""
SERVER_FAILED = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.IdleInTransactionSessionTimeout,
)
"""What is raised where a server is away, goes, or takes no writes."""
_FAILED = (ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED)
_PLACE = re.compile(rb"%\((\w+)\)s|%%")


class Asked(msgspec.Struct, frozen=True):
    """A statement with placeholders `%(name)s`, and the values for them. prepared: its plan is kept;
    otherwise it is made for these values."""

    query: bytes
    params: Mapping[str, Any] | None = None
    prepared: bool = True


Asking = Asked | Callable[[], Asked | None]
"""A statement, or what makes one while the server works at those before it; None for none."""


class Found:
    """What a statement found. count: how many rows it returned or touched."""

    __slots__ = ("_adapter", "_answer", "count")

    def __init__(self, answer: PGresult, adapter: Adapter) -> None:
        self._answer = answer
        self._adapter = adapter
        told = answer.status == ExecStatus.TUPLES_OK
        self.count = answer.ntuples if told else answer.command_tuples or 0

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows, read now."""
        answer = self._answer
        if not answer.ntuples:
            return []
        self._adapter.set_pgresult(answer)
        names = [(answer.fname(at) or b"").decode() for at in range(answer.nfields)]

        def make_row(values: Sequence[Any]) -> dict[str, Any]:
            return dict(zip(names, values, strict=True))

        return self._adapter.load_rows(0, answer.ntuples, make_row)


@cache
def number_places(query: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement with `$1` … in place of its placeholders, and their names."""
    numbers: dict[bytes, int] = {}

    def number(place: re.Match[bytes]) -> bytes:
        if place[1] is None:
            return b"%"
        return b"$%d" % numbers.setdefault(place[1], len(numbers) + 1)

    if not re.search(rb"%\(", query):
        return query, ()
    text = _PLACE.sub(number, query)
    return text, tuple(name.decode() for name in numbers)


class _Ready(msgspec.Struct, frozen=True):
    """A statement that can be sent. name: b"" where it is not prepared. new: it must be first."""

    text: bytes
    name: bytes
    new: bool
    values: Sequence[Buffer | None]
    types: tuple[int, ...]
    formats: Sequence[int]


class Connection(psycopg.AsyncConnection[dict[str, Any]]):
    """A connection of the driver, and a shorter way through it (`run_all`)."""

    _adapter: Adapter | None = None

    async def run_all(self, asked: Sequence[Asking]) -> list[Found]:
        """Run statements in order, in one round trip; each sees the effects of those before it.

        Raises psycopg.Error for the first that failed; those after it were not run then.
        """
        async with self.lock:
            if self._adapter is None:
                self._adapter = Transformer(self)
                self._prepared_as: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
                self._names = 0
            ready = [one if callable(one) else self._make_ready(one) for one in asked]
            dropped = list(self._drop_oldest())
            answers = await self.wait(self._exchange([*ready, *dropped]))
            for answer in answers:
                if not answer or answer[0].status in _FAILED:
                    raise _explain(answer)
            kept = answers[: len(answers) - len(dropped)]
            return [Found(answer[0], self._adapter) for answer in kept]

    def check_open(self) -> None:
        """Raise OperationalError where the server has hung up already: nothing that is sent now would
        be carried out."""
        look = select.poll()
        look.register(self.pgconn.socket, select.POLLIN)
        while look.poll(0):
            self.pgconn.consume_input()

    def _make_ready(self, asked: Asked) -> _Ready:
        assert self._adapter is not None
        text, names = number_places(asked.query)
        values: Sequence[Buffer | None] = ()
        types: tuple[int, ...] = ()
        formats: Sequence[int] = ()
        if names:
            params = asked.params or {}
            given = [params[name] for name in names]
            values = self._adapter.dump_sequence(given, [PyFormat.AUTO] * len(given))
            types, formats = tuple(self._adapter.types or ()), list(self._adapter.formats or ())
        if not (asked.prepared and self.prepare_threshold is not None):
            return _Ready(text, b"", True, values, types, formats)
        known = self._prepared_as.pop((text, types), None)
        if known is not None:
            self._prepared_as[text, types] = known  # the last to be dropped
            return _Ready(text, known, False, values, types, formats)
        self._names += 1
        return _Ready(text, b"hf%d" % self._names, True, values, types, formats)

    def _make_late(self, make: Callable[[], Asked | None]) -> _Ready | None:
        return None if (made := make()) is None else self._make_ready(made)

    def _drop_oldest(self) -> Iterable[_Ready]:
        while len(self._prepared_as) > MAX_PREPARED:
            name = self._prepared_as.pop(next(iter(self._prepared_as)))
            yield _Ready(b"deallocate " + name, b"", True, (), (), ())

    def _exchange(
        self, asked: Sequence[_Ready | Callable[[], Asked | None]]
    ) -> PQGen[list[list[PGresult]]]:
        """Return the answer to each statement, a list of one."""
        conn, sent, failure = self.pgconn, list[_Ready](), None
        conn.enter_pipeline_mode()
        try:
            try:
                for one in asked:
                    if callable(one):
                        yield from send(conn)
                    if (ready := self._make_late(one) if callable(one) else one) is not None:
                        sent.append(ready)
                        self._send(ready)
            except Exception as error:  # what was sent is answered first
                failure = error
            conn.pipeline_sync()
            yield from send(conn)
            answers = yield from self._fetch_all(sent)
            if failure is not None:
                raise failure
            return answers
        finally:
            if conn.status != ConnStatus.BAD:
                with suppress(psycopg.OperationalError):  # answers are left; the pool closes it
                    conn.exit_pipeline_mode()

    def _send(self, one: _Ready) -> None:
        conn = self.pgconn
        if not one.name:
            conn.send_query_params(
                one.text, one.values, param_types=one.types, param_formats=one.formats
            )
            return
        if one.new:
            conn.send_prepare(one.name, one.text, param_types=one.types)
        conn.send_query_prepared(one.name, one.values, param_formats=one.formats)

    def _fetch_all(self, sent: Sequence[_Ready]) -> PQGen[list[list[PGresult]]]:
        answers = []
        for one in sent:
            if one.name and one.new:
                made = yield from fetch_many(self.pgconn)
                if not made or made[0].status != ExecStatus.COMMAND_OK:
                    yield from fetch_many(self.pgconn)
                    answers.append(made)
                    continue
                self._prepared_as[one.text, one.types] = one.name
            answers.append((yield from fetch_many(self.pgconn)))
        yield from fetch_many(self.pgconn)  # the end of the exchange
        return answers


def _explain(answer: Sequence[PGresult]) -> psycopg.Error:
    if not answer:
        return psycopg.OperationalError("the connection was closed without an answer")
    if answer[0].status == ExecStatus.PIPELINE_ABORTED:
        return psycopg.errors.PipelineAborted("a statement before it failed")
    return error_from_result(answer[0], encoding="utf-8")


def is_lost(error: psycopg.Error) -> bool:
    """Return whether the connection is gone, so that another one may do better."""
    state = error.sqlstate
    closed = isinstance(error, psycopg.InterfaceError) or state is None
    return closed or str(state)[:3] in ("57P", "25P", "08")
