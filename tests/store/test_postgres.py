"""The PostgreSQL store passes the conformance suite, and keeps its promises when connections and
servers die."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.moves.values import LogAppend
from holdfast.store.postgres.connection.session import Tx

# Each store runs these suites as they are (F403).
from tests.store.conformance.admission import *  # noqa: F403
from tests.store.conformance.drains import *  # noqa: F403
from tests.store.conformance.events import *  # noqa: F403
from tests.store.conformance.hosts import *  # noqa: F403
from tests.store.conformance.jobs import *  # noqa: F403
from tests.store.conformance.leases import *  # noqa: F403
from tests.store.conformance.members import *  # noqa: F403
from tests.store.conformance.settings import *  # noqa: F403
from tests.store.conformance.takes import *  # noqa: F403
from tests.store.rig import Rig


async def test_a_stream_without_a_byte_is_written_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.host()
    job_id, key = await rig.running()

    def make_end(stream: str) -> LogAppend:
        return LogAppend(key=key, stream=stream, offset=0, data=b"", ended=True, keep_bytes=1000)

    written: list[str] = []
    last = Tx.last

    async def note(tx: Tx, *steps: tuple[str, dict[str, Any]]) -> None:
        written.extend(name for name, _ in steps)
        await last(tx, *steps)

    monkeypatch.setattr(Tx, "last", note)
    ends = [make_end("stdout"), make_end("stderr")]
    for _ in range(2):
        assert await rig.store.logs.append_logs("h1", ends) == [0, 0]
    assert written == []
    assert [s.ended for s in await rig.store.logs.list_log_streams(job_id)] == [True, True]
