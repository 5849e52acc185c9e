"""A context under Holdfast: what is given stands over what the script says, and outside nothing
changes."""

from __future__ import annotations

import http.client
import logging
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Unavailable, ValidationError
from holdfast.supervisor import Context
from holdfast.supervisor.line.keys import derive_keys, parse_manager_key
from holdfast.supervisor.run_config import (
    RUN_VARIABLE,
    GivenRun,
    parse_listen,
    read_given,
    write_given,
)
from tests.system.supervisor.rig import PATIENCE, Managers, local_context
from tests.waits import free_port, wait_until

KEYS = derive_keys(b"s" * 32, "job", 1)


@pytest.fixture
def give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the parent of the script does."""

    def make(**fields: Any) -> GivenRun:
        made = GivenRun(
            **{"keys": KEYS, "port": free_port(), "address": "127.0.0.1", "hosts": 3, **fields}
        )
        write_given(tmp_path / "given.json", made)
        monkeypatch.setenv(RUN_VARIABLE, str(tmp_path / "given.json"))
        return made

    return make


def test_what_is_given_stands_over_the_script(
    give: Any, managers: Managers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = give()
    with (
        caplog.at_level(logging.WARNING),
        Context(port=made.port + 1, encrypt=False, bind="127.0.0.1") as ctx,
    ):
        assert (ctx.port, ctx.address, ctx.given_hosts) == (
            made.port,
            f"tcp://127.0.0.1:{made.port}",
            3,
        )
        assert parse_manager_key(ctx.key_file.read_bytes()) == KEYS.for_managers()
        assert (
            ctx.key_file.parent == tmp_path
        )  # beside the gift, whose giver removes both however the script ends
        (host,) = ctx.request_hosts(1)
        managers.start(ctx, name="m")
        assert host.hostname().result(PATIENCE) == "m"
    (said,) = [
        record.getMessage()
        for record in caplog.records
        if "not as the script says" in record.getMessage()
    ]
    assert f"port {made.port}, encrypted" in said


def test_what_is_given_is_the_scripts_alone(give: Any) -> None:
    """Host managers that the script starts by itself have its environment, and their processes must
    not take it for theirs."""
    give()
    with local_context() as ctx:
        ctx.start_local_managers(1)
        show = ["sh", "-c", f'test -z "${RUN_VARIABLE}"']
        assert (
            ctx.create_process_group(ctx.request_hosts(1), show)[0].returncode().result(PATIENCE)
            == 0
        )


def test_a_script_that_says_nothing_hears_nothing(
    give: Any, caplog: pytest.LogCaptureFixture
) -> None:
    give()
    with caplog.at_level(logging.WARNING), Context():
        pass
    assert not caplog.records


@pytest.mark.parametrize(
    ("bind", "address", "chosen"),
    [
        ("127.0.0.1", "10.0.0.7", "0.0.0.0"), ("localhost", "node-7", "0.0.0.0"), ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("10.0.0.9", "10.0.0.7", "0.0.0.0"), ("0.0.0.0", "fd00::7", "::"), ("*", "10.0.0.7", "*"), ("::1", "fd00::7", "::"),
        ("10.0.0.9", "127.0.0.2", "127.0.0.2"), ("0.0.0.0", "127.0.0.2", "0.0.0.0"), ("10.0.0.9", "localhost", "127.0.0.1"),
    ],
)  # fmt: skip
def test_it_listens_where_the_other_hosts_reach_it(bind: str, address: str, chosen: str) -> None:
    assert GivenRun(keys=KEYS, port=1, address=address, hosts=1).choose_bind(bind) == chosen


def test_outside_of_holdfast_nothing_is_given() -> None:
    assert read_given({}) is None
    with local_context() as ctx:
        assert (ctx.given_hosts, ctx.metrics_port) == (None, None)


def test_a_broken_gift_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_VARIABLE, str(tmp_path / "none.json"))
    with pytest.raises(ValidationError, match=r"none\.json"):
        Context()


def test_the_state_of_an_earlier_attempt_is_left_behind(give: Any, tmp_path: Path) -> None:
    give()
    state = tmp_path / "state"
    with local_context(state_dir=state, orphan_grace=60) as first:
        first.request_hosts(2)
        first.detach()
    give()  # the same attempt, its script started again
    with local_context(state_dir=state, orphan_grace=60) as again:
        assert len(again.hosts()) == 2
        again.detach()
    give(keys=derive_keys(b"s" * 32, "job", 2))
    with local_context(state_dir=state, orphan_grace=60) as later:
        assert later.hosts() == []
        later.shutdown()


def test_holdfast_decides_which_machines_come_back(give: Any, managers: Managers) -> None:
    """A machine that was replaced is handed out again when Holdfast brings it again: it knows why,
    and where else to go."""
    give()
    with local_context() as ctx:
        managers.start(ctx, name="box")
        (host,) = ctx.request_hosts(1)
        host.hostname().result(PATIENCE)
        (fresh,) = ctx.replace_hosts([host])
        managers.start(ctx, name="box")
        assert fresh.hostname().result(PATIENCE) == "box"


def test_a_lost_host_is_not_cleared_while_a_drain_may_let_its_processes_save(
    give: Any, managers: Managers
) -> None:
    give(term_grace_seconds=1000.0)
    with local_context() as ctx:
        manager = managers.start(ctx, name="box")
        (host,) = ctx.request_hosts(1)
        host.hostname().result(PATIENCE)
        manager.kill()
        host.time_connection_lost().result(PATIENCE)
        (until,) = wait_until(lambda: list(ctx._run.roster._uncleared.values()), PATIENCE)
        assert until - time.monotonic() > 1000


# ---- metrics


def fetch(port: int, path: str = "/metrics") -> tuple[str, str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_metrics_are_served(managers: Managers) -> None:
    with local_context(metrics_port=0) as ctx:
        (host,) = ctx.request_hosts(1)
        managers.start(ctx, name="m")
        host.hostname().result(PATIENCE)
        port = ctx.metrics_port
        assert port
        kind, text = fetch(port)
        assert kind.startswith("text/plain; version=0.0.4")
        assert 'holdfast_supervisor_hosts{state="attached"} 1' in text.splitlines()
        for path in ("/", "/metricsx"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                fetch(port, path)
            assert caught.value.code == 404
        for method in ("POST", "DELETE"):
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            link.request(method, "/metrics", b"")
            assert link.getresponse().status == 501
            link.close()
    with pytest.raises(urllib.error.URLError):
        fetch(port)


def test_a_port_the_script_names_must_be_had(give: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=str(port)):
            local_context(metrics_port=port)
        give(metrics=str(port))
        with local_context() as ctx:  # `supervise --metrics-port`: no reason to fail a run
            assert ctx.metrics_port is None
        give(metrics=f"127.0.0.1:{free_port()}")
        with local_context() as ctx:
            assert fetch(ctx.metrics_port or 0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("9100", ("127.0.0.1", 9100)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("[::1]:9100", ("::1", 9100)),
        ("0", ("127.0.0.1", 0)),
    ],
)
def test_where_to_listen(text: str, found: tuple[str, int]) -> None:
    assert parse_listen(text) == found


@given(st.text(max_size=12))
def test_anything_else_is_no_place_to_listen(text: str) -> None:
    try:
        address, port = parse_listen(text)
    except ValidationError:
        return
    assert address
    assert 0 <= port <= 65535
