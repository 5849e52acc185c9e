"""What is revoked is over: a token and its open streams, a host's key; and whose a host's name is."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.controller.runtime.auth import hash_secret
from holdfast.controller.sync import route
from tests.unit.controller.api.test_api import Stream
from tests.unit.controller.conftest import FakeAgent, Served, bearer, make_join
from tests.waits import crowding, within


async def make_token(served: Served, **fields: Any) -> tuple[str, str]:
    answer = await served.call("POST", "/v1/tokens", json={"role": "read", **fields})
    made = answer.json()
    return made["id"], made["secret"]


@pytest.mark.parametrize("way", ["revoked here", "revoked elsewhere", "expired"])
async def test_an_open_stream_ends_with_its_token(served: Served, way: str) -> None:
    """STREAM-2: within five seconds, also where no word of it comes."""
    fields = {"expires_seconds": 1.5} if way == "expired" else {}
    token_id, secret = await make_token(served, **fields)
    job = await served.submit()
    paths = ("/v1/events", f"/v1/jobs/{job['id']}/logs?follow=1")
    streams = [Stream(served, path, headers=bearer(secret)) for path in paths]
    async with streams[0], streams[1]:
        await streams[0].next()
        if way == "revoked here":
            await served.call("DELETE", f"/v1/tokens/{token_id}")
        elif way == "revoked elsewhere":
            await served.store.tokens.revoke_token(token_id)
        began = time.monotonic()
        for stream in streams:
            async with within(10):
                while (event := await stream.next())["event"] != "problem":
                    pass
            assert event["data"]["code"] == "unauthorized"
            with pytest.raises(EOFError):
                await stream.next()
        assert time.monotonic() - began < 5.0 * max(1.0, crowding())


async def test_a_stream_of_a_token_that_is_good_goes_on(served: Served) -> None:
    _, secret = await make_token(served)
    async with Stream(served, "/v1/events?kind=job.*", headers=bearer(secret)) as stream:
        await make_token(served)
        await served.call("DELETE", f"/v1/tokens/{(await make_token(served))[0]}")
        await asyncio.sleep(2.5)  # two checks
        await served.submit()
        assert (await stream.next())["event"] == "job.submitted"


@pytest.mark.parametrize("action", ["revoke", "terminate"])
async def test_a_revoked_key_opens_nothing(served: Served, agent: FakeAgent, action: str) -> None:
    value = f"/v1/agent/values/{'0' * 64}"
    before = await served.http.get(value, headers=bearer(agent.key))
    assert before.status_code == 404
    answer = await served.call("POST", f"/v1/hosts/h1/{action}", json={"reason": "it was seen"})
    assert answer.status_code == 200, answer.text
    code = "host_ended" if action == "terminate" else "unauthorized"
    for work in (served.http.get(value, headers=bearer(agent.key)), agent.post_sync()):
        refused: httpx.Response = await work
        assert (refused.status_code, refused.json()["code"]) == (401, code)
    assert (await agent.register()).status_code == 401
    assert (await agent.register(await make_join(served))).status_code in (200, 409)


async def test_a_revocation_on_another_replica_is_heard_of(
    served: Served, agent: FakeAgent
) -> None:
    await agent.sync()  # its key is remembered
    await served.store.hosts.revoke_key(agent.host_id, "there")
    assert (await agent.post_sync()).status_code == 409, "the store looks at the host itself"
    async with within(10):
        path = f"/v1/agent/values/{'0' * 64}"
        while (await served.http.get(path, headers=bearer(agent.key))).status_code != 401:
            await asyncio.sleep(0.1)


async def test_a_machine_with_the_name_of_a_live_host_is_refused(
    served: Served, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NAME-2: idle or not. Once the host is silent, a machine that was set up anew is that host."""
    secret = await make_join(served)
    second = FakeAgent(served, "h1")
    second.incarnation = "another-machine-1"
    refused = await second.register(secret)
    assert (refused.status_code, refused.json()["code"]) == (409, "host_name_taken")
    assert re.search(r"was heard \d+ s ago.*--name", refused.json()["detail"])
    assert (await agent.post_sync()).status_code == 200
    monkeypatch.setattr(route, "LIVE_SECONDS", 0.0)
    await served.store.settings.write_cluster_settings({"sync_interval_seconds": 0.1})
    async with within(20):
        while (await second.register(secret)).status_code != 200:
            await asyncio.sleep(0.2)
    assert second.host_id == agent.host_id
    assert await served.store.hosts.find_hosts_by_keys([hash_secret(agent.key)]) == {}


async def test_an_agent_with_a_token_that_is_no_join_token_ends_with_words(
    served: Served, store: object, tmp_path: Path
) -> None:
    _, user = await make_token(served)
    for secret, said in (
        ("hfj_" + "x" * 40, "does not take this join token"),
        (user, "this is a user's token"),
    ):
        (tmp_path / "token").write_text(secret)
        agent = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "holdfast", "agent", "--join", served.url, "--token-file", str(tmp_path / "token"), "--state",
            str(tmp_path / "state"), stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with within(30):
            _, told = await agent.communicate()
        assert agent.returncode == 5
        assert said in told.decode()


async def test_a_host_does_not_register_under_the_name_of_another(
    served: Served, agent: FakeAgent
) -> None:
    """NAME-1."""
    second = FakeAgent(served, "h2")
    assert (await second.register()).status_code == 200
    second.facts = FakeAgent(served, "h1").facts
    second.incarnation = "incarnation-of-h2-2"
    refused = await second.register()
    assert (refused.status_code, refused.json()["code"]) == (409, "host_name_taken")
    drained = await served.call("POST", "/v1/hosts/h1/drain")
    assert drained.json()["id"] == agent.host_id
