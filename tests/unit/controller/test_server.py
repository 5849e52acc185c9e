"""The controller as a process: the admin's token, where it may listen, how it goes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
import stat
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from holdfast.controller.runtime.auth import ensure_admin_token, ensure_join_token, hash_secret
from holdfast.controller.server import RunningServer, ServerConfig, bind_socket, check_config
from holdfast.errors import HoldfastError, ValidationError
from holdfast.process.files import write_atomic
from holdfast.store.postgres.store import PostgresStore
from tests.simulated.blobs import MemoryBlobs
from tests.unit.controller.conftest import bearer
from tests.waits import Patience, crowding, wait_exit, within

START = (
    "import sys,msgspec\n"
    "from holdfast.controller.server import ServerConfig, run_server\n"
    "sys.exit(run_server(msgspec.json.decode(sys.argv[1], type=ServerConfig)))\n"
)


async def test_the_first_admin_token(store: PostgresStore, tmp_path: Path) -> None:
    file = tmp_path / "token"
    secret = await ensure_admin_token(store, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert await ensure_admin_token(store, file) == secret, "it is used again while it works"
    token = await store.tokens.find_token(hash_secret(secret))
    assert token is not None
    assert token.role == "admin"
    await store.tokens.revoke_token(token.id)
    assert await ensure_admin_token(store, file) != secret
    assert os.listdir(tmp_path) == ["token"]


async def test_a_join_token_is_put_on_record_once_and_is_spent_for_good(
    store: PostgresStore, tmp_path: Path
) -> None:
    """A controller that starts anew after the host joined must let no second host in."""
    file = tmp_path / "join"
    before = await store.tokens.list_tokens()
    await ensure_join_token(store, file)
    assert await store.tokens.list_tokens() == before
    write_atomic(file, b"hfj_one\n")
    await ensure_join_token(store, file)
    made = await store.tokens.find_token(hash_secret("hfj_one"))
    assert made is not None
    assert (made.role, made.used_at) == ("join", None)
    assert await store.tokens.use_join_token(hash_secret("hfj_one")) is not None
    await ensure_join_token(store, file)
    assert len(await store.tokens.list_tokens()) == len(before) + 1
    assert await store.tokens.use_join_token(hash_secret("hfj_one")) is None
    file.chmod(0o644)
    with pytest.raises(HoldfastError, match="chmod 600"):
        await ensure_join_token(store, file)


def test_the_services_that_are_shipped_start_again_whatever_ended() -> None:
    for name in ("server", "agent"):
        unit = (Path(__file__).parents[3] / f"examples/systemd/holdfast-{name}.service").read_text()
        assert "\nRestart=always\n" in unit
        assert "\nStartLimitIntervalSec=0\n" in unit


async def test_a_token_file_open_to_others_is_refused(store: PostgresStore, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("hft_x\n")
    file.chmod(0o644)
    with pytest.raises(HoldfastError, match="chmod 600"):
        await ensure_admin_token(store, file)


async def test_a_link_in_the_tokens_place_is_not_followed(
    store: PostgresStore, tmp_path: Path
) -> None:
    (tmp_path / "token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HoldfastError, match="symbolic"):
        await ensure_admin_token(store, tmp_path / "token")
    assert not (tmp_path / "elsewhere").exists()


async def test_a_token_that_cannot_be_kept_is_not_made(
    store: PostgresStore, tmp_path: Path
) -> None:
    """A token that is kept nowhere is of no use, and every start would leave another."""
    before = await store.tokens.list_tokens()
    with pytest.raises(HoldfastError, match="cannot be used: No such file"):
        await ensure_admin_token(store, tmp_path / "missing" / "token")
    assert await store.tokens.list_tokens() == before


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


async def test_a_stop_waits_for_nobody_for_ever(store: PostgresStore) -> None:
    """SERVE-1: something in the background that takes no cancellation holds the rest up for its
    share of the time only."""
    running = RunningServer(store, bind_socket("127.0.0.1", 0), blobs=MemoryBlobs())
    await running.start()
    released = asyncio.Event()

    async def stubborn() -> None:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()

    running.controller.background.start(stubborn())
    await asyncio.sleep(0)  # it has begun
    try:
        async with within(60):
            await running.stop()
    finally:
        released.set()


async def test_what_never_started_can_be_stopped() -> None:
    running = RunningServer(PostgresStore(""), bind_socket("127.0.0.1", 0), blobs=MemoryBlobs())
    await running.stop()
    async with httpx.AsyncClient(trust_env=False, verify=False) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(running.url)


class Process:
    """A controller in a process of its own. Its log is a file, so that a test can wait for a word
    in it."""

    def __init__(self, dsn: str, folder: Path, **more: object) -> None:
        self._folder = folder
        self._log = folder / f"log{len(os.listdir(folder))}"
        config = {"dsn": dsn, "token_file": str(folder / "token"), "log_format": "json", **more}
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", START, json.dumps(config)], stderr=log
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, words: str, seconds: float = 30) -> str:
        """The rest of the first message that begins with `words`."""
        patience = Patience(seconds)
        while True:
            ended = self.process.poll() is not None
            for line in self.log.splitlines(keepends=True):
                message = json.loads(line)["message"] if line.endswith("\n") else ""
                if message.startswith(words):
                    return str(message.removeprefix(words).strip())
            assert not ended, self.log
            assert not patience.over, self.log
            time.sleep(0.02)

    def wait_ready(self) -> tuple[str, str]:
        """The URL and the admin's token."""
        return self.wait_for("serving "), (self._folder / "token").read_text().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_is_orderly_and_quick(
    pg_database: str, tmp_path: Path, number: signal.Signals
) -> None:
    server = Process(pg_database, tmp_path)
    try:
        url, secret = await asyncio.to_thread(server.wait_ready)
        async with httpx.AsyncClient(
            base_url=url, trust_env=False, timeout=60, verify=False
        ) as http:
            assert (await http.get("/v1/whoami", headers=bearer(secret))).json()["role"] == "admin"
            assert (await http.get("/readyz")).status_code == 200
            headers = {**bearer(secret), "Accept": "text/event-stream"}
            async with http.stream("GET", "/v1/events", headers=headers) as stream:
                assert stream.status_code == 200
                began = time.monotonic()
                os.kill(server.process.pid, number)
                assert await asyncio.to_thread(wait_exit, server.process, 10) == 0
                assert time.monotonic() - began < 4.5 * crowding()
    finally:
        server.end()
    lines = [json.loads(line) for line in server.log.splitlines()]
    assert {"serving", "stopping"} <= {line["message"].split()[0] for line in lines}
    assert not [line for line in lines if line["level"] == "error"], server.log


@pytest.mark.slow
def test_a_hangup_serves_a_renewed_certificate_and_ends_nothing(
    pg_database: str, tmp_path: Path
) -> None:
    def renew(name: str) -> str:
        command = (
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30"
        )
        made = ["-subj", f"/CN={name}", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "c.pem"]
        subprocess.run([*command.split(), *made], check=True, capture_output=True)
        return (tmp_path / "c.pem").read_text()

    first = renew("first")
    files = {"tls_cert": str(tmp_path / "c.pem"), "tls_key": str(tmp_path / "key.pem")}
    server = Process(pg_database, tmp_path, **files)
    try:
        url, _ = server.wait_ready()
        place = (httpx.URL(url).host, httpx.URL(url).port or 443)
        assert ssl.get_server_certificate(place).split() == first.split()
        second = renew("second")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("new connections get the certificate")
        assert ssl.get_server_certificate(place).split() == second.split()
        (tmp_path / "key.pem").write_text("no key")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("the certificate in")
        assert ssl.get_server_certificate(place).split() == second.split()
        server.process.terminate()
        assert wait_exit(server.process, 10) == 0
    finally:
        server.end()


@pytest.mark.slow
def test_killed_and_started_again_it_leads_again(pg_database: str, tmp_path: Path) -> None:
    server = Process(pg_database, tmp_path)
    try:
        url, secret = server.wait_ready()
        job = httpx.post(
            url + "/v1/jobs", headers=bearer(secret), json={"argv": ["a"]}, trust_env=False
        ).json()
    finally:
        server.end()
    server = Process(pg_database, tmp_path)
    try:
        url, again = server.wait_ready()
        assert again == secret
        patience = Patience(20)
        while "holdfast_leading 1.0" not in httpx.get(url + "/metrics", trust_env=False).text:
            assert not patience.over
            time.sleep(0.1)
        found = httpx.get(
            f"{url}/v1/jobs/{job['id']}", headers=bearer(secret), trust_env=False
        ).json()
        assert found["state"] == "queued"
        server.process.terminate()
        assert wait_exit(server.process, 10) == 0
    finally:
        server.end()


@pytest.mark.slow
def test_it_waits_for_its_database_and_can_be_told_to_stop(tmp_path: Path) -> None:
    dsn = f"postgresql://nobody@localhost/none?host={tmp_path}&connect_timeout=1"
    server = Process(dsn, tmp_path)
    try:
        server.wait_for("waiting for the database")
        server.process.terminate()
        assert wait_exit(server.process, 10) == 0
    finally:
        server.end()
    server = Process(dsn, tmp_path, database_seconds=0.5)
    try:
        assert wait_exit(server.process, 20) == 1
        assert "cannot be reached" in server.log
    finally:
        server.end()
