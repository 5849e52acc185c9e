"""The keys of a supervised job's attempts: the same for all of its ranks, different for
every other job, and good for a real handshake."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.supervisor import Context
from holdfast.supervisor.line.keys import KEY_VARIABLE, RunKeys, derive_keys
from holdfast.supervisor.run_config import RUN_VARIABLE, GivenRun, write_given
from tests.system.supervisor.rig import PATIENCE, local_context
from tests.waits import wait_until

SEED = bytes(range(32))


@given(
    seed=st.binary(min_size=32, max_size=32),
    job=st.text("abc0", min_size=1, max_size=5),
    attempt=st.integers(1, 99),
)
@settings(max_examples=50, deadline=None)
def test_keys_are_the_same_for_all_who_have_the_seed(seed: bytes, job: str, attempt: int) -> None:
    keys = derive_keys(seed, job, attempt)
    assert keys == derive_keys(seed, job, attempt)
    assert keys.server_public.encode() == zmq.curve_public(keys.server_secret.encode())
    assert keys.client_public.encode() == zmq.curve_public(keys.client_secret.encode())
    assert keys.server_secret != keys.client_secret


def test_keys_of_every_attempt_and_job_are_others() -> None:
    every = [
        derive_keys(seed, job, attempt)
        for seed in (SEED, SEED[::-1])
        for job in ("a", "a1", "b")
        for attempt in (1, 11)
    ]
    for name in ("run", "server_secret", "client_secret"):
        assert len({getattr(keys, name) for keys in every}) == len(every)
    assert len(
        {word for keys in every for word in (keys.server_secret, keys.client_secret)}
    ) == 2 * len(every)


def test_the_derivation_is_hkdf() -> None:
    """Known from RFC 5869's own steps, so that a change of the derivation, which would part ranks
    of two versions, is seen."""
    import hashlib
    import hmac

    from zmq.utils import z85

    root = hmac.new(b"holdfast supervise 1", SEED, hashlib.sha256).digest()
    secret = hmac.new(root, b"supervisor\0job\x001\x01", hashlib.sha256).digest()
    assert derive_keys(SEED, "job", 1).server_secret == z85.encode(secret).decode()
    assert (
        derive_keys(SEED, "job", 1).run
        == hmac.new(root, b"run\0job\x001\x01", hashlib.sha256).hexdigest()[:32]
    )


def start_manager(ctx: Context, keys: RunKeys, name: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, KEY_VARIABLE: msgspec.json.encode(keys.for_managers()).decode()}
    command = [
        sys.executable,
        "-P",
        "-m",
        "holdfast",
        "host-manager",
        f"tcp://127.0.0.1:{ctx.port}",
        "--name",
        name,
    ]
    return subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)


def test_a_manager_of_an_older_attempt_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = derive_keys(SEED, "job", 2)
    write_given(tmp_path / "run.json", GivenRun(keys=newer, port=0, address="127.0.0.1", hosts=1))
    monkeypatch.setenv(RUN_VARIABLE, str(tmp_path / "run.json"))
    with local_context() as ctx:
        monkeypatch.delenv(RUN_VARIABLE)
        (host,) = ctx.request_hosts(1)
        old = start_manager(ctx, derive_keys(SEED, "job", 1), "old")
        # It expects another key of its peer, so the handshake does not even begin.
        wait_until(
            lambda: ctx.status().refused.get("handshake", 0) >= 1, PATIENCE, what="the refusal"
        )
        assert not host.attached
        # One that knows the new supervisor, and shows the old attempt's key.
        mixed = msgspec.structs.replace(
            derive_keys(SEED, "job", 1), server_public=newer.server_public
        )
        liar = start_manager(ctx, mixed, "liar")
        wait_until(
            lambda: ctx.status().refused.get("unknown key", 0) >= 1, PATIENCE, what="the refusal"
        )
        # And one that has the new keys and believes to be of the old run: it refuses the welcome
        # itself.
        stray = start_manager(
            ctx, msgspec.structs.replace(newer, run=derive_keys(SEED, "job", 1).run), "stray"
        )
        fresh = start_manager(ctx, newer, "fresh")
        try:
            assert host.hostname().result(PATIENCE) == "fresh"
        finally:
            for process in (old, liar, stray):
                process.kill()
                process.wait()
    assert fresh.wait(PATIENCE) == 0
