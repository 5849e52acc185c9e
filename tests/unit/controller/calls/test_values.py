"""Large values of calls: named by their bytes, whole or not there, refused with a reason."""

import hashlib

import pytest

from holdfast.client import AsyncClient
from holdfast.controller.calls.sets import check_args
from holdfast.controller.loops.checkpoints import CheckpointsLoop
from holdfast.controller.runtime.auth import make_new_id
from holdfast.errors import ValidationError
from tests.simulated.blobs import MemoryBlobs
from tests.unit.controller.conftest import SECRETS, FakeAgent, Served, bearer

DATA = b"\x00large" * 1000
NAME = hashlib.sha256(DATA).hexdigest()


async def test_a_user_leaves_a_value_and_a_host_reads_it(served: Served, agent: FakeAgent) -> None:
    async with AsyncClient(served.url, SECRETS["submit"]) as client:
        assert await client.put_value(DATA) == NAME
        assert await client.put_value(DATA) == NAME  # VALUE-1
        assert await client.value(NAME) == DATA
    mine = {"headers": bearer(agent.key)}
    read = await served.http.get(f"/v1/agent/values/{NAME}", **mine)
    assert (read.status_code, read.content) == (200, DATA)
    put = await served.http.put(f"/v1/agent/values/{NAME}", content=DATA, **mine)
    assert put.status_code == 204


@pytest.mark.parametrize(
    ("name", "status", "word"), [("f" * 64, 422, "SHA-256"), ("short", 404, "64 characters")]
)
async def test_bytes_under_a_wrong_name_are_refused(
    served: Served, name: str, status: int, word: str
) -> None:
    answer = await served.call("PUT", f"/v1/values/{name}", content=DATA)
    assert answer.status_code == status
    assert word in answer.json()["detail"]
    assert (await served.call("GET", f"/v1/values/{'f' * 64}")).status_code == 404


async def test_a_value_over_the_limit_is_refused(served: Served) -> None:
    await served.call("PATCH", "/v1/config", json={"set": {"call_value_max_mb": 0.001}})
    answer = await served.call("PUT", f"/v1/values/{NAME}", content=DATA)
    assert answer.status_code == 413
    assert "call_value_max_mb" in answer.json()["detail"]


async def test_the_sweep_of_checkpoints_leaves_values_until_the_history_ends(
    served: Served,
) -> None:
    at = 0.0
    served.controller.blobs = MemoryBlobs(lambda: at)
    await served.call("PUT", f"/v1/values/{NAME}", content=DATA)
    at = 29 * 86_400.0
    await CheckpointsLoop(served.controller, orphan_seconds=0.0).run_once()
    assert (await served.call("GET", f"/v1/values/{NAME}")).content == DATA
    at = 30 * 86_400.0
    await CheckpointsLoop(served.controller, orphan_seconds=0.0).run_once()  # or the server's own
    assert (await served.call("GET", f"/v1/values/{NAME}")).status_code == 404


async def test_a_value_that_a_job_reads_lives_as_long_as_the_job_is_on_record(
    served: Served,
) -> None:
    at = 0.0
    served.controller.blobs = MemoryBlobs(lambda: at)
    await served.call("PUT", f"/v1/values/{NAME}", content=DATA)
    await served.call("POST", "/v1/jobs", json={"argv": ["cat"], "stdin": NAME})
    at = 400 * 86_400.0
    await CheckpointsLoop(served.controller, orphan_seconds=0.0).run_once()
    assert (await served.call("GET", f"/v1/values/{NAME}")).content == DATA


async def test_roles(served: Served) -> None:
    for method, role in (("PUT", "read"), ("GET", None)):
        answer = await served.call(method, f"/v1/values/{NAME}", role, content=DATA)
        assert answer.status_code in (401, 403)


def test_an_argument_that_no_reader_can_hold_is_refused() -> None:
    with pytest.raises(ValidationError, match="this is no JSON text"):
        check_args(["[]", "[" * 5000], 0, None)


async def test_a_value_that_a_waiting_call_names_outlives_the_history(served: Served) -> None:
    """HISTORY-1: it was swept by its age alone, and the call could never run then."""
    at = 0.0
    served.controller.blobs = MemoryBlobs(lambda: at)
    await served.call("PUT", f"/v1/values/{NAME}", content=DATA)
    text = (
        f'{{"$args":{{"x":null}},"$large":[[["x"],{{"node":"","sha256":"{NAME}","size":6000}}]]}}'
    )
    new = {"id": make_new_id(), "spec": {"function": "m:f"}, "args": [text], "count": 1}
    made = await served.call("POST", "/v1/call-sets", json=new)
    assert made.status_code == 201, made.text
    at = 99 * 86_400.0
    await CheckpointsLoop(served.controller, orphan_seconds=0.0).run_once()
    assert (await served.call("GET", f"/v1/values/{NAME}")).content == DATA
