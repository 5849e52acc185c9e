"""Sessions where the user's end and the host's come to different servers of one database."""

from __future__ import annotations

import secrets

import pytest

from tests.system.cluster import Cluster

pytestmark = pytest.mark.slow


def test_a_session_works_where_its_host_dials_another_server_than_its_users(
    cluster: Cluster,
) -> None:
    """RELAY-1: bytes both ways, more than the windows, half-close, exit code; and a terminal."""
    cluster.add_host("inside", cpu_slots=4)
    other = cluster.client_of(cluster.add_controller())
    job_id = cluster.submit("sleep", "600")
    cluster.until(job_id, "running")
    data = secrets.token_bytes(1 << 20) * 12
    with other.open_session(job_id, ["sh", "-c", "cat; exit 7"]) as session:
        session.write(data[: 1 << 18])
        found = bytearray()
        for at in range(1 << 18, len(data), 1 << 18):
            session.write(data[at : at + (1 << 18)])
            while len(found) < at - (1 << 19) and (piece := session.read()):
                found += piece.data
        session.close_stdin()
        for piece in session:
            found += piece.data
        assert session.exit_code == 7
    assert bytes(found) == data
    with other.open_session(job_id, [], kind="shell", tty=True) as session:
        session.write(b"echo up$((1+1)); exit 3\n")
        assert b"up2" in b"".join(piece.data for piece in session)
        assert session.exit_code == 3
