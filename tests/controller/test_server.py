"""The controller as a process: the admin's token, where it may listen, how it goes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from holdfast.controller.auth import ensure_admin_token, hash_secret
from holdfast.controller.server import ServerConfig, bind_socket, check_config
from holdfast.errors import HoldfastError, ValidationError
from holdfast.store.interface import Store

from .conftest import bearer

START = (
    "import sys,msgspec\n"
    "from holdfast.controller.server import ServerConfig, run_server\n"
    "sys.exit(run_server(msgspec.json.decode(sys.argv[1], type=ServerConfig)))\n"
)


async def test_the_first_admin_token(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "token"
    secret = await ensure_admin_token(store, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert await ensure_admin_token(store, file) == secret, "it is used again while it works"
    token = await store.find_token(hash_secret(secret))
    assert token is not None
    assert token.role == "admin"
    await store.revoke_token(token.id)
    assert await ensure_admin_token(store, file) != secret
    assert os.listdir(tmp_path) == ["token"]


async def test_a_token_file_open_to_others_is_refused(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("hft_x\n")
    file.chmod(0o644)
    with pytest.raises(HoldfastError, match="chmod 600"):
        await ensure_admin_token(store, file)


async def test_a_link_in_the_tokens_place_is_not_followed(store: Store, tmp_path: Path) -> None:
    (tmp_path / "token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        await ensure_admin_token(store, tmp_path / "token")
    assert not (tmp_path / "elsewhere").exists()


def test_where_it_may_listen() -> None:
    check_config(ServerConfig(dsn="", host="127.0.0.1"))
    check_config(ServerConfig(dsn="", host="::1"))
    check_config(ServerConfig(dsn="", host="0.0.0.0", insecure_bind=True))
    with pytest.raises(ValidationError, match="TLS"):
        check_config(ServerConfig(dsn="", host="0.0.0.0"))
    with pytest.raises(ValidationError, match="together"):
        check_config(ServerConfig(dsn="", tls_cert="x"))


def test_a_port_that_is_taken_is_told() -> None:
    first = bind_socket("127.0.0.1", 0)
    first.listen()
    with pytest.raises(ValidationError, match="another server"):
        bind_socket("127.0.0.1", first.getsockname()[1])
    first.close()


def start(dsn: str, folder: Path, **more: object) -> subprocess.Popen[bytes]:
    config = {
        "dsn": dsn,
        "token_file": str(folder / "token"),
        "ready_file": str(folder / "ready"),
        "log_format": "json",
        **more,
    }
    return subprocess.Popen([sys.executable, "-c", START, json.dumps(config)], stderr=subprocess.PIPE)


def wait_for(path: Path, process: subprocess.Popen[bytes], seconds: float = 30) -> str:
    until = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < until
        time.sleep(0.02)
    return path.read_text().strip()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_is_orderly_and_quick(pg_database: str, tmp_path: Path, number: signal.Signals) -> None:
    process = start(pg_database, tmp_path)
    try:
        url = await asyncio.to_thread(wait_for, tmp_path / "ready", process)
        secret = await asyncio.to_thread(wait_for, tmp_path / "token", process)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=10) as http:
            assert (await http.get("/v1/whoami", headers=bearer(secret))).json()["role"] == "admin"
            assert (await http.get("/readyz")).status_code == 200
            headers = {**bearer(secret), "Accept": "text/event-stream"}
            async with http.stream("GET", "/v1/events", headers=headers) as stream:
                assert stream.status_code == 200
                began = time.monotonic()
                os.kill(process.pid, number)
                assert await asyncio.to_thread(process.wait, 10) == 0
                assert time.monotonic() - began < 3.5
        assert "ready" not in os.listdir(tmp_path)
    finally:
        process.kill()
        log = process.communicate()[1].decode()
    lines = [json.loads(line) for line in log.splitlines()]
    assert {"serving", "stopping"} <= {line["message"].split()[0] for line in lines}
    assert not [line for line in lines if line["level"] == "error"], log


@pytest.mark.slow
def test_killed_and_started_again_it_leads_again(pg_database: str, tmp_path: Path) -> None:
    process = start(pg_database, tmp_path)
    try:
        url = wait_for(tmp_path / "ready", process)
        secret = (tmp_path / "token").read_text().strip()
        job = httpx.post(url + "/v1/jobs", headers=bearer(secret), json={"argv": ["a"]}, trust_env=False).json()
    finally:
        process.kill()
        process.communicate()
    (tmp_path / "ready").unlink()
    process = start(pg_database, tmp_path)
    try:
        url = wait_for(tmp_path / "ready", process)
        assert (tmp_path / "token").read_text().strip() == secret
        until = time.monotonic() + 20
        while "holdfast_leading 1.0" not in httpx.get(url + "/metrics", trust_env=False).text:
            assert time.monotonic() < until
            time.sleep(0.1)
        found = httpx.get(f"{url}/v1/jobs/{job['id']}", headers=bearer(secret), trust_env=False).json()
        assert found["state"] == "queued"
    finally:
        process.terminate()
        assert process.wait(10) == 0
        process.communicate()


@pytest.mark.slow
def test_it_waits_for_its_database_and_can_be_told_to_stop(tmp_path: Path) -> None:
    dsn = f"postgresql://nobody@localhost/none?host={tmp_path}&connect_timeout=1"
    process = start(dsn, tmp_path)
    assert process.stderr is not None
    assert b"waiting for the database" in process.stderr.readline()
    assert process.poll() is None
    process.terminate()
    assert process.wait(10) == 0
    process.communicate()
    process = start(dsn, tmp_path, database_seconds=0.5)
    assert process.wait(20) == 1
    assert b"cannot be reached" in process.communicate()[1]
