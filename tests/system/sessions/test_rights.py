"""Which users come into which tasks, what ends their sessions, and what is on record of them."""

from __future__ import annotations

import pytest

from holdfast.client import Client
from holdfast.errors import Conflict, Forbidden, HoldfastError, Unauthorized
from tests.system.cluster import Cluster
from tests.waits import wait_until

pytestmark = pytest.mark.slow


def client_of(cluster: Cluster, role: str = "submit", **more: object) -> tuple[Client, str]:
    """A client with a token of its own, and the token's id."""
    made = cluster.client.create_token(role, **more)
    return Client(cluster.controller.url, made.secret), made.id


@pytest.fixture(scope="module")
def job(shared: Cluster) -> str:
    """A job of alice's."""
    shared.add_host("inside", cpu_slots=8)
    shared.client.put_project("vision", {})
    alice, _ = client_of(shared, user="alice")
    with alice:
        made = alice.submit(["sleep", "600"], project="vision")
    shared.until(made.id, "running")
    return made.id


def test_others_come_in_with_reach_of_the_project_alone_admins_too(
    shared: Cluster, job: str
) -> None:
    """REACH-1."""
    alice, _ = client_of(shared, user="alice")
    reader, _ = client_of(shared, "read", user="alice")
    bob, _ = client_of(shared, user="bob")
    elsewhere, _ = client_of(shared, user="bob", reach=["speech"])
    helper, _ = client_of(shared, "read", user="bob", reach=["vision"])
    assert alice.open_session(job, ["true"]).wait() == 0
    assert helper.open_session(job, ["true"]).wait() == 0
    for refused in (bob, elsewhere, shared.client):
        with pytest.raises(Forbidden, match="--reach vision") as told:
            refused.open_session(job, ["true"])
        assert told.value.code == "no_reach"
    with pytest.raises(Forbidden, match="role submit"):
        reader.open_session(job, ["true"])
    for client in (alice, reader, bob, elsewhere, helper):
        client.close()


def test_a_revoked_token_ends_its_shell_within_seconds(shared: Cluster, job: str) -> None:
    alice, token_id = client_of(shared, user="alice")
    session = alice.open_session(job, ["sh"], kind="shell", tty=True)
    session.write(b"echo up$((1+1))\n")
    found = b""
    while b"up2" not in found:
        piece = session.read(30)
        assert piece is not None
        found += piece.data
    inside = shared.host_of(job).marked_pids(f"session {session.id}")
    assert inside
    shared.client.revoke_token(token_id)
    with pytest.raises((Unauthorized, Forbidden, HoldfastError)):
        session.wait()
    wait_until(
        lambda: not shared.host_of(job).marked_pids(f"session {session.id}"),
        5.0,
        what="the processes of a revoked token's session to be gone",
    )
    with pytest.raises(Unauthorized):
        alice.open_session(job, ["true"])
    alice.close()


@pytest.mark.parametrize("how", ["revoked", "expired", "switched off", "ended"])
def test_a_session_without_a_link_ends_as_soon(shared: Cluster, job: str, how: str) -> None:
    """Its user's line is lost, so only the host can end it, which would keep it for ten minutes."""
    more = {"expires_seconds": 2.0} if how == "expired" else {}
    alice, token_id = client_of(shared, user="alice", **more)
    session = alice.open_session(job, ["sleep", "600"], kind="shell", tty=True)
    host = shared.host_of(job)
    assert wait_until(lambda: host.marked_pids(f"session {session.id}"), 5.0)
    session.abandon()
    if how == "revoked":
        shared.client.revoke_token(token_id)
    elif how == "switched off":
        shared.client.put_project("vision", {"sessions": False})
    elif how == "ended":
        alice.end_session(session.id)
    try:
        wait_until(
            lambda: not host.marked_pids(f"session {session.id}"),
            7.0 if how == "expired" else 5.0,
            what="the processes of a session without a link to be gone",
        )
    finally:
        shared.client.put_project("vision", {"sessions": True})
        alice.close()


def test_an_expired_token_ends_its_session(shared: Cluster, job: str) -> None:
    alice, _ = client_of(shared, user="alice", expires_seconds=2.0)
    with alice, alice.open_session(job, ["sleep", "600"]) as session:
        with pytest.raises(HoldfastError):
            session.wait()
        host = shared.host_of(job)
        wait_until(lambda: not host.marked_pids(f"session {session.id}"), 5.0)


def test_a_session_is_on_record_with_user_address_command_and_time(
    shared: Cluster, job: str
) -> None:
    alice, _ = client_of(shared, user="alice", name="laptop")
    session = alice.open_session(job, ["sh", "-c", "exit 3"])
    assert session.wait() == 3

    def look() -> list[object]:
        events = [
            e for e in shared.client.events(job_id=job) if e.data.get("session") == session.id
        ]
        return events if len(events) == 2 else []

    began, ended = wait_until(look, 20.0)
    assert (began.kind, ended.kind) == ("session_started", "session_ended")
    told = {"user": "alice", "from": "127.0.0.1", "kind": "exec", "command": "sh -c 'exit 3'"}
    assert told.items() <= began.data.items()
    assert ended.data["exit_code"] == 3
    assert ended.data["seconds"] >= 0
    record = next(s for s in shared.client.sessions(job, also_over=True) if s.id == session.id)
    assert (record.state, record.owner, record.token_name) == ("ended", "alice", "laptop")
    alice.close()


def test_the_switch_of_a_project_ends_sessions_and_lets_none_in(shared: Cluster, job: str) -> None:
    alice, _ = client_of(shared, user="alice")
    session = alice.open_session(job, ["sleep", "600"])
    shared.client.put_project("vision", {"sessions": False})
    try:
        with pytest.raises(Forbidden, match="switched off"):
            session.wait()
        with pytest.raises(Forbidden, match="sessions=true"):
            alice.open_session(job, ["true"])
    finally:
        shared.client.put_project("vision", {"sessions": True})
    wait_until(lambda: not shared.host_of(job).marked_pids(f"session {session.id}"), 10)
    alice.close()


def test_a_session_that_its_owner_ends_is_over(shared: Cluster, job: str) -> None:
    alice, _ = client_of(shared, user="alice")
    session = alice.open_session(job, ["sleep", "600"])
    alice.end_session(session.id)
    with pytest.raises(Conflict, match="alice ended it"):
        session.wait()
    wait_until(lambda: not shared.host_of(job).marked_pids(f"session {session.id}"), 10)
    alice.close()


def test_a_ticket_is_good_once(shared: Cluster, job: str) -> None:
    """A host's key alone opens no link, and neither does a ticket that was used."""
    import httpx

    alice, _ = client_of(shared, user="alice")
    session = alice.open_session(job, ["sleep", "600"])
    words = {
        "Authorization": "Bearer hfk_of-no-host",
        "Holdfast-Ticket": "a-guess",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version": "13",
    }
    url = f"{shared.controller.url}/v1/agent/sessions/{session.id}"
    assert httpx.get(url, headers=words, trust_env=False).status_code == 401
    session.close()
    alice.close()


def test_a_host_that_takes_no_sessions_says_so(shared: Cluster) -> None:
    shared.add_host("closed", cpu_slots=1, labels={"closed": "yes"}, sessions=False)
    job_id = shared.submit("sleep", "600", host_labels={"closed": "yes"})
    shared.until(job_id, "running")
    right = shared.client.session_right(job_id)
    assert (right.allowed, right.code) == (False, "sessions_off")
    assert "host closed" in right.reason
    with pytest.raises(Forbidden, match="switched off on this host"):
        shared.client.open_session(job_id, ["true"])
    wait_until(lambda: not shared.client.sessions(job_id), 20)


def test_no_forward_hides_behind_another_session(shared: Cluster, job: str) -> None:
    """Its end would be told as that session's, which then goes on unseen."""
    alice, _ = client_of(shared, user="alice")
    session = alice.open_session(job, ["sleep", "60"])
    with pytest.raises(Conflict, match="a session of its own"):
        alice.open_session(job, kind="forward", port=1, session=session.id, linger_seconds=0)
    assert session.id in {one.id for one in alice.sessions(job)}
    alice.end_session(session.id)
    alice.close()
